"""How long to wait before asking again. Pure: time and dice come in.

Never sooner than the server asks; on top of that capped exponential backoff with full jitter, so that those who were sent away together do
not come back together.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Optional

from .judge import Headers


@dataclass(frozen=True)
class Backoff:
    """Bounds of waiting, in seconds."""

    #: The first step of the ladder.
    backoff_s: float = 0.2
    #: Its last.
    backoff_max_s: float = 10.0
    #: What a server may ask for at most.
    retry_after_max_s: float = 60.0


def delay_s(attempts: int, headers: Optional[Headers], bounds: Backoff, now_s: float, dice: float) -> float:
    """The wait after so many attempts. `dice` is in [0, 1)."""
    step = min(bounds.backoff_max_s, bounds.backoff_s * 2.0 ** min(attempts - 1, 30))
    asked = retry_after_s(headers, now_s) if headers is not None else 0.0
    return min(asked, bounds.retry_after_max_s) + dice * step


def retry_after_s(headers: Headers, now_s: float) -> float:
    """`Retry-After` as seconds or as an HTTP date; 0 if there is none, or none that can be read."""
    value = (headers.get("retry-after") or "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    until = _date_s(value)
    if until is None:
        return 0.0
    # A date is by the clock of whoever wrote it, which also dated the answer.
    since = _date_s(headers.get("date") or "")
    return max(0.0, until - (now_s if since is None else since))


def _date_s(text: str) -> Optional[float]:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
