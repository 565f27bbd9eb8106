"""Asks with one key until it is known what became of an operation, or the time is up.

**Invariant:** an operation has one key, made and kept before the first byte leaves, whatever the answers are. Once a try may have had its
effect (`doubt`), only an answer of the record can say that the operation did not happen.
"""

from __future__ import annotations

import dataclasses
import json as json_
import math
import random
import re
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Optional, Union
from urllib.parse import SplitResult, urljoin, urlsplit

from .backoff import Backoff, delay_s
from .judge import Again, Answer, Over, Verdict, Why, is_replayed, judge, judge_poll, told
from .keys import KeyStore, new_key
from .send import AnswerTooLarge, NoAnswer, Sending, send


@dataclass(frozen=True)
class Limits(Backoff):
    """How long and how often to ask. All times are in seconds."""

    #: For the whole operation.
    deadline_s: float = 120.0
    #: Requests sent for one operation, questions about accepted work included.
    attempts_max: int = 100
    #: For one try, from the connection to the last byte of the answer.
    try_timeout_s: float = 30.0
    #: Of an answer that is longer nobody looks at what it says. 16 MiB.
    answer_bytes_max: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} is {value!r}, and should be a number from 0")


@dataclass(frozen=True)
class Happened:
    """It took effect, once, and this is its answer."""

    answer: Answer
    #: It was given before.
    replayed: bool
    key: str
    name: Optional[str]
    attempts: int
    outcome: Literal["happened"] = "happened"


@dataclass(frozen=True)
class DidNotHappen:
    """It had no effect and, under this key, will have none."""

    why: Why
    #: The last answer, or the error in its place.
    answer: Optional[Answer]
    error: Optional[Exception]
    key: str
    name: Optional[str]
    attempts: int
    outcome: Literal["did_not_happen"] = "did_not_happen"


@dataclass(frozen=True)
class MayHaveHappened:
    """Nobody knows yet. Do not make a new key: go on with this one."""

    why: Why
    #: The last answer, or the error in its place.
    answer: Optional[Answer]
    error: Optional[Exception]
    key: str
    name: Optional[str]
    attempts: int
    outcome: Literal["may_have_happened"] = "may_have_happened"


#: What became of the operation.
Result = Union[Happened, DidNotHappen, MayHaveHappened]


class Client:
    """Sends operations. It keeps nothing between them, so that threads may share one client and run many at once."""

    def __init__(
        self,
        limits: Limits = Limits(),
        *,
        keys: Optional[KeyStore] = None,
        key_form: Literal["quoted", "bare"] = "quoted",
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        """`keys` is where keys survive a restart. `key_form`: `Idempotency-Key: "…"` as the standard says, or without quotation marks for
        servers that take the value literally."""
        self._limits = limits
        self._keys = keys
        self._key_form = key_form
        self._tls = tls

    def run(
        self,
        url: str,
        *,
        method: str = "POST",
        headers: Optional[Mapping[str, str]] = None,
        body: Union[bytes, str, None] = None,
        json: Any = None,
        name: Optional[str] = None,
        key: Optional[str] = None,
        limits: Optional[Limits] = None,
        cancel: Optional[threading.Event] = None,
    ) -> Result:
        """Runs one operation. Raises only before anything is sent: what cannot be sent, or a key that cannot be kept.

        `name` is the caller's for this one operation; with it, the key is kept. `key` is that of an operation begun earlier, to go on with
        it. `cancel`, when set, gives up; the result says what is known until then.
        """
        prepared = _prepared(url, method, headers, body, json)
        key, is_resumed = self._key(name, key)
        line = ("idempotency-key", key if self._key_form == "bare" else f'"{key}"')
        sending = dataclasses.replace(prepared, headers=(*prepared.headers, line))
        return _Operation(sending, limits or self._limits, self._tls, cancel, key, name, is_resumed).run()

    def done(self, result: Result) -> bool:
        """To be called when the caller has taken note of a result, durably: then its key is forgotten, if the result is certain. Says whether.

        Not done by `run`: a caller that dies between the result and its own note of it would come back with a new key.
        Another key that this name has by now is another operation's, and stays.
        """
        if isinstance(result, MayHaveHappened) or result.name is None:
            return False
        if self._keys is not None:
            self._keys.forget(result.name, result.key)
        return True

    def _key(self, name: Optional[str], key: Optional[str]) -> tuple[str, bool]:
        if key is not None and name is not None:
            raise ValueError("give `name` or `key`, not both")
        if key is not None:
            return _checked(key), True
        fresh = new_key()
        if name is None:
            return fresh, False
        if self._keys is None:
            raise ValueError("a name was given, and the client has no `keys` to keep a key in")
        kept = self._keys.load(name) or self._keys.save(name, fresh)
        return kept, kept != fresh


class _Operation:
    """One operation under way."""

    def __init__(
        self,
        sending: Sending,
        limits: Limits,
        tls: Optional[ssl.SSLContext],
        cancel: Optional[threading.Event],
        key: str,
        name: Optional[str],
        doubt: bool,
    ) -> None:
        self._sending = sending
        self._limits = limits
        self._tls = tls
        self._cancel = cancel
        self._key = key
        self._name = name
        # Some try may have had its effect, or may still have it.
        self._doubt = doubt
        self._attempts = 0
        self._poll: Optional[str] = None
        self._last: Union[Answer, NoAnswer, None] = None
        self._end = time.monotonic() + limits.deadline_s

    def run(self) -> Result:
        wait_s = 0.0
        while True:
            stop = self._stop(wait_s)
            if stop is not None:
                return self._ended(self._doubt, stop)
            self._wait(wait_s)
            if self._is_cancelled():
                continue
            verdict = self._try()
            if isinstance(verdict, Over):
                return self._over(verdict)
            self._doubt = self._doubt or verdict.doubt
            self._poll = self._within(verdict.poll)
            headers = self._last.headers if isinstance(self._last, Answer) else None
            wait_s = 0.0 if verdict.at_once else delay_s(self._attempts, headers, self._limits, time.time(), random.random())

    def _try(self) -> Verdict:
        self._attempts += 1
        timeout_s = min(self._limits.try_timeout_s, max(0.001, self._end - time.monotonic()))
        sending = self._sending if self._poll is None else _question(self._sending, self._poll)
        self._last = send(sending, timeout_s, self._limits.answer_bytes_max, self._tls, self._cancel)
        if isinstance(self._last, NoAnswer) and isinstance(self._last.error, AnswerTooLarge):
            return Over("unclear", "answer_too_large")
        if isinstance(self._last, NoAnswer):
            return Again(doubt=self._last.is_sent, poll=self._poll)
        return judge(self._last) if self._poll is None else judge_poll(self._last, self._poll)

    def _stop(self, wait_s: float) -> Optional[Why]:
        if self._is_cancelled():
            return "cancelled"
        if self._attempts >= self._limits.attempts_max:
            return "attempts"
        return "deadline" if time.monotonic() + wait_s >= self._end else None

    def _wait(self, wait_s: float) -> None:
        if self._cancel is not None:
            self._cancel.wait(wait_s)
        else:
            time.sleep(wait_s)

    def _is_cancelled(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    def _over(self, verdict: Over) -> Result:
        if verdict.verdict == "happened" and isinstance(self._last, Answer):
            return Happened(told(self._last), is_replayed(self._last), self._key, self._name, self._attempts)
        is_open = verdict.verdict == "unclear" or (verdict.verdict == "refused" and self._doubt)
        return self._ended(is_open, verdict.why)

    def _ended(self, is_open: bool, why: Why) -> Result:
        answer = told(self._last) if isinstance(self._last, Answer) else None
        error = self._last.error if isinstance(self._last, NoAnswer) else None
        kind = MayHaveHappened if is_open else DidNotHappen
        return kind(why, answer, error, self._key, self._name, self._attempts)

    def _within(self, location: Optional[str]) -> Optional[str]:
        """Where to ask, if it is at the same server: credentials go nowhere else."""
        if location is None:
            return None
        try:
            url = urljoin(self._sending.url.geturl(), location)
            return url if _origin(urlsplit(url)) == _origin(self._sending.url) else None
        except ValueError:
            return None


def _origin(url: SplitResult) -> tuple[str, Optional[str], int]:
    return url.scheme, url.hostname, url.port or (443 if url.scheme == "https" else 80)


def _question(sending: Sending, url: str) -> Sending:
    """A question about accepted work: whoever asks is the same, and nothing is asked for."""
    left_out = ("idempotency-key", "content-type", "prefer")
    headers = tuple((name, value) for name, value in sending.headers if name.lower() not in left_out)
    return Sending("GET", urlsplit(url), headers, None)


_OWN_HEADERS = {"connection", "content-length", "host", "transfer-encoding"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _prepared(url: str, method: str, headers: Optional[Mapping[str, str]], body: Union[bytes, str, None], json: Any) -> Sending:
    split = urlsplit(url)
    if split.scheme not in ("http", "https") or not split.hostname or (split.port or 1) < 1:
        raise ValueError(f"{url!r} is not an http or https URL")
    if split.username is not None:
        raise ValueError("a URL must not have credentials in it; send them in a header")
    if not re.fullmatch(r"[!-~]*", f"{split.path}?{split.query}"):
        raise ValueError(f"{url!r} has characters that must be percent-encoded")
    if not _TOKEN.fullmatch(method):
        raise ValueError(f"{method!r} is not a method")
    lines = list((headers or {}).items())
    for name, value in lines:
        if not _TOKEN.fullmatch(name) or not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
            raise ValueError(f"the header {name!r} cannot be sent: a name or value has characters that HTTP does not allow")
    names = {name.lower() for name, _ in lines}
    if names & _OWN_HEADERS:
        raise ValueError(f"the header {min(names & _OWN_HEADERS)} is the client's to set")
    if "idempotency-key" in names:
        raise ValueError("the key is the client's to make; to go on with one, give it as `key`")
    if json is not None and body is not None:
        raise ValueError("give `body` or `json`, not both")
    if json is not None:
        body = json_.dumps(json, allow_nan=False)
        if "content-type" not in names:
            lines.append(("content-type", "application/json"))
    return Sending(method, split, tuple(lines), body.encode() if isinstance(body, str) else body)


def _checked(key: str) -> str:
    if re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e]{1,255}", key):
        return key
    raise ValueError("a key is 1 to 255 characters of visible ASCII without quotation marks and backslashes")
