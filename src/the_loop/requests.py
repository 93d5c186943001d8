"""Requests of commands to the running poller: what each verb of the control socket does.

The handlers wait for nothing but the end of a session: each is one step of the event loop, between two steps of cycles
and deliveries. What they change takes effect at once: the item is offered, and its source is polled now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from the_loop.authors import decide_author
from the_loop.core.model import LoopError, Note
from the_loop.overrides import Overrides, carry_out, text_of
from the_loop.runners.base import Sessions

_MOST_NAMED: Final = 50


class UnknownSource(LoopError):
    exit_code = 2


class WillNotCycle(LoopError):
    """This poller makes no further cycle."""

    exit_code = 3


class Named(Protocol):
    """What is asked of a source."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    def owns(self, ref: str) -> bool:
        """True if the item is one of this source's."""


class Requests:
    """The handlers of one poller.

    `sources` are those in force. `wake` starts a cycle of one source, or of all for None, and says whether it could:
    None stands for a poller that makes a single cycle. `offer` hands over what is due of an item.
    """

    def __init__(
        self,
        overrides: Overrides,
        authors: Path,
        *,
        sources: Callable[[], Iterable[Named]],
        wake: Callable[[str | None], bool] | None,
        offer: Callable[[str], None],
        tell: Callable[[Note], None],
        sessions: Callable[[], Sessions | None] = lambda: None,
        deferred: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._overrides = overrides
        self._authors = authors
        self._sources = sources
        self._wake = wake
        self._offer = offer
        self._tell = tell
        self._sessions = sessions
        self._deferred = deferred

    def verbs(self) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]]:
        """The handlers by verb; each returns its answer, or raises LoopError."""
        own = {"wake": self.wake, "author": self.author}
        own |= {"close": self.close, "deliver": self.deliver}
        return {**own, "retry": self.retry, "settle": self.settle, "reset": self.reset}

    async def wake(self, request: Mapping[str, Any]) -> dict[str, Any]:
        source = request.get("source")
        names = sorted(one.name for one in self._sources())
        if source is not None and source not in names:
            known = ", ".join(f"'{name}'" for name in names)
            raise UnknownSource(f"cannot wake '{source}': no such source", f"the sources are {known}")
        if self._wake is None:
            raise WillNotCycle("cannot wake the poller: it makes one cycle and ends (--once)")
        if not self._wake(source):
            raise LoopError(f"cannot wake '{source}': it is not polled now", "see `the-loop poll status`")
        return {"woken": names if source is None else [source]}

    async def author(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Decide about a login that changed hands; its items are read again by a cycle of their source."""
        login = text_of(request, "login")
        items = decide_author(self._authors, login, accepts=request.get("accepts") is True)
        for owner in {one.name for one in self._sources() if any(map(one.owns, items))}:
            if self._wake is not None:
                self._wake(owner)
        return _short({"login": login, "items": items})

    async def close(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """End the session of an item; the next event of the item starts it again. Waits for its end."""
        ref = text_of(request, "ref")
        if not await self._kept().end(ref):
            raise no_session("close", ref)
        return {"ref": ref, "closed": True}

    async def deliver(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Give a session the event that waits for its terminal, now."""
        ref = text_of(request, "ref")
        sessions, key = self._kept(), self._deferred(ref)
        if key is None:
            raise LoopError(f"cannot deliver to '{ref}': nothing waits for its terminal", "see `the-loop poll status`")
        sessions.insist(ref)
        self._offer(ref)
        return {"ref": ref, "key": key}

    def _kept(self) -> Sessions:
        if (sessions := self._sessions()) is None:
            raise LoopError("this poller keeps no sessions", "they are those of `session.runner: tmux`")
        return sessions

    async def retry(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = carry_out(self._overrides, "retry", request)
        for key in answer["retried"]:
            self._tell(Note("poll.rearmed", {"ref": answer["ref"], "key": key, "reason": "as the operator asked"}))
        return self._in_effect(answer)

    async def settle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = carry_out(self._overrides, "settle", request)
        self._tell(Note("dispatch.dropped", {"ref": answer["ref"], "key": answer["settled"], "reason": "settled"}))
        return self._in_effect(answer)

    async def reset(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._in_effect(carry_out(self._overrides, "reset", request))

    def _in_effect(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Hand over what may go now; a spawn is built anew in a cycle of its source, which also shows in the status."""
        ref: str = answer["ref"]
        self._offer(ref)
        owner = next((one.name for one in self._sources() if one.owns(ref)), None)
        if owner is not None and self._wake is not None:
            self._wake(owner)
        return _short(answer)


def no_session(what: str, ref: str) -> LoopError:
    return LoopError(f"cannot {what} the session of '{ref}': it has none", "see `the-loop sessions list`")


def _short(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with long lists cut, so that it fits into a line; `more` counts what is left out."""
    cut = {name: value[:_MOST_NAMED] for name, value in answer.items() if isinstance(value, list)}
    more = sum(len(answer[name]) - len(kept) for name, kept in cut.items())
    return {**answer, **cut, "more": more} if more else answer
