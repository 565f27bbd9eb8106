"""What the contract's table has no row for: keys and where they are kept, waiting, giving up, what cannot be sent."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Optional

from oncegate_client import Backoff, Client, DidNotHappen, FileKeyStore, Happened, Headers, Limits, MayHaveHappened, new_key
from oncegate_client.backoff import delay_s, retry_after_s
from scripted import CERTIFICATE, Scripted, limits

ANSWER = {"status": 201, "kept": True, "json": {"id": 1}}
REPLAY = {"status": 201, "replayed": True}


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Keys(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "keys"
        self.keys = FileKeyStore(self.folder)

    def test_keys_are_random_uuids_another_for_each_operation(self) -> None:
        keys = {new_key() for _ in range(1000)}
        self.assertEqual(len(keys), 1000)
        for key in keys:
            self.assertRegex(key, r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
        with Scripted([ANSWER, ANSWER]) as server:
            client = Client(limits())
            client.run(server.url)
            client.run(server.url)
            self.assertEqual(len(set(server.keys())), 2)

    def test_a_key_that_is_found_is_durable_before_it_is_used(self) -> None:
        # Its file was linked by a process that was killed before it had synced the folder. Sent, and lost with the power: then a new key.
        self.keys.save("a", "kept")
        synced: list[int] = []
        with unittest.mock.patch("os.fsync", lambda opened: synced.append(os.fstat(opened).st_ino)):
            self.assertEqual(self.keys.load("a"), "kept")
            self.assertEqual(synced, [self.folder.stat().st_ino])
            # Nor does one use it before who finds it when it would save another.
            synced.clear()
            self.assertEqual(self.keys.save("a", "another"), "kept")
            self.assertEqual(synced[-1], self.folder.stat().st_ino)

    def test_the_key_is_kept_before_the_first_byte_is_sent(self) -> None:
        class Full(FileKeyStore):
            def save(self, name: str, key: str) -> str:
                raise OSError("disk full")

        with Scripted([ANSWER]) as server:
            with self.assertRaisesRegex(OSError, "disk full"):
                Client(limits(), keys=Full(self.folder)).run(server.url, name="a")
            self.assertEqual(server.requests, [])

    def test_a_process_that_dies_goes_on_with_its_key(self) -> None:
        with Scripted([{"do": "hang"}, REPLAY]) as server:
            run = "import sys; from oncegate_client import *; Client(keys=FileKeyStore(sys.argv[1])).run(sys.argv[2], name='order 17')"
            process = subprocess.Popen([sys.executable, "-c", run, str(self.folder), server.url])
            self.assertTrue(server.is_asked.wait(60))
            process.send_signal(signal.SIGKILL)
            process.wait()
            result = Client(limits(), keys=self.keys).run(server.url, name="order 17")
            assert isinstance(result, Happened)
            self.assertTrue(result.replayed)
            self.assertEqual(len(set(server.keys())), 1)

    def test_what_comes_back_to_a_kept_key_may_have_happened_before(self) -> None:
        with Scripted([{"do": "reset"}, {"status": 403}]) as server:
            client = Client(limits(attempts_max=1), keys=self.keys)
            first = client.run(server.url, name="a")
            second = client.run(server.url, name="a")
            assert isinstance(first, MayHaveHappened) and isinstance(second, MayHaveHappened)
            self.assertEqual((first.key, second.why), (second.key, "refused"))

    def test_a_key_is_forgotten_when_the_caller_has_taken_note_of_a_certain_result_and_not_before(self) -> None:
        with Scripted([{"do": "reset"}, REPLAY, ANSWER]) as server:
            client = Client(limits(), keys=self.keys)
            in_doubt = client.run(server.url, name="a", limits=limits(attempts_max=1))
            self.assertFalse(client.done(in_doubt))
            self.assertEqual(self.keys.load("a"), in_doubt.key)
            known = client.run(server.url, name="a")
            self.assertEqual(known.key, in_doubt.key)
            self.assertEqual(self.keys.load("a"), known.key, "a caller that dies now asks with the same key")
            self.assertTrue(client.done(known))
            self.assertIsNone(self.keys.load("a"))
            self.assertNotEqual(client.run(server.url, name="a").key, known.key)

    def test_a_late_done_does_not_forget_the_key_of_the_next_operation_under_its_name(self) -> None:
        """Two workers were refused under one key. One is done with it and begins anew; then the other says that it is done."""
        with Scripted([{"status": 402, "kept": True}, {"status": 402, "replayed": True}, {"do": "reset"}, REPLAY]) as server:
            client = Client(limits(), keys=self.keys)
            mine, other = client.run(server.url, name="a"), client.run(server.url, name="a")
            self.assertEqual((mine.outcome, other.outcome, mine.key), ("did_not_happen", "did_not_happen", other.key))
            self.assertTrue(client.done(mine))
            anew = client.run(server.url, name="a", limits=limits(attempts_max=1))
            assert isinstance(anew, MayHaveHappened)
            for _ in range(2):
                self.assertTrue(client.done(other))
                self.assertEqual(self.keys.load("a"), anew.key)
            self.assertEqual(client.run(server.url, name="a").key, anew.key)
            self.assertEqual(len(list(self.folder.iterdir())), 1, "nothing is left aside")

    def test_a_key_that_is_begun_anew_while_the_old_one_is_forgotten_is_put_back(self) -> None:
        """The moment between the look and the removal, in which another process forgets the key and begins anew."""

        class Overtaken(FileKeyStore):
            def load(self, name: str) -> Optional[str]:
                kept = super().load(name)
                FileKeyStore.forget(by, name, "old")
                by.save(name, "new")
                return kept

        by = self.keys
        by.save("a", "old")
        Overtaken(self.folder).forget("a", "old")
        self.assertEqual(by.load("a"), "new")
        self.assertEqual(len(list(self.folder.iterdir())), 1, "nothing is left aside")

    def test_of_many_who_begin_the_same_operation_at_once_all_get_one_key(self) -> None:
        with ThreadPoolExecutor(20) as threads:
            saved = set(threads.map(lambda _: self.keys.save("a", new_key()), range(100)))
        self.assertEqual(len(saved), 1)
        self.assertEqual(len(list(self.folder.iterdir())), 1, "no drafts are left")

    def test_a_key_file_that_cannot_be_read_stops_the_operation_before_anything_is_sent(self) -> None:
        self.keys.save("a", new_key())
        (file,) = self.folder.iterdir()
        for damage in ["", '{"name":"a"', '{"name":"b","key":"k"}', '{"name":"a","key":""}', "[]"]:
            file.write_text(damage)
            with self.assertRaisesRegex(ValueError, "cannot be read"):
                Client(keys=self.keys).run("http://127.0.0.1:1", name="a")

    def test_key_files_are_the_same_in_every_language(self) -> None:
        self.keys.save("order 17 ü", "8e03978e-40d5-43dd-bc93-6894a57f9324")
        (file,) = self.folder.iterdir()
        self.assertEqual(file.name, "eedf279b3f4be4775e56b001ad8e31364a0438c05839fc7ff84cd147f5588e8e.json")
        self.assertIn("order 17 ü", file.read_text("utf-8"))


class Sending(unittest.TestCase):
    def test_nobody_listens_nothing_was_sent_and_it_did_not_happen(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for host in ["127.0.0.1", "localhost", "nowhere.invalid"]:
            result = Client(limits(attempts_max=3)).run(f"http://{host}:{port}/")
            assert isinstance(result, DidNotHappen)
            self.assertEqual((result.why, result.attempts, result.error is None), ("attempts", 3, False))
        going = Client(limits(attempts_max=1)).run(f"http://127.0.0.1:{port}/", key=new_key())
        self.assertIsInstance(going, MayHaveHappened, "an earlier process may have sent it")

    def test_the_time_of_a_try_is_for_all_of_it_also_if_bytes_drip(self) -> None:
        with Scripted([{"do": "drip"}, REPLAY]) as server:
            result = Client(limits(try_timeout_s=1)).run(server.url)
            self.assertEqual((result.outcome, result.attempts), ("happened", 2))

    def test_by_tls_a_server_that_is_not_trusted_was_sent_nothing(self) -> None:
        with Scripted([ANSWER], tls=True) as server:
            result = Client(limits(attempts_max=2)).run(server.url)
            assert isinstance(result, DidNotHappen)
            self.assertIsInstance(result.error, ssl.SSLCertVerificationError)
            self.assertEqual(server.requests, [])

    def test_by_tls_it_is_the_same(self) -> None:
        with Scripted([{"do": "drip"}, {"do": "cut"}, {"do": "reset"}, REPLAY, {"do": "hang"}], tls=True) as server:
            client = Client(limits(try_timeout_s=1), tls=ssl.create_default_context(cafile=str(CERTIFICATE)))
            result = client.run(server.url)
            self.assertEqual((result.outcome, result.attempts), ("happened", 4))
            cancel = threading.Event()
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(client.run, server.url, cancel=cancel, limits=limits())
                wait_until(lambda: len(server.requests) == 5)
                cancel.set()
                self.assertEqual(running.result().outcome, "may_have_happened")

    def test_given_up_while_a_try_is_under_way_it_may_have_happened_before_the_first_it_did_not(self) -> None:
        with Scripted([{"do": "hang", "forever": True}]) as server:
            cancel = threading.Event()
            since = time.monotonic()
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(Client(limits(try_timeout_s=100, deadline_s=100)).run, server.url, cancel=cancel)
                self.assertTrue(server.is_asked.wait(60))
                cancel.set()
                result = running.result()
            self.assertLess(time.monotonic() - since, 90, "the try was ended, and did not end by its own time-out")
            assert isinstance(result, MayHaveHappened)
            self.assertEqual((result.why, result.attempts), ("cancelled", 1))
            never = Client(limits()).run(server.url, cancel=cancel)
            assert isinstance(never, DidNotHappen)
            self.assertEqual((never.why, never.attempts), ("cancelled", 0))
            self.assertEqual(len(server.requests), 1)

    def test_given_up_while_it_waits_it_ends_at_once(self) -> None:
        with Scripted([{"status": 503, "problem": "overloaded", "headers": {"retry-after": "20"}}]) as server:
            cancel = threading.Event()
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(Client(limits(retry_after_max_s=25)).run, server.url, cancel=cancel)
                self.assertTrue(server.is_asked.wait(60))
                since = time.monotonic()
                cancel.set()
                self.assertEqual(getattr(running.result(), "why"), "cancelled")
            self.assertLess(time.monotonic() - since, 10)

    def test_retry_after_is_waited_for(self) -> None:
        with Scripted([{"status": 409, "problem": "in_progress", "headers": {"retry-after": "1"}}, ANSWER]) as server:
            since = time.monotonic()
            Client(limits(retry_after_max_s=0.3)).run(server.url)
            self.assertGreaterEqual(time.monotonic() - since, 0.299)

    def test_what_cannot_be_sent_is_refused_before_a_key_is_made(self) -> None:
        client = Client()
        cases: list[tuple[str, dict[str, Any], str]] = [
            ("not a url", {}, "not an http"),
            ("ftp://host/", {}, "not an http"),
            ("http://host:99999/", {}, "[Pp]ort"),
            ("http://host/ä", {}, "percent-encoded"),
            ("http://host/", {"method": "GE T"}, "not a method"),
            ("http://host/", {"headers": {"a": "b\r\nc: d"}}, "cannot be sent"),
            ("http://host/", {"headers": {"Idempotency-Key": "x"}}, "the client's to make"),
            ("http://me:secret@host/", {}, "credentials"),
            ("http://host/", {"headers": {"Content-Length": "1"}}, "the client's to set"),
            ("http://host/", {"name": "a", "key": "b"}, "not both"),
            ("http://host/", {"body": b"", "json": {}}, "not both"),
            ("http://host/", {"json": float("nan")}, "JSON"),
            ("http://host/", {"name": "a"}, "no `keys`"),
            ("http://host/", {"key": 'a"b'}, "visible ASCII"),
        ]
        for url, more, words in cases:
            with self.subTest(words=words, url=url), self.assertRaisesRegex(ValueError, words):
                client.run(url, **more)
        with self.assertRaisesRegex(ValueError, "attempts_max"):
            Limits(attempts_max=-1)

    def test_a_key_may_be_sent_bare(self) -> None:
        with Scripted([ANSWER]) as server:
            result = Client(limits(), key_form="bare").run(server.url)
            self.assertEqual(server.keys(), [result.key])


class Waiting(unittest.TestCase):
    def test_a_wait_is_never_shorter_than_the_server_asks_and_never_longer_than_the_bounds(self) -> None:
        bounds = Backoff(backoff_s=0.1, backoff_max_s=1, retry_after_max_s=5)
        now = parsedate_to_datetime("Fri, 01 Jan 2038 00:00:00 GMT").timestamp()

        def wait(attempts: int, dice: float, after: Optional[str] = None) -> float:
            return round(delay_s(attempts, Headers([("retry-after", after)]) if after else None, bounds, now, dice), 6)

        self.assertEqual([wait(n, 0.5) for n in (1, 2, 3, 4, 5, 6, 5000)], [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5])
        self.assertEqual(wait(5, 0), 0, "full jitter reaches down to nothing")
        self.assertEqual([wait(1, dice, "2") for dice in (0, 0.5)], [2, 2.05])
        self.assertEqual(wait(1, 0, "3600"), 5)

        def asked(after: str, *more: tuple[str, str]) -> float:
            return retry_after_s(Headers([("Retry-After", after), *more]), now)

        self.assertEqual(asked("Fri, 01 Jan 2038 00:00:03 GMT"), 3)
        self.assertEqual(asked("Thu, 31 Dec 2037 23:59:59 GMT"), 0)
        dated = asked("Fri, 01 Jan 2038 01:00:03 GMT", ("Date", "Fri, 01 Jan 2038 01:00:00 GMT"))
        self.assertEqual(dated, 3, "by the clock of whoever wrote it")
        for junk in ["", "soon", "-1", "1.5x", "²"]:
            self.assertEqual(asked(junk), 0, junk)


if __name__ == "__main__":
    unittest.main()
