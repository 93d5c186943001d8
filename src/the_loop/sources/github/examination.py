"""What must hold for a source on GitHub: its token and each right it needs, repositories, label, people, clock.

Only GET requests, and few: two for each repository, one for each person, one for the token.
"""

from __future__ import annotations

import asyncio
import difflib
import shlex
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from the_loop.authors import AuthorsUnusable, read_authors
from the_loop.config import login_and_id
from the_loop.core.model import span
from the_loop.findings import Finding, Site, State, fail, ok, unknown, warn
from the_loop.sources.base import Limited, SourceError, Unanswered
from the_loop.sources.github.client import Answer, Client, Rejected
from the_loop.sources.github.listing import has_label
from the_loop.sources.github.section import GithubSection
from the_loop.sources.github.token import VARIABLES
from the_loop.sources.github.verdicts import (
    count_of,
    of_anonymous,
    of_clock,
    of_moved,
    of_no_answer,
    of_person,
    of_token,
    scopes_of,
    told,
    web_of,
)
from the_loop.sources.tokens import Token, exposure, token_path
from the_loop.state import StateRoot

_REQUEST_S: Final = 5.0
_RESERVED_S: Final = 1.0  # of the whole time, to tell what was not asked
_FEW: Final = 0.2  # of the hour's requests


def examine(section: GithubSection, site: Site) -> Iterator[Finding]:
    token = Token(section, site.environ, VARIABLES)
    client = Client(section.api_url, token, now=time.time, api_version=section.api_version)
    loop = asyncio.new_event_loop()
    try:
        yield from _Examination(section, site, token, client, loop).findings()
    finally:
        with suppress(Exception):
            loop.run_until_complete(client.close())
        loop.close()  # does not wait for a name server


@dataclass(slots=True)
class _Examination:
    section: GithubSection
    site: Site
    token: Token
    client: Client
    loop: asyncio.AbstractEventLoop
    until_s: float = 0.0
    first: tuple[Answer, float, float] | None = None  # answer, and between which moments, epoch seconds

    def findings(self) -> Iterator[Finding]:
        self.until_s = time.monotonic() + self.site.limit_s - _RESERVED_S
        if self.section.credential and self.site.edit and not self.site.environ.get("CREDENTIALS_DIRECTORY"):
            detail = f"the credential '{self.section.credential}' can be read only while the unit runs with it"
            yield unknown("token", f"{detail}; it needs `LoadCredential=`", self.site.edit)
            return
        try:
            place = self._place()
            self._run(self.token.renew())
            value = self.token()
        except (SourceError, TimeoutError) as error:
            yield fail("token", told(error))
            return
        yield from self._exposed()
        scopes: frozenset[str] | None = None
        if value is None:
            yield of_anonymous(self.site)
        else:
            try:
                answer = self._run(self._get("/user"))
                finding = of_token(answer, place, time.time())
                yield finding
                if finding.state is State.FAIL:
                    return
                scopes = scopes_of(answer)
            except Rejected as error:
                yield fail("token", f"GitHub rejects the one from {place} (401): {error.hint}")
                return
            except Limited as error:
                yield unknown("rate limit", f"used up for another {span(error.wait_s)}, nothing more was asked")
                return
            except (Unanswered, TimeoutError) as error:
                yield of_no_answer(self.section, error)
                return
            except SourceError:  # an installation of an app has no user
                detail = f"of {place}; it does not say whose it is, as those of an app"
                yield unknown("token", detail, matters=False)
        yield from self._several([self._repository(name, scopes) for name in self.section.repos], "repositories")
        yield from self._several([self._person(name) for name in sorted(self.site.authorized)], "users")
        yield from self._limit()
        if self.first is not None:
            yield of_clock(*self.first)

    # --- the token ---

    def _place(self) -> str:
        """Where the token comes from, in words. Raises SourceError."""
        if self.section.token_command:
            return f"`{shlex.join(self.section.token_command)}`"
        path = token_path(self.section, self.site.environ)
        if path is not None and self.site.hides(path):
            raise SourceError(f"the service does not see '{path}'; move it below /etc/the-loop, or use `credential`")
        if path is not None:
            return f"'{path}'"
        return next((f"${name}" for name in VARIABLES if self.site.environ.get(name)), "nowhere")

    def _exposed(self) -> Iterator[Finding]:
        path = token_path(self.section, self.site.environ)
        if path is None or path.parent == Path(self.site.environ.get("CREDENTIALS_DIRECTORY", "")):
            return
        if problem := exposure(path):
            yield warn("token", problem.partition(" (run ")[0], f"chmod 600 {shlex.quote(str(path))}")

    # --- repositories ---

    async def _repository(self, name: str, scopes: frozenset[str] | None) -> list[Finding]:
        """Whether it is there, may be read and written, and has the label."""
        try:
            label = quote(self.section.label, safe="")
            answer = await self._get(f"/repos/{name}/issues?labels={label}&state=open&per_page=1")
            if answer.status != 200:
                return [await self._unreadable(name, answer.status)]
            found = [of_moved(name, answer) if answer.moved else ok(name, "its issues can be read")]
            if self.section.monitor.pull_requests:
                found.extend(await self._pulls(name))
            found.append(await self._label(name, count_of(answer)))
            if self.site.is_written_to:
                found.append(await self._writing(name, scopes))
        except (Limited, Unanswered, TimeoutError) as error:
            return [unknown(name, told(error))]
        except SourceError as error:
            return [fail(name, str(error))]
        return found

    async def _unreadable(self, name: str, status: int) -> Finding:
        where = web_of(self.section)
        if status == 410:
            return fail(name, f"its issues are switched off (410), see {where}/{name}/settings")
        if (await self._get(f"/repos/{name}")).status == 200:
            return fail(name, f"the token may not read its issues: give it 'Issues: read' at {where}/settings/tokens")
        if self.token() is None:
            return fail(name, "not found (404): the name is wrong, or it is private and no token was sent")
        access = f"the token has no access to it (see {where}/settings/tokens)"
        return fail(name, f"not found (404): the name is wrong, or {access}")

    async def _pulls(self, name: str) -> list[Finding]:
        try:
            answer = await self._get(f"/repos/{name}/pulls/comments?per_page=1")
        except SourceError as error:
            if isinstance(error, Limited | Unanswered):
                raise
            answer = Answer(403)
        if answer.status == 200:
            return []
        right = f"give it 'Pull requests: read' at {web_of(self.section)}/settings/tokens"
        detail = f"the token may not read its pull requests: {right}, or set `monitor.pullRequests: false`"
        return [fail(name, detail)]

    async def _label(self, name: str, count: int | None) -> Finding:
        label = self.section.label
        if count:
            items = "1 open item" if count == 1 else f"{count} open items"
            return ok(f"{name}, label '{label}'", f"on {items}")
        if await has_label(self.client, self.section, name):
            return ok(f"{name}, label '{label}'", "exists, on no open item")
        others = await self._get(f"/repos/{name}/labels?per_page=100")
        names = [one.get("name") for one in others.value or () if isinstance(one, dict)] if others.status == 200 else []
        meant = difflib.get_close_matches(label.lower(), {str(one).lower(): one for one in names}, n=1)
        hint = f"; did you mean '{next(one for one in names if str(one).lower() == meant[0])}'?" if meant else ""
        make = f"correct `label`, or create it at {web_of(self.section)}/{name}/labels"
        return fail(f"{name}, label '{label}'", f"there is no such label{hint}; {make}")

    async def _writing(self, name: str, scopes: frozenset[str] | None) -> Finding:
        """Whether a give-up can be reported (`polling.reportGiveUps`). Nothing is written to find out."""
        what = f"{name}, comments"
        if self.token() is None:
            return fail(what, "`polling.reportGiveUps` needs a token, anonymous requests may not write")
        if scopes is None:
            detail = "the token does not say whether it may write; it needs 'Issues: read and write'"
            return unknown(what, detail, matters=False)
        is_public = "public_repo" in scopes and not ((await self._get(f"/repos/{name}")).value or {}).get("private")
        if "repo" in scopes or is_public:
            return ok(what, "the token may write them")
        right = f"give it the scope `repo` at {web_of(self.section)}/settings/tokens"
        return fail(what, f"the token may not write them, which `polling.reportGiveUps` needs: {right}")

    # --- people ---

    async def _person(self, name: str) -> list[Finding]:
        login, pinned = login_and_id(name)
        what = f"user {login}"
        try:
            answer = await self._get(f"/users/{quote(login, safe='')}")
        except (SourceError, TimeoutError) as error:
            return [unknown(what, told(error))]
        if answer.status != 200 or not isinstance(answer.value, dict):
            return [fail(what, "there is no such account, so nothing of it is ever delivered; correct the login")]
        return [of_person(login, answer.value.get("id"), pinned or self._pin(login), is_by_hand=pinned is not None)]

    def _pin(self, login: str) -> int | None:
        """The account that this login was pinned to when it was first met."""
        with suppress(AuthorsUnusable):  # said by `poll status`
            hosts = read_authors(StateRoot(self.site.root).authors).get("hosts", {})
            number = hosts.get(self.section.host, {}).get("logins", {}).get(login.casefold(), {}).get("id")
            return number if isinstance(number, int) else None
        return None

    # --- asking ---

    def _limit(self) -> Iterator[Finding]:
        usage = self.client.usage()
        if usage.points_left is None or not usage.points_limit:
            return
        detail = f"{usage.points_left:.0f} of {usage.points_limit:.0f} requests left in this hour"
        few = usage.points_left < _FEW * usage.points_limit
        yield warn("rate limit", f"only {detail}; new items wait") if few else ok("rate limit", detail)

    def _several(self, asked: Sequence[Coroutine[Any, Any, list[Finding]]], what: str) -> Iterator[Finding]:
        """The findings of several at once, in their order, of as many as there is time for."""
        if not asked:
            return
        tasks = [self.loop.create_task(one) for one in asked]
        left_s = max(0.0, self.until_s - time.monotonic())
        self.loop.run_until_complete(asyncio.wait(tasks, timeout=left_s))
        for task in tasks:
            if task.done():
                yield from task.result()
        open_ones = [task for task in tasks if not task.done()]
        for task in open_ones:
            task.cancel()
        if open_ones:
            self.loop.run_until_complete(asyncio.gather(*open_ones, return_exceptions=True))
            yield unknown(what, f"{len(open_ones)} of {len(tasks)} had no answer in time")

    async def _get(self, path: str) -> Answer:
        """Raises SourceError, TimeoutError."""
        began_s = time.time()
        async with asyncio.timeout(_REQUEST_S):
            answer = await self.client.get(path)
        self.first = self.first or (answer, began_s, time.time())
        return answer

    def _run(self, asked: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(max(0.0, self.until_s - time.monotonic())):
                return await asked

        return self.loop.run_until_complete(bounded())
