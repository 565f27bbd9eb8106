"""Every row of the contract, against a server that follows the case's script."""

from __future__ import annotations

import re
import unittest
from typing import Any

from oncegate_client import Client, Result
from scripted import CLIENTS, CONTRACT, Scripted, limits

GIVEN = "8e03978e-40d5-43dd-bc93-6894a57f9324"


class Contract(unittest.TestCase):
    def test_every_row(self) -> None:
        for case in CONTRACT["cases"]:
            with self.subTest(row=case["row"], name=case["name"]), Scripted(case["steps"]) as server:
                key = GIVEN if case.get("resumed") else None
                client = Client(limits(case.get("limits")))
                result = client.run(server.url, headers={"Authorization": "Bearer me"}, json={"amount": 100}, key=key)
                self.assertEqual(seen(result, case["is"]), case["is"])
                self.check_requests(server, case, result.key)
                self.assertEqual(result.key == GIVEN, case.get("resumed", False))

    def check_requests(self, server: Scripted, case: dict[str, Any], key: str) -> None:
        """One key and the same bytes each time; questions carry who asks, and nothing else."""
        if "requests" in case:
            self.assertEqual([f"{asked.method} {asked.path}" for asked in server.requests], case["requests"])
        if not case["steps"][-1].get("forever"):
            self.assertEqual(len(server.requests), len(case["steps"]))
        for asked in server.requests:
            is_post = asked.method == "POST"
            self.assertEqual(asked.headers.get("authorization"), "Bearer me")
            self.assertEqual(asked.headers.get("idempotency-key"), f'"{key}"' if is_post else None)
            self.assertEqual(asked.body, b'{"amount": 100}' if is_post else b"")

    def test_the_readme_s_table_has_these_rows_and_the_gateway_s_problems(self) -> None:
        table = re.findall(r"^\| `(\w+)` \|(.*)", (CLIENTS / "README.md").read_text("utf-8"), re.MULTILINE)
        by_row = dict(table)
        self.assertEqual(sorted(by_row), sorted({case["row"] for case in CONTRACT["cases"]} | {"not_sent", "cancelled"}))
        pages = (CLIENTS.parent / "docs/problems").glob("*.md")
        problems = {page.stem for page in pages} - {"README"}
        named = {code for row, rest in table for code in [row, *re.findall(r"`(\w+)`", rest)]}
        self.assertEqual(problems - named, set(), "problems without a row")
        tried = {step.get("problem") for case in CONTRACT["cases"] for step in case["steps"]}
        self.assertEqual(problems - tried, set(), "problems without a case")


def seen(result: Result, spoken_of: dict[str, Any]) -> dict[str, Any]:
    """What the case speaks of."""
    answer = result.answer
    everything = {
        "outcome": result.outcome,
        "why": getattr(result, "why", None),
        "attempts": result.attempts,
        "replayed": getattr(result, "replayed", None),
        "status": answer.status if answer else None,
        "location": answer.headers.get("location") if answer else None,
        "has_body": answer is not None and answer.body is not None,
    }
    return {name: everything[name] for name in spoken_of}


if __name__ == "__main__":
    unittest.main()
