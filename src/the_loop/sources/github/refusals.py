"""Responses in which GitHub does not do what was requested: limits with their waits, and what it says about others.

Rule: GitHub REST documentation, "Best practices" and "Rate limits"; RFC 9110, section 10.2.3.
"""

from __future__ import annotations

import json
import re
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from the_loop.sources.base import Limited, Unanswered
from the_loop.sources.limits import RateLimiter

_LIMIT_WORDS: Final = ("rate limit", "abuse detection", "submitted too quickly", "too many requests")
_LIMIT_STATUSES: Final = (200, 403, 422, 429)
_LONGEST_WAIT_S: Final = 86_400.0
_SSO_URL: Final = re.compile(r"url=(https?://[!-~]{1,500}?)(?:[;,\s]|$)")


def check_limit(
    path: str, method: str, response: httpx2.Response, value: Any, *, date: float, limiter: RateLimiter
) -> None:
    """Raise Limited if the response is a rate limit in any of its forms, or a 5xx that names the time to wait.

    `date` is the server's time, in epoch seconds. Raises Unanswered for a 5xx to a POST: its outcome is unknown.
    """
    status = response.status_code
    wait_s = _refused_s(response, date) if status >= 500 else _limit_s(response, value, date, limiter)
    if wait_s is None:
        return
    wait_s = min(max(wait_s, 1.0), _LONGEST_WAIT_S)
    limiter.hold(wait_s)
    if status < 500:
        raise Limited(f"{path}: rate limit ({status})", wait_s)
    problem = f"{path}: the server asks for a pause ({status}) {message_of(value)}".rstrip()
    raise Limited(problem, wait_s) if method == "GET" else Unanswered(problem)


def _refused_s(response: httpx2.Response, date: float) -> float | None:
    """The wait of a 5xx. One that is over already is as good as none: the backoff applies."""
    wait_s = _seconds(response.headers.get("retry-after"), date)
    return wait_s if wait_s is not None and wait_s > 0 else None


def _limit_s(response: httpx2.Response, value: Any, date: float, limiter: RateLimiter) -> float | None:
    status, headers = response.status_code, response.headers
    says_so = isinstance(value, dict) and any(word in message_of(value).lower() for word in _LIMIT_WORDS)
    if status not in _LIMIT_STATUSES or (status in (200, 422) and not says_so):
        return None
    wait_s = _seconds(headers.get("retry-after"), date)
    if wait_s is None and headers.get("x-ratelimit-remaining") == "0":
        reset = number_of(headers.get("x-ratelimit-reset"))
        wait_s = None if reset is None else reset - date + 1
    if wait_s is None and (says_so or status == 429):
        wait_s = limiter.guess_s()
    return wait_s


def message_of(value: Any) -> str:
    """GitHub's own words in an error, bounded; "" if there are none."""
    if not isinstance(value, dict):
        return ""
    try:
        errors = json.dumps(value["errors"])[:200] if value.get("errors") else ""
    except RecursionError:
        errors = ""
    return f"{str(value.get('message', ''))[:300]} {errors}".strip()


def sso_hint(response: httpx2.Response) -> str:
    """Where the token can be authorized for an organization with single sign-on; "" if that is not the cause."""
    found = _SSO_URL.search(response.headers.get("x-github-sso", ""))
    return f"authorize the token for single sign-on at {found[1]}" if found else ""


def _seconds(text: str | None, date: float) -> float | None:
    """The wait of a Retry-After header in seconds, which may be a number or a date."""
    seconds = number_of(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return parsedate_to_datetime(text).timestamp() - date
    except (ValueError, TypeError, OverflowError):
        return None


def number_of(text: str | None) -> float | None:
    """The number in a header; None if it is missing or malformed."""
    return float(text) if text is not None and text.isascii() and text.strip().isdigit() else None
