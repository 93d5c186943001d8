"""The `tmux` runner: one terminal session for each item, which is told of each event.

An event is typed by one call of the tmux client, which looks at the pane once more, pastes, and notes in the session
what it pasted. Then, once the program has read that, Enter; and once it has read Enter, too, it is delivered.
docs/development/tmux.md has the table of what each crash leaves.

The start mark is written before that call, and names the text (a number that was never used), the session and the
program. What became of the offer is read from the mark and the session together:

    no mark                                              never begun
    the lock is held                                     the call is in flight: accepted
    the session notes this text, its program lives       running, until the text and Enter are read: then delivered
    the program, its session or the server is gone       unknown
    the session does not note this text                  never begun, once its gate was changed: a call that was
                                                         late finds another gate, and does nothing
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from the_loop.backoff import growing
from the_loop.core.model import Kind, Note, Outcome, Verdict, explain
from the_loop.deliveries import DeliveryRuns, beside, claim, is_locked, outcome_of, remove_old_marks
from the_loop.durable import read_json_object, to_json_bytes, write_durably
from the_loop.processes import Identity, boot_id, identity_of, pinned
from the_loop.runners.base import NotNow, Offer, Status, Trace
from the_loop.runners.pane import Look, harmless, is_bare_shell, one_line, unframed, why_busy
from the_loop.runners.prompts import Prompts
from the_loop.runners.tmux_server import CannotStart, Server, is_alive
from the_loop.runners.tmux_session import (
    Program,
    Session,
    State,
    leader_of,
    missing,
    new_number,
    session_name,
    unread,
    used_ticks,
)
from the_loop.runners.tmux_store import Handle, Store

ENTER_S: Final = 0.1  # between the text and Enter: programs take a faster one for a part of the paste
_TWICE_S: Final = 0.05  # between two looks at an empty input queue
_WAITS_S: Final = (0.005, 0.25)
_ASK_S: Final = 2.0  # between two questions about a program that does not read
_SLOW_S: Final = 5.0  # after which a text that is not read takes no slot from others
_READY_S: Final = 30.0
_STEADY_S: Final = 0.25  # for so long a starting program shows the same
_STEADY_LINES_S: Final = 2.0  # the same for one that leaves the terminal in line mode, as all do at first
_LOOK_S: Final = 0.08
_TRIES: Final = 5
_RESUMES: Final = 3  # in a row
_ENDED: Final = "the program of the session ended"
_END_S: Final = 5.0  # between the hang-up and KILL


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator wrote. `resume`: the program after one that ended, if it is another."""

    first: Program
    resume: Program | None = None
    prompts: Prompts = field(default_factory=Prompts)
    busy: re.Pattern[str] | None = None
    keeps: bool = False
    limit_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Mark:
    """The start mark of an offer. `text` is empty for a mark that says nothing (power cut)."""

    offer: int
    text: str
    session: str
    place: str
    at: float  # epoch seconds

    @property
    def server(self) -> str:
        return self.place.partition("/")[0]

    @property
    def home(self) -> str:
        """Server and pane: while they are there, they know what was typed."""
        return self.place.rpartition("/")[0]


class Held(Exception):
    """The program ended too often: a person is to look at it."""


class TmuxRunner:
    """Satisfies `runners.base.Runner` and `runners.base.Sessions`."""

    keeps_sessions = True

    def __init__(self, server: Server, store: Store, settings: Settings, tell: Callable[[Note], object]) -> None:
        self._server = server
        self._store = store
        self._settings = settings
        self._tell = tell
        self._turns: dict[str, asyncio.Lock] = {}
        self._insisted: set[str] = set()  # items whose next event is typed whatever the terminal shows
        self._typed: set[str] = set()  # numbers of texts that this process saw in their sessions

    async def deliver(self, offer: Offer) -> Outcome:
        async with self._turn(offer.ref):
            payload = _payload(offer)
            if isinstance(payload, Outcome):
                return payload
            if (await self._status(offer)).trace is not Trace.NEVER_BEGUN:
                return await self.adopt(offer)
            try:
                return await self._begin(offer, payload)
            except CannotStart as error:
                return Outcome(Verdict.UNSTARTABLE, str(error))
            except Held as error:
                return self._recorded(offer, Outcome(Verdict.HELD, str(error)))

    async def adopt(self, offer: Offer) -> Outcome:
        waits_s, slow_at = growing(*_WAITS_S), time.monotonic() + _SLOW_S
        while (status := await self._status(offer)).trace.is_under_way:
            mark = _mark(offer.stem)
            if mark is None or mark.offer != offer.number or is_locked(offer.stem):
                if time.monotonic() > slow_at:
                    raise NotNow("the tmux server does not answer")
                await asyncio.sleep(next(waits_s))
            elif (outcome := await self._seen_through(offer, mark)) is not None:
                return outcome
        if status.outcome is not None:
            return status.outcome
        if status.trace is Trace.NEVER_BEGUN:
            return Outcome(Verdict.NEVER_BEGUN)
        return self._gone(offer)

    def inspect(self, offer: Offer) -> Status:
        status = self._by_files(offer)
        if isinstance(status, Status):
            return status
        mark = status
        session = Session(self._server, mark.session)
        state = session.state_blocking() if is_alive(mark.server) else None
        trace = _trace(mark, state)
        if trace is None and state is not None:
            with _claimed_now(offer.stem) as is_ours:
                if not is_ours:
                    return Status(Trace.ACCEPTED)
                trace = _trace(mark, session.shut_blocking(state))
                if trace is None:
                    self._take_back(offer.stem)
        return self._judged(offer, mark, trace or Trace.NEVER_BEGUN)

    async def close(self) -> None:
        self._server.close()

    def place(self, _offer: Offer) -> str:
        """The unit that all sessions are in."""
        return self._server.unit() or ""

    # --- what is known ---

    async def _status(self, offer: Offer) -> Status:
        """As `inspect`, without holding up the event loop while the server answers."""
        status = self._by_files(offer)
        if isinstance(status, Status):
            return status
        mark = status
        state = await Session(self._server, mark.session).state() if is_alive(mark.server) else None
        trace = _trace(mark, state)
        return self.inspect(offer) if trace is None else self._judged(offer, mark, trace)

    def _by_files(self, offer: Offer) -> Status | Mark:
        """What lock and marks tell; the mark, if its session is to be asked."""
        # NB: the lock is asked before the marks are read, else a call could begin, or end, in between
        is_held = is_locked(offer.stem)
        outcome = outcome_of(offer.stem, offer.number)
        if outcome is not None:
            return Status(Trace.DONE, outcome)
        mark = _mark(offer.stem)
        if is_held:
            return Status(Trace.ACCEPTED)
        if mark is None:
            return Status(Trace.NEVER_BEGUN)
        if not mark.text:
            return Status(Trace.UNKNOWN if mark.offer in (offer.number, -1) else Trace.NEVER_BEGUN)
        if mark.offer != offer.number and outcome_of(offer.stem, mark.offer) is not None:
            return Status(Trace.NEVER_BEGUN)
        if mark.text in self._typed and mark.offer == offer.number:
            return Status(Trace.RUNNING)
        return mark

    def _judged(self, offer: Offer, mark: Mark, trace: Trace) -> Status:
        """What the trace of the marked offer says of this one, which may be another."""
        if mark.offer == offer.number:
            return Status(trace)
        return Status(Trace.ACCEPTED if trace.is_under_way else Trace.NEVER_BEGUN)

    # --- beginning ---

    async def _begin(self, offer: Offer, payload: Mapping[str, Any]) -> Outcome:
        """Type it, and see it through. Raises CannotStart, Held, NotNow: nothing was begun then."""
        is_close = payload.get("kind") == Kind.CLOSE
        text = self._settings.prompts.text(payload)
        session = Session(self._server, session_name(offer.ref))
        try:
            if is_close and (not text or await session.state() is None):
                return await self._close_session(offer)
            if not text:
                return self._delivered(offer, payload)
            for _ in range(_TRIES):
                state, look = await self._ready(session, offer, payload)
                content = await self._content(session, state, look, text, offer.stem.name)
                if (begun := await self._type(session, state, look, offer, content)) is not None:
                    return await self.adopt(offer) if begun else Outcome(Verdict.NEVER_BEGUN, "it was withdrawn")
        except OSError as error:
            if self._has_begun(offer):
                return await self.adopt(offer)  # or it may have
            raise CannotStart(explain(error)) from error
        raise NotNow("the terminal changes all the time")

    async def _type(self, session: Session, state: State, look: Look, offer: Offer, content: bytes) -> bool | None:
        """True once it is typed; None if the pane changed meanwhile, False if it is not to be typed any more."""
        number = new_number()
        async with _claimed(offer.stem) as lock_fd:
            if self._has_begun(offer):
                return True  # by another of us
            if isinstance(_payload(offer), Outcome):
                return False
            remove_old_marks(offer.stem, offer.number)
            self._write_mark(offer, Mark(offer.number, number, session.name, state.place, time.time()))
            label = f"{offer.delivery_id}#{offer.number}"
            after = await session.paste(state, number, content, look, label=label, lock_fd=lock_fd)
            if after is not None and after.typed == number:
                self._typed.add(number)
                self._insisted.discard(offer.ref)
                return True
            self._take_back(offer.stem)
            return None

    def _has_begun(self, offer: Offer) -> bool:
        """True if it left a mark. Raises OSError."""
        mark = _mark(offer.stem)
        is_marked = mark is not None and mark.offer in (offer.number, -1)
        return is_marked or outcome_of(offer.stem, offer.number) is not None

    def _write_mark(self, offer: Offer, mark: Mark) -> None:
        numbers = {"schema": 1, "offer": mark.offer, "attempt": offer.attempt, "at": int(mark.at)}
        named = {"text": mark.text, "session": mark.session, "place": mark.place}
        # NB: whole or not at all. An empty one, of a poller that was killed, would say that nothing is known
        write_durably(beside(offer.stem, "started.json"), to_json_bytes({**numbers, **named}))

    def _take_back(self, stem: Path) -> None:
        """Nothing was begun, and nothing will be: its mark says nothing any more."""
        beside(stem, "started.json").unlink(missing_ok=True)

    async def _content(self, session: Session, state: State, look: Look, text: str, name: str) -> bytes:
        """The bytes to paste. A program that reads lines gets one: the text, or where it is to be read.

        One that does not know where a paste ends gets no carriage returns, which would be Enter. Raises OSError.
        """
        safe = harmless(text)
        if not look.reads_lines:
            is_safe = "\r" not in safe or await session.takes_pastes(state)
            return (safe if is_safe else unframed(safe)).encode()
        line = one_line(safe)
        if line is None:
            path = self._store.keep_text(name, safe)
            head = safe.split("\n", 1)[0].strip()[:200]
            line = f"{head} (the whole text is in {path})"
        return unframed(line).encode()

    async def _ready(self, session: Session, offer: Offer, payload: Mapping[str, Any]) -> tuple[State, Look]:
        """The session, with a program that waits for a text. Raises CannotStart, Held, NotNow, OSError."""
        if (seen := await self._seen_ready(session, offer.ref)) is not None:
            return seen
        state = await self._running(session, offer, payload)
        if state.typed != state.submitted:
            await self._read(session, state.typed, state.place)
            state = await self._expected(session)
        state, look = await self._waits_for_text(session, state.pane, offer.ref)
        text = self._settings.prompts.resumed(payload, self._store.told(offer.ref)) if state.needs_thread else ""
        if text:
            number = new_number()
            content = await self._content(session, state, look, text, f"{session.name}-thread")
            after = await session.paste(state, number, content, look, label=None)
            if after is None or after.typed != number or not await self._read(session, number, after.place):
                raise NotNow("the session is starting")
            state, look = await self._waits_for_text(session, state.pane, offer.ref)
        return state, look

    async def _seen_ready(self, session: Session, ref: str) -> tuple[State, Look] | None:
        """The same by one look, as it is of most events; None where something else is to be done first."""
        handle = self._store.handle(ref)
        if handle is None or not handle.pane or ref in self._insisted:
            return None
        try:
            state, look = await session.look(handle.pane)
        except OSError:
            return None
        is_known = (state.server, state.pane, state.ready) == (handle.server, handle.pane, look.ready)
        is_free = not (state.is_dead or state.is_off or state.needs_thread) and state.typed == state.submitted
        return (state, look) if is_known and is_free and not why_busy(look, self._settings.busy) else None

    async def _expected(self, session: Session) -> State:
        state = await session.state()
        if state is None or state.is_dead:
            raise NotNow(_ENDED)
        return state

    async def _running(self, session: Session, offer: Offer, payload: Mapping[str, Any]) -> State:
        """The session with a program that runs: started, or started again. Raises CannotStart, Held."""
        state = await session.state()
        handle = self._store.handle(offer.ref)
        if state is not None and not state.is_dead:
            if handle is not None and handle.pane == state.pane and handle.server == state.server:
                return state
            self._note_session(offer, payload, session)
            self._note_place(offer.ref, state)
            return state
        told = bool(self._store.told(offer.ref))
        if handle is not None:
            self._count_resume(handle, state)
        program = (told and self._settings.resume) or self._settings.first
        if problem := missing(program):
            raise CannotStart(problem)
        self._note_session(offer, payload, session)
        if state is None:
            await self._server.start()
            await session.create(offer.ref, program, needs_thread=told)
        else:
            await session.restart(state, program, needs_thread=told)
        state = await self._expected(session)
        self._note_place(offer.ref, state)
        return state

    def _note_session(self, offer: Offer, payload: Mapping[str, Any], session: Session) -> None:
        """Have a handle of it."""
        if self._store.handle(offer.ref) is None:
            url, title = (str(payload.get(name) or "") for name in ("url", "title"))
            self._store.save(Handle(offer.ref, session.name, time.time(), url, title))

    def _count_resume(self, handle: Handle, state: State | None) -> None:
        """Count that its program is started again, before it is done; each end of a program once. Raises Held.

        A session that was never there is not started again, and a start that was cut off is the same one.
        """
        end = state.place if state is not None else handle.program
        if end in ("", handle.counted):
            return
        if handle.resumes >= _RESUMES:
            self._store.save(handle.changed(resumes=0, counted=end))
            raise Held(f"its program ended {_RESUMES} times in a row")
        self._store.save(handle.changed(resumes=handle.resumes + 1, counted=end))

    def _note_place(self, ref: str, state: State) -> None:
        handle = self._store.handle(ref)
        if handle is not None:
            program = f"{identity_of(state.pid) or state.pid}:{boot_id()}"
            place = {"socket": str(self._server.socket()), "server": state.server, "unit": self._server.unit()}
            self._store.save(handle.changed(program=program, pane=state.pane, **place))

    async def _waits_for_text(self, session: Session, pane: str, ref: str) -> tuple[State, Look]:
        """A look at a program that waits for a text. Raises NotNow, OSError."""
        state, look = await self._look(session, pane)
        if ref in self._insisted and not state.is_off:
            await session.leave_mode(state)
            return state, look
        if state.ready != look.ready and not is_bare_shell(look.foreground):
            state, look = await self._started(session, state, look)
        if state.is_off:
            raise NotNow("the terminal takes no input")
        if reason := why_busy(look, self._settings.busy):
            raise NotNow(reason)
        return state, look

    async def _look(self, session: Session, pane: str) -> tuple[State, Look]:
        """Raises NotNow where the program has ended meanwhile, OSError."""
        try:
            state, look = await session.look(pane)
        except OSError:
            await self._expected(session)
            raise
        if state.is_dead:
            raise NotNow(_ENDED)
        return state, look

    async def _started(self, session: Session, state: State, look: Look) -> tuple[State, Look]:
        """A look at a program that has started: it shows the same for a while.

        One that has left the terminal in line mode is given longer, and must not compute: it may be loading still.
        """
        until = time.monotonic() + _READY_S
        since, before = time.monotonic(), _shown(state, look)
        while True:
            await asyncio.sleep(_LOOK_S)
            state, look = await self._look(session, state.pane)
            if (now := _shown(state, look)) != before:
                since, before = time.monotonic(), now
            is_steady = time.monotonic() - since >= (_STEADY_LINES_S if look.reads_lines else _STEADY_S)
            if is_steady or time.monotonic() > until:  # some show a clock
                return state, look

    # --- seeing it through ---

    async def _seen_through(self, offer: Offer, mark: Mark) -> Outcome | None:
        """Have the text read and submitted, and record what became of it; None if its files changed meanwhile."""
        session = Session(self._server, mark.session)
        payload = _payload(offer)
        kind = "" if isinstance(payload, Outcome) else str(payload.get("kind"))
        is_read = await self._read(session, mark.text, mark.place)
        self._typed.discard(mark.text)
        if _mark(offer.stem) != mark:
            return None
        if kind == Kind.CLOSE:
            if is_read:
                await self._until_it_ends(session, mark)
            return await self._close_session(offer)
        if not is_read:
            return self._gone(offer)
        return self._delivered(offer, {} if isinstance(payload, Outcome) else payload)

    async def _read(self, session: Session, text: str, place: str) -> bool:
        """True once the program has read this text, which was typed, and Enter; False if it is gone before that.

        Raises NotNow while it does not read for long, OSError.
        """
        slow_at = time.monotonic() + _SLOW_S
        waits_s = growing(*_WAITS_S)
        state: State | None = None
        asked_at = float("-inf")
        while True:
            if time.monotonic() - asked_at >= _ASK_S:
                state, asked_at = await session.state(), time.monotonic()
            if state is None or state.place != place or state.is_dead or state.typed != text:
                return False
            if await _is_unread(session, state):
                if time.monotonic() > slow_at:
                    raise NotNow("the program does not read what was typed")
                await asyncio.sleep(next(waits_s))
                continue
            if state.submitted != text:
                await self._submit(session, state, text)
                asked_at = float("-inf")
                continue
            await asyncio.sleep(_TWICE_S)
            again = await session.state()
            is_same = again is not None and again.place == place and not again.is_dead
            if is_same and not await _is_unread(session, state):
                return True
            asked_at = float("-inf")

    async def _submit(self, session: Session, state: State, text: str) -> None:
        """Press Enter, once nothing was typed for a while. Raises NotNow while keys are for something else."""
        await asyncio.sleep(ENTER_S)
        if state.mode or state.is_off:
            raise NotNow("the text is typed, and Enter has to wait: the terminal is in copy mode, or takes no input")
        if not await _is_unread(session, state):
            await session.submit(state, text)

    async def _until_it_ends(self, session: Session, mark: Mark) -> None:
        """Give a program that was told of the end its time."""
        until = mark.at + self._settings.limit_s
        while time.time() < until:
            state = await session.state()
            if state is None or state.is_dead or state.place != mark.place:
                return
            await asyncio.sleep(1.0)

    # --- recording ---

    def _delivered(self, offer: Offer, payload: Mapping[str, Any]) -> Outcome:
        self._store.tell(offer.ref, payload)
        handle = self._store.handle(offer.ref)
        if handle is not None:
            self._store.save(handle.changed(resumes=0, last=offer.delivery_id, last_at=time.time()))
        return self._recorded(offer, Outcome(Verdict.DELIVERED))

    def _gone(self, offer: Offer) -> Outcome:
        reason = "it was typed, and its session ended before it was read"
        return self._recorded(offer, Outcome(Verdict.UNKNOWN, reason))

    def _recorded(self, offer: Offer, outcome: Outcome) -> Outcome:
        """The outcome, once it is on disk."""
        mark = {"schema": 1, "offer": offer.number, "attempt": offer.attempt}
        content = {**mark, "outcome": str(outcome.verdict), "reason": outcome.reason}
        write_durably(beside(offer.stem, "outcome.json"), to_json_bytes(content))
        return outcome

    # --- the end ---

    async def _close_session(self, offer: Offer) -> Outcome:
        await self.end(offer.ref, keeps_told=False)
        return self._recorded(offer, Outcome(Verdict.DELIVERED))

    def insist(self, ref: str) -> None:
        """Give the session the next event of this item, whatever its terminal shows."""
        self._insisted.add(ref)

    async def end(self, ref: str, *, keeps_told: bool = True) -> bool:
        """End the session of this item; False if there was none. Raises OSError.

        With `keeps_told` the next event starts it again with what came before.
        """
        session = Session(self._server, session_name(ref))
        state = await session.state()
        if state is not None:
            program = None if state.is_dead else identity_of(state.pid)
            if self._settings.keeps:
                await self._hang_up(program)
                await session.rename(f"{session.name}-{new_number()}")
            else:
                await session.kill()
                await self._hang_up(program)
        self._store.forget(ref, keeps_told=keeps_told)
        return state is not None

    async def _hang_up(self, program: Identity | None) -> None:
        """Have the program end, within a bounded time."""
        if program is None:
            return
        for number, wait_s in ((signal.SIGHUP, _END_S), (signal.SIGKILL, 1.0)):
            with pinned(program) as pidfd:
                if pidfd is None:
                    return
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, number)
            await _until_gone(program, wait_s)

    @contextlib.asynccontextmanager
    async def _turn(self, ref: str) -> AsyncIterator[None]:
        """One at a time of each item."""
        lock = self._turns.setdefault(ref, asyncio.Lock())
        async with lock:
            yield


async def _until_gone(program: Identity, limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            for wait_s in growing(*_WAITS_S):
                if not is_alive(f"{program}:{boot_id()}"):
                    return
                await asyncio.sleep(wait_s)


def _payload(offer: Offer) -> dict[str, Any] | Outcome:
    """The payload of this offer; why there is none that can be delivered."""
    try:
        payload = read_json_object(beside(offer.stem, "payload.json"))
    except (OSError, ValueError) as error:
        return Outcome(Verdict.UNSTARTABLE, f"cannot read its payload: {explain(error)}")
    if payload.get("offer") != offer.number:
        return Outcome(Verdict.UNSTARTABLE, "its payload is of another offer")
    return payload


def _mark(stem: Path) -> Mark | None:
    """The start mark; one that says nothing is of offer -1. Raises OSError."""
    try:
        said = read_json_object(beside(stem, "started.json"))
    except FileNotFoundError:
        return None
    except ValueError:
        said = {}
    offer = said.get("offer")
    text, session, place = (str(said.get(name, "")) for name in ("text", "session", "place"))
    is_whole = isinstance(offer, int) and text and session and place
    return Mark(offer if isinstance(offer, int) else -1, text if is_whole else "", session, place, said.get("at", 0))


def _trace(mark: Mark, state: State | None) -> Trace | None:
    """What the session says of the offer that left this mark; None if it was not typed so far."""
    if state is None or state.home != mark.home:
        return Trace.UNKNOWN
    if state.typed != mark.text:
        return None
    return Trace.RUNNING if state.place == mark.place and not state.is_dead else Trace.UNKNOWN


def _shown(state: State, look: Look) -> tuple[object, ...]:
    """What changes while a program starts."""
    return (look.screen, look.reads_lines, used_ticks(leader_of(state.pid)) if look.reads_lines else 0)


async def _is_unread(session: Session, state: State) -> bool:
    """True while there is input that the program has not read, or while that cannot be told: its end is found next.

    Raises OSError for a terminal that is there and cannot be asked.
    """
    try:
        return unread(state.tty) > 0
    except OSError:
        now = await session.state()
        if now is not None and now.place == state.place and not now.is_dead:
            raise
        return True


@contextlib.contextmanager
def _claimed_now(stem: Path) -> Iterator[bool]:
    """Whether the delivery's lock is ours."""
    try:
        with claim(stem):
            yield True
    except DeliveryRuns:
        yield False


@contextlib.asynccontextmanager
async def _claimed(stem: Path) -> AsyncIterator[int]:
    """The delivery's lock, once it is free. What was given a duplicate of it keeps it."""
    waits_s = growing(*_WAITS_S)
    while True:
        with contextlib.suppress(DeliveryRuns), claim(stem) as descriptor:
            held = os.dup(descriptor)
            break
        await asyncio.sleep(next(waits_s))
    try:
        yield held
    finally:
        os.close(held)
