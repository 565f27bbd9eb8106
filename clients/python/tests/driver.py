"""Runs the operations of a file, so many at once, and writes down what became of each. Started, and killed, by storm.py."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from oncegate_client import Client, FileKeyStore, Limits

url, keys, jobs_file, results_file, workers, try_timeout_ms = sys.argv[1:]
limits = Limits(try_timeout_s=int(try_timeout_ms) / 1000, backoff_s=0.02, backoff_max_s=0.5, retry_after_max_s=0.5)
client = Client(limits, keys=FileKeyStore(keys))
writing = threading.Lock()


def work(job: dict[str, Any]) -> None:
    content = {"amount": job["amount"], "currency": job["currency"]}
    mine = replace(limits, deadline_s=job["deadline_ms"] / 1000, attempts_max=job["attempts_max"])
    headers = {"authorization": "Bearer storm", **({"prefer": job["prefer"]} if job["prefer"] else {})}
    result = client.run(url + job["path"], headers=headers, json=content, name=job["name"], limits=mine)
    answer = result.answer
    line = {
        "name": job["name"],
        "amount": job["amount"],
        "outcome": result.outcome,
        "key": result.key,
        "attempts": result.attempts,
        "why": getattr(result, "why", None),
        "replayed": getattr(result, "replayed", None),
        "status": answer.status if answer else None,
        "body": answer.body.decode() if answer and answer.body is not None else None,
        "error": repr(getattr(result, "error", None)),
    }
    with writing, open(results_file, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    client.done(result)


with open(jobs_file, encoding="utf-8") as file, ThreadPoolExecutor(int(workers)) as threads:
    for future in [threads.submit(work, json.loads(line)) for line in file]:
        future.result()
