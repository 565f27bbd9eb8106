"""A thousand operations by one client through a storm, every result compared with the provider's ledger.

Usage: storm.py NAME -- DRIVER…, where the driver is started with: URL, folder of keys, file of operations, file for results, how many at once,
milliseconds for a try. It writes a line of JSON for each operation as soon as its result is known.

Every fourth is accepted by the gateway with 202, and done later (profile `accepted`): the client asks where it was told to, or prefers to wait.

While it runs, requests and answers are reset, cut, stalled and answered with 503 or 202 on the way; the provider fails in every way it knows; the
gateway is killed three times, the API once, and the client itself once, to go on with the keys that it kept. Afterwards, in calm weather,
whatever may have happened is asked about once more with the same keys, and then must be known.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos import ACCEPTED, LATER as SAID_LATER, ODDS, QUESTIONS, Chaos
from town import FAULTS, FOREVER_S, LATER, Town, program, wait_until

OPERATIONS = int(os.environ.get("STORM_OPERATIONS", "1000"))
AT_ONCE = 64
TRY_TIMEOUT_MS = 1000
PLENTY = 10_000
FIRST_AMOUNT = 1000
OUTCOMES = ["happened", "did_not_happen", "may_have_happened"]
PROGRAMS = {"gateway": "ONCEGATE_BIN", "provider": "PAYMENTS_PROVIDER_BIN", "api": "PAYMENTS_API_BIN"}

Job = dict[str, Any]
Told = dict[str, Any]


class Driver:
    """The client at work."""

    def __init__(self, command: list[str], url: str, folder: Path, jobs: list[Job], try_timeout_ms: int = TRY_TIMEOUT_MS) -> None:
        number = len(list(folder.glob("jobs*")))
        jobs_file = folder / f"jobs{number}"
        jobs_file.write_text("".join(json.dumps(job) + "\n" for job in jobs))
        self.results = folder / f"results{number}"
        self.results.touch()
        self.child = subprocess.Popen(
            [*command, url, str(folder / "keys"), str(jobs_file), str(self.results), str(AT_ONCE), str(try_timeout_ms)]
        )
        atexit.register(self.child.kill)

    def told(self) -> list[Told]:
        """All whole lines."""
        return [json.loads(line) for line in self.results.read_text("utf-8").split("\n")[:-1]]

    def wait_for(self, results: int) -> None:
        wait_until(f"{results} results", lambda: len(self.told()) >= results or self.child.poll() is not None)

    def ends(self) -> list[Told]:
        code = self.child.wait(timeout=FOREVER_S)
        assert code == 0, f"the driver ended with {code}"
        return self.told()

    def is_killed(self) -> list[Told]:
        self.child.kill()
        self.child.wait()
        return self.told()


def is_later(number: int) -> bool:
    return number % 4 == 2


def jobs() -> list[Job]:
    """Each has an amount of its own, by which the ledger knows it. Some are in a hurry, some are tried once, and some make no sense."""
    return [
        {
            "name": f"order {number}",
            "path": LATER if is_later(number) else "",
            "prefer": "wait=1" if number % 8 == 2 else None,
            "amount": FIRST_AMOUNT + number,
            "currency": "euro" if number % 50 == 0 else "EUR",
            "deadline_ms": 200 + number % 1000 if number % 3 == 0 else 240_000,
            "attempts_max": 1 if number % 5 == 1 else PLENTY,
        }
        for number in range(OPERATIONS)
    ]


def storm(town: Town, command: list[str], url: str) -> dict[str, Told]:
    """The operations, and what the client was told of each."""
    todo = jobs()
    town.faults({fault: 0.03 for fault in FAULTS})
    driver = Driver(command, url, town.folder, todo)
    for fifths, killed in [(1, town.gateway), (2, town.gateway)]:
        driver.wait_for(fifths * OPERATIONS // 5)
        killed.kill()
        killed.start()
    driver.wait_for(OPERATIONS // 2)
    told = {one["name"]: one for one in driver.is_killed()}
    driver = Driver(command, url, town.folder, [job for job in todo if job["name"] not in told])
    for tenths, killed in [(6, town.gateway), (7, town.api)]:
        driver.wait_for(tenths * OPERATIONS // 10 - len(told))
        killed.kill()
        killed.start()
    told |= {one["name"]: one for one in driver.ends()}
    assert len(told) == OPERATIONS, f"{len(told)} results"
    return told


def judge(town: Town, told: dict[str, Told]) -> str:
    """Every result is true: happened is one charge, of that amount, did not happen is none, may have happened is at most one."""
    charges = town.charges()
    wrong = []
    open_and_charged = 0
    for one in told.values():
        charged = charges.get(one["amount"], [])
        is_true = {"happened": len(charged) == 1, "did_not_happen": not charged, "may_have_happened": len(charged) <= 1}
        if not is_true[one["outcome"]]:
            wrong.append(f"{charged} were charged, and the client says {one}")
        elif one["outcome"] == "happened":
            answer = json.loads(one["body"])
            if (answer["amount"], answer["charge"]) != (one["amount"], charged[0]):
                wrong.append(f"{charged} was charged, and the answer is of another: {one}")
        elif charged:
            open_and_charged += 1
    assert not wrong, f"{len(wrong)} results are not true:\n" + "\n".join(wrong[:10])
    asked_for = {one["amount"] for one in told.values()}
    assert set(charges) <= asked_for, "charges that no operation asked for"
    keys = {one["key"] for one in told.values()}
    others = [record["key"] for record in town.records() if record["key"] not in keys]
    assert not others, f"{len(others)} keys at the gateway that no result speaks of: an operation had two"
    counted = outcomes(told)
    return (
        f"all {len(told)} are true by the provider's ledger, which has {sum(map(len, charges.values()))} charges: "
        f"{counted['happened']} happened and were charged once, {counted['did_not_happen']} did not and were not charged, "
        f"{counted['may_have_happened']} may have, of which {open_and_charged} were charged, once"
    )


def calm(town: Town, chaos: Chaos, command: list[str], told: dict[str, Told]) -> dict[str, Told]:
    """What may have happened is found out, with the same keys."""
    chaos.is_calm = True
    town.faults({})
    open_ones = {name for name, one in told.items() if one["outcome"] == "may_have_happened"}
    url = f"http://127.0.0.1:{town.gateway.ports[0]}/payments"
    later = [{**job, "deadline_ms": FOREVER_S * 1000, "attempts_max": PLENTY} for job in jobs() if job["name"] in open_ones]
    found = {one["name"]: one for one in Driver(command, url, town.folder, later).ends()}
    assert set(found) == open_ones
    for name, one in found.items():
        assert one["outcome"] != "may_have_happened", f"still not known: {one}"
        assert one["key"] == told[name]["key"], f"another key: {told[name]}, then {one}"
    return found


def outcomes(told: dict[str, Told]) -> collections.Counter[str]:
    return collections.Counter(one["outcome"] for one in told.values())


def summary(told: dict[str, Told]) -> str:
    """How many did, did not and may have happened, and why."""
    whys = collections.Counter(f"{one['outcome']}: {one['why']}" for one in told.values() if one.get("why"))
    replays = sum(bool(one.get("replayed")) for one in told.values())
    tries = sum(one["attempts"] for one in told.values())
    counted = outcomes(told)
    words = ", ".join(f"{counted[outcome]} {outcome}" for outcome in OUTCOMES)
    return f"{words} ({dict(sorted(whys.items()))}); {replays} of them by a replay; {tries} requests"


def main() -> None:
    name, separator, *command = sys.argv[1:]
    missing = [variable for variable in PROGRAMS.values() if variable not in os.environ]
    if separator != "--" or not command or missing:
        sys.exit(f"{__doc__}\nIn the environment: {', '.join(PROGRAMS.values())}. Missing: {', '.join(missing) or 'none'}.")
    seed = int(os.environ.get("STORM_SEED", time.time_ns() % 1_000_000))

    def say(words: str) -> None:
        print(f"{name}: {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="oncegate-storm-") as folder:
        town = Town(Path(folder), {which: program(variable) for which, variable in PROGRAMS.items()})
        try:
            began = time.monotonic()
            chaos = Chaos(town.gateway.ports, 1.3 * TRY_TIMEOUT_MS / 1000, seed)
            told = storm(town, command, f"http://127.0.0.1:{chaos.port}/payments")
            wait_until("nothing is on its way", chaos.is_idle)
            town.comes_to_rest()
            say(f"{OPERATIONS} operations in a storm (seed {seed}): {summary(told)}")
            say(f"on the way: {dict(chaos.count)}; killed: the gateway three times, the API and the client once")
            say(judge(town, told))
            found = calm(town, chaos, command, told)
            town.comes_to_rest()
            say(f"asked again about the {len(found)} that may have happened, with their keys: {summary(found)}")
            judge(town, told)
            say(f"{judge(town, told | found)}; {time.monotonic() - began:.0f} s in all")
            # All of it was there to go wrong.
            assert set(outcomes(told)) == set(OUTCOMES), outcomes(told)
            assert all(chaos.count[what] > 0 for what in [*ODDS, QUESTIONS, ACCEPTED, SAID_LATER]), chaos.count
            later = {name: one for name, one in (told | found).items() if is_later(one["amount"] - FIRST_AMOUNT)}
            say(f"of them done later: {summary(later)}")
            assert outcomes(later)["happened"] > len(later) / 2, outcomes(later)
        finally:
            town.close()


if __name__ == "__main__":
    main()
