"""What one answer says about an operation: the contract's table, as a function.

Pure: no clock, no I/O. What earlier tries left behind is the caller's business (`client.py`); a verdict is about this answer alone.

**Invariant:** an answer that anybody but the record could have given never settles what an earlier try may have done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Optional, Union


class Headers:
    """Header lines of an answer. Names are the same in any case."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self.lines = tuple(lines)

    def get(self, name: str) -> Optional[str]:
        """The first line of this name."""
        return next((value for other, value in self.lines if other.lower() == name.lower()), None)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __repr__(self) -> str:
        return f"Headers({self.lines!r})"


@dataclass(frozen=True)
class Answer:
    """An answer, read whole."""

    status: int
    headers: Headers
    #: None: the operation was answered with this status, and its body was too large for the gateway to keep.
    body: Optional[bytes]

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body or b"")


#: Why an operation ended as it did; for programs. The gateway's own refusals go by their problem codes.
Why = Literal[
    "refused",  # the API answered 4xx
    "failed",  # the API answered 5xx, and that answer is kept: to ask again gives the same
    "redirected",  # a redirect that no record vouches for; it is not followed
    "deadline",  # no time is left
    "attempts",  # no attempt is left
    "answer_too_large",  # the answer is longer than the client reads; what it says is not known
    "cancelled",  # the caller gave it up; or it was accepted, and taken back while it waited
    "key_reused",
    "key_expired",
    "key_missing",
    "key_invalid",
    "request_invalid",
    "request_malformed",
    "scope_missing",
    "not_authorized",
    "too_large",
    "operation_not_found",
    "not_started",  # it was accepted, and not done in time
    "upstream_failed",  # forwarded unprotected, and no proper answer: it must not be repeated
]


@dataclass(frozen=True)
class Over:
    """There is nothing more to ask.

    `happened`: it took effect, once. `did_not_happen`: the record says so, whatever earlier tries looked like. `refused`: this try did
    nothing, and others like it will not either; of earlier tries it says nothing. `unclear`: this answer does not say how it ended.
    """

    verdict: Literal["happened", "did_not_happen", "refused", "unclear"]
    why: Why = "refused"


@dataclass(frozen=True)
class Again:
    """Ask again, with the same key."""

    #: This try may have had its effect, or may still have it.
    doubt: bool
    #: Where to ask about work that was accepted.
    poll: Optional[str] = None
    at_once: bool = False


Verdict = Union[Over, Again]

_TYPE_BASE = "https://oncegate.dev/problems/"
_HAPPENED = Over("happened")
_NOTHING_DONE = Again(doubt=False)
_IN_DOUBT = Again(doubt=True)
# In these states an operation has no answer yet.
_UNDER_WAY = ("pending", "in_progress", "unknown")

# What the gateway says in its own voice. `answer_not_kept` is not here: it speaks of another answer.
_PROBLEMS: dict[str, Verdict] = {
    "in_progress": _IN_DOUBT,
    "not_cancellable": _IN_DOUBT,
    "outcome_unknown": _IN_DOUBT,
    "upstream_unreachable": _NOTHING_DONE,
    "store_unavailable": _NOTHING_DONE,
    "authorization_unavailable": _NOTHING_DONE,
    "overloaded": _NOTHING_DONE,
    "rate_limited": _NOTHING_DONE,
    "too_many_keys": _NOTHING_DONE,
    "body_too_slow": _NOTHING_DONE,
    "not_started": Over("did_not_happen", "not_started"),
    "cancelled": Over("did_not_happen", "cancelled"),
    "upstream_failed": Over("unclear", "upstream_failed"),
    "key_reused": Over("refused", "key_reused"),
    "key_expired": Over("refused", "key_expired"),
    "key_missing": Over("refused", "key_missing"),
    "key_invalid": Over("refused", "key_invalid"),
    "request_invalid": Over("refused", "request_invalid"),
    "request_malformed": Over("refused", "request_malformed"),
    "scope_missing": Over("refused", "scope_missing"),
    "not_authorized": Over("refused", "not_authorized"),
    "too_large": Over("refused", "too_large"),
    "operation_not_found": Over("refused", "operation_not_found"),
}


def judge(answer: Answer) -> Verdict:
    """Judges an answer to the request itself."""
    code, said = _problem(answer)
    if code == "answer_not_kept":
        return _by_record(_status(said))
    if code in _PROBLEMS:
        return _at(_as_far_as_it_is_known(_PROBLEMS[code], said), answer)
    return _by_record(answer.status) if _is_kept(answer) else _by_status(answer)


def judge_poll(answer: Answer, location: str) -> Verdict:
    """Judges an answer to a question about accepted work. Unless it is the record's own, the request itself is the authority."""
    state = _operation_state(answer) if answer.status == 200 else None
    if state is None and _is_kept(answer):
        return judge(answer)
    is_later = answer.status in (202, 429) or answer.status >= 500
    if state in _UNDER_WAY or is_later:
        return Again(doubt=True, poll=location)
    return Again(doubt=True, at_once=True)


def told(answer: Answer) -> Answer:
    """What the caller is given: for an answer that was not kept, what is known of it."""
    code, said = _problem(answer)
    if code != "answer_not_kept":
        return answer
    location = said.get("answer_location")
    lines = [("location", location)] if isinstance(location, str) else []
    return Answer(_status(said), Headers(lines), None)


def is_replayed(answer: Answer) -> bool:
    """The answer comes from the record, not from an execution just now."""
    marks = ("idempotency-replayed", "idempotent-replayed")
    return any(answer.headers.get(mark) == "true" for mark in marks) or _problem(answer)[0] == "answer_not_kept"


def _is_kept(answer: Answer) -> bool:
    """The record vouches for it: this is the operation's one answer."""
    return is_replayed(answer) or "idempotency-expires" in answer.headers


def _as_far_as_it_is_known(verdict: Verdict, said: dict[str, Any]) -> Verdict:
    """Of accepted work that is over without an answer of the API's.

    If it was attempted, that it did nothing may be no more than the API's word on a 500, which is not taken for any other 500 either.
    """
    if isinstance(verdict, Again) or verdict.verdict != "did_not_happen" or said.get("attempted", False) is False:
        return verdict
    return Over("unclear", verdict.why)


def _by_record(status: int) -> Verdict:
    if 200 <= status < 400:
        return _HAPPENED
    if 400 <= status < 500:
        return Over("did_not_happen", "refused")
    return Over("unclear", "failed")


def _by_status(answer: Answer) -> Verdict:
    """Of an answer that no record vouches for: from the API, or from anybody on the way."""
    status = answer.status
    state = answer.headers.get("idempotency-state")
    # The API's own account, which may differ from what its status looks like.
    if state not in (None, "failed_retryable"):
        return _IN_DOUBT
    if state is not None and 200 <= status < 400:
        return _NOTHING_DONE
    if status == 202 and _operation_state(answer) in _UNDER_WAY:
        return _at(_IN_DOUBT, answer)
    if 200 <= status < 300:
        return _HAPPENED
    if 300 <= status < 400:
        return Over("unclear", "redirected")
    if status in (425, 429):
        return _NOTHING_DONE
    # Meant for a request that did not come in time; but many frameworks say it when a handler took too long.
    if status == 408:
        return _IN_DOUBT
    if 400 <= status < 500 or status in (501, 505):
        return Over("refused", "refused")
    return _IN_DOUBT


def _at(verdict: Verdict, answer: Answer) -> Verdict:
    """Work that was accepted says where to ask for it; where that was lost on the way, the request itself asks."""
    if not isinstance(verdict, Again) or answer.status != 202:
        return verdict
    return replace(verdict, poll=answer.headers.get("location"))


def _problem(answer: Answer) -> tuple[Optional[str], dict[str, Any]]:
    """A problem document of the gateway's, told by its type: an API may have problems of its own."""
    if not (answer.headers.get("content-type") or "").startswith("application/problem+json"):
        return None, {}
    document = _document(answer)
    kind = document.get("type")
    if not isinstance(kind, str) or not kind.startswith(_TYPE_BASE):
        return None, {}
    return kind[len(_TYPE_BASE) :], document


def _status(said: dict[str, Any]) -> int:
    status = said.get("answer_status")
    return status if isinstance(status, int) else 0


def _operation_state(answer: Answer) -> Optional[str]:
    """The state in the gateway's own words about an operation: its 202, or `GET /.oncegate/operations/{id}`."""
    document = _document(answer)
    state = document.get("state")
    is_operation = str(document.get("id")).startswith("op_")
    return state if is_operation and isinstance(state, str) else None


def _document(answer: Answer) -> dict[str, Any]:
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
