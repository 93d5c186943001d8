"""What the doctor makes of GitHub's answers: findings from values, without asking anything."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from the_loop.core.model import explain, span
from the_loop.findings import Finding, Site, fail, ok, unknown, warn
from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Answer
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.token import VARIABLES

_CLOCK_S: Final = 30.0
_EXPIRES_S: Final = 14 * 86_400.0
_LAST: Final = re.compile(r"[?&]page=(\d+)[^>]*>; *rel=\"last\"")


def of_token(answer: Answer, place: str, now_s: float) -> Finding:
    """The answer to `/user`."""
    if answer.status != 200 or not isinstance(answer.value, dict):
        return fail("token", f"this is not the address of a GitHub API ({answer.status}); check `apiUrl`")
    scopes = scopes_of(answer)
    rights = "fine-grained" if scopes is None else f"scopes: {', '.join(sorted(scopes)) or 'none'}"
    detail = f"of {answer.value.get('login')}, from {place}, {rights}"
    ends_s = _ends_s(answer.headers)
    if ends_s is not None and ends_s - now_s < _EXPIRES_S:
        return warn("token", f"{detail}; it expires in {span(ends_s - now_s)}")
    return ok("token", detail)


def of_clock(answer: Answer, began_s: float, now_s: float) -> Finding:
    """The server's time against ours, half a request ago."""
    if "date" not in answer.headers:
        return unknown("clock", "the server does not tell its time", matters=False)
    ahead_s = (began_s + now_s) / 2 - answer.date
    if abs(ahead_s) > _CLOCK_S:
        which = "ahead of" if ahead_s > 0 else "behind"
        return warn("clock", f"{abs(ahead_s):.0f} s {which} the server's", "timedatectl set-ntp true")
    return ok("clock", "as the server's")


def of_person(login: str, number: object, pinned: int | None, *, is_by_hand: bool = False) -> Finding:
    """An account that exists. `is_by_hand`: the configuration pins the login to `pinned`, not an earlier poll."""
    what = f"user {login}"
    if pinned is not None and number != pinned:
        if is_by_hand:
            return fail(what, f"the login belongs to account {number}, and `authorizedUsers` has '{login}#{pinned}'")
        detail = f"the login belongs to account {number} now, and to {pinned} before: its words wait for your decision"
        return fail(what, detail, f"the-loop authors accept {login}")
    return ok(what, f"account {number}")


def of_no_answer(section: GithubSection, error: Exception) -> Finding:
    detail = f"cannot be reached: {told(error)}"
    return fail("server", detail, f"curl -sS -m 5 -o /dev/null -w '%{{http_code}}\\n' {shlex.quote(section.api_url)}")


def of_anonymous(site: Site) -> Finding:
    """No token at all: public repositories only."""
    here = next((name for name in VARIABLES if site.shell.get(name)), "")
    elsewhere = f" (${here} is set in this shell, not for the poller)" if here and not site.environ.get(here) else ""
    detail = f"none{elsewhere}: GitHub is asked anonymously, public repositories only, 60 requests per hour"
    if site.config is None:
        return warn("token", f"{detail}; set `tokenFile`")
    file = site.config.with_name("token")
    owner = "" if os.access(file.parent, os.W_OK) else f"-o {site.user} "
    make = f"{'sudo ' if owner else ''}install -m 0600 {owner}/dev/stdin {shlex.quote(str(file))}"
    return warn("token", f"{detail}; write it into a file, and set `tokenFile: {file}`", make)


def scopes_of(answer: Answer) -> frozenset[str] | None:
    """What a classic token may do; None for others, which do not say."""
    told = answer.headers.get("x-oauth-scopes")
    return None if told is None else frozenset(part for one in told.split(",") if (part := one.strip()))


def _ends_s(headers: Mapping[str, str]) -> float | None:
    """When the token expires, epoch seconds: `2026-12-24 12:00:00 UTC`."""
    text = headers.get("github-authentication-token-expiration", "").removesuffix(" UTC")
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def count_of(answer: Answer) -> int | None:
    """How many rows a list in pages of one has; None if it is not a list."""
    last = _LAST.search(answer.headers.get("link", ""))
    if last is not None:
        return int(last[1])
    return len(answer.value) if isinstance(answer.value, list) else None


def of_moved(name: str, answer: Answer) -> Finding:
    return warn(name, f"it has another name now (it is at {answer.moved.partition('?')[0]}); correct it in `repos`")


def web_of(section: GithubSection) -> str:
    """Where people find this GitHub."""
    parts = urlsplit(section.api_url)
    return "https://github.com" if parts.hostname == "api.github.com" else f"{parts.scheme}://{parts.netloc}"


def told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.problem if isinstance(error, SourceError) else explain(error)
