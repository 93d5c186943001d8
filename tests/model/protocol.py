"""What can happen next, in the protocol as it is and in that of 0.1.0 (which had the faults A1 and A2).

`Protocol.steps` yields every step that is possible in a state, under a name that says whose it is:

    world.…     somebody writes; the poller's pause is over
    fault.…     crash, a refusal, a lost answer, a job that is dropped, a keeper that is killed: a bounded number
    manager.…   takes a call in, starts a job
    keeper.…    the steps of runners/keeper.py
    poller.…    the steps of recovery, hand-over and cycle, each up to its next durable effect
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from model.state import (
    COMMENT,
    DELIVERED,
    NEVER,
    OPEN,
    REFUSED,
    SPAWN,
    UNKNOWN,
    UNSTARTABLE,
    Entry,
    Files,
    Keeper,
    Ledger,
    Offer,
    Op,
    Payload,
    Poller,
    Receipt,
    State,
)

Step = tuple[str, State]

QUEUED, RELEASED, UNCERTAIN = "queued", "released", "uncertain"
_AT_REST: Final = ("idle", "ready", "asked", "wait", "watch")  # it awaits something: a cycle can come in between
_HOLDING: Final = ("marks0", "clear", "ask", "asked")  # between its claim and the manager's answer


class Protocol:
    """The hand-over as src/the_loop does it."""

    name = "now"
    waits_after_nothing = True  # a moment, before it offers again what never began

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._world(state)
        yield from self._manager(state)
        for keeper in state.keepers:
            yield from self._keeper(state, keeper)
        yield from self._poller(state)

    # --- who holds the lock ---

    def is_locked(self, state: State, what: str) -> bool:
        """The descriptor is in a message, in a job, in a keeper or in the poller."""
        poller = state.poller
        return (
            (poller.at in _HOLDING and poller.offer is not None and poller.offer[0] == what)
            or (state.message is not None and state.message[0] == what)
            or any(job[0] == what for job in state.jobs)
            or any(keeper.what == what for keeper in state.keepers)
        )

    # --- the world ---

    def _world(self, state: State) -> Iterator[Step]:
        poller = state.poller
        if not state.written:
            yield "world.comment", state._replace(written=True)
        if poller.at in _AT_REST and not poller.plan:
            if poller.paused:
                yield "world.resume", self._begin(state.move(paused=False))
            if poller.waits:
                yield "world.again", self._begin(state.move(waits=False))
        if poller.at != "down" and state.crashes:
            yield "fault.crash", state._replace(poller=Poller(), crashes=state.crashes - 1)

    # --- the manager ---

    def _manager(self, state: State) -> Iterator[Step]:
        poller = state.poller
        fault = state._replace(faults=state.faults - 1) if state.faults else None
        waits = poller.at == "asked" and not poller.answer
        if state.message is not None:
            taken = state._replace(message=None, jobs=(*state.jobs, state.message))
            yield "manager.accept", taken.move(answer="accepted") if waits else taken
            if fault is not None:
                lost = fault._replace(message=None)
                yield ("fault.refuse", lost.move(answer="refused")) if waits else ("fault.lose", lost)
                if waits:
                    yield "fault.taken", lost.move(answer="name")  # by a unit that an earlier version started
        for job in state.jobs:
            left = tuple(other for other in state.jobs if other is not job)
            yield f"manager.start {job[0]}", state._replace(jobs=left, keepers=(*state.keepers, Keeper(*job, "hold")))
            if fault is not None:  # also what `daemon-reexec` does to a job that is queued
                yield f"fault.drop {job[0]}", fault._replace(jobs=left)

    # --- the keeper ---

    def _keeper(self, state: State, keeper: Keeper) -> Iterator[Step]:
        what, number, step = keeper
        files = state.files(what)
        name = f"keeper.{step} {what} {number}"
        if state.faults:
            yield f"fault.kill {what} {number}", self._killed(state, keeper)
        match step:
            case "hold":
                yield name, self._go(state, keeper, "check" if self._may_hold(state, keeper) else "")
            case "check":
                is_mine = files.payload is not None and files.payload.number == number
                yield name, self._go(state, keeper, "mark" if is_mine else "")
            case "mark" if files.mark:
                yield name, self._go(state, keeper, "")
            case "mark":
                yield name, self._go(state.put(what, mark=number), keeper, "recheck")
            case "recheck" if files.payload is None or files.payload.number != number:
                yield name, self._go(state.put(what, mark=0), keeper, "")
            case "recheck":
                yield name, self._go(state, keeper, "run")
            case "run" if files.payload is not None:
                receipt = Receipt(what, number, files.payload.comment, files.payload.redelivery, OPEN)
                yield name, self._go(state._replace(got=(*state.got, receipt)), keeper, "write")
            case "write":
                yield f"{name} delivered", self._ended(state, keeper, DELIVERED)
                if state.faults:
                    yield (
                        f"fault.refused {what} {number}",
                        self._ended(state._replace(faults=state.faults - 1), keeper, REFUSED),
                    )
            case "end":
                yield name, self._go(state, keeper, "")

    def _may_hold(self, state: State, keeper: Keeper) -> bool:
        return state.files(keeper.what).lock  # the same open file: granted

    def _go(self, state: State, keeper: Keeper, step: str) -> State:
        """The keeper at its next step; without one it is gone."""
        others = tuple(other for other in state.keepers if other is not keeper)
        return state._replace(keepers=(*others, keeper._replace(step=step)) if step else others)

    def _ended(self, state: State, keeper: Keeper, how: str) -> State:
        after = _close(state, keeper, how).put(keeper.what, outcome=(keeper.number, how))
        return self._go(after, keeper, "end")

    def _killed(self, state: State, keeper: Keeper) -> State:
        state = state._replace(faults=state.faults - 1)
        if keeper.step in ("recheck", "run", "write"):
            state = _close(state, keeper, UNKNOWN)._replace(doubts=state.doubts | {keeper.what})
        return self._go(state, keeper, "")

    # --- the poller ---

    def _poller(self, state: State) -> Iterator[Step]:
        poller = state.poller
        if poller.at == "down":
            yield "poller.start", self._start(state)
            return
        if poller.plan:
            yield from self._planned(state, poller.plan[0])
            return
        if poller.at in _AT_REST:
            yield from self._look(state)
        if poller.offer is not None:
            yield from self._hand_over(state, *poller.offer)

    def _start(self, state: State) -> State:
        entry = state.ledger.pending
        if entry is None:
            return self._started(state)
        return state.move(at="boot", offer=(state.ledger.what, entry.offer))

    def _started(self, state: State, adopted: Offer | None = None) -> State:
        """Recovery is over: files of what is not pending are removed, unless it runs."""
        for what in (SPAWN, COMMENT):
            is_pending = state.ledger.pending is not None and state.ledger.what == what
            if not is_pending and not self.is_locked(state, what):
                state = state.put(what, **Files()._asdict())
        at = "idle" if adopted is None else "wait"
        return state.move(at=at, offer=adopted, mode="adopt", held=False, verdict="")

    def _hand_over(self, state: State, what: str, number: int) -> Iterator[Step]:
        match state.poller.at:
            case "boot":
                yield "poller.probe", state.move(at="boot marks", held=self.is_locked(state, what))
            case "boot marks":
                yield "poller.marks", self._recovered(state, what, number)
            case "ready" if not self.is_locked(state, what):
                yield "poller.ready", self._prepared(state, what, number)
            case "claim":
                yield "poller.claim", state.move(at="marks0")
            case "marks0":
                is_new = self._read(state, what, number, held=False) == NEVER
                yield "poller.marks", state.move(at="clear" if is_new else "probe")
            case "clear":
                yield "poller.clear", _without_old_marks(state, what, number).move(at="ask")
            case "ask":
                yield "poller.ask", state._replace(message=(what, number)).move(at="asked", answer="")
            case "asked":
                yield from self._answered(state)
            case "probe" | "wait":
                yield "poller.probe", state.move(at="marks", held=self.is_locked(state, what))
            case "marks":
                verdict = self._read(state, what, number, held=state.poller.held)
                if verdict == NEVER and state.poller.mode == "deliver":
                    verdict = UNSTARTABLE
                yield "poller.marks", self._conclude(state, verdict) if verdict else state.move(at="wait", held=False)

    def _answered(self, state: State) -> Iterator[Step]:
        match state.poller.answer:
            case "accepted":
                yield "poller.answer", state.move(at="probe", answer="")
            case "refused":
                yield "poller.answer", self._conclude(state.move(answer=""), UNSTARTABLE)
            case "name":
                yield "poller.answer", self._conclude(state.move(answer=""), NEVER)
        if state.faults:
            yield "fault.no answer", state._replace(faults=state.faults - 1).move(at="probe", answer="")

    def _read(self, state: State, what: str, number: int, *, held: bool) -> str:
        """What lock and marks say of an offer; nothing while it is under way."""
        files = state.files(what)
        if files.outcome is not None and files.outcome[0] == number:
            return files.outcome[1]
        if held:
            return ""
        return UNKNOWN if files.mark == number else NEVER

    def _prepared(self, state: State, what: str, number: int) -> State:
        """The payload says which offer this is; nothing is handed over where it is of a later one."""
        entry, payload = state.ledger.pending, state.files(what).payload
        assert entry is not None
        assert payload is not None
        if payload.number > number:
            return _do(state, ("save", _never_begun(state.ledger, payload.number)), at="over")
        state = state.put(what, payload=Payload(number, payload.comment, entry.redelivery), lock=True)
        return state.move(at="claim", mode="deliver")

    def _recovered(self, state: State, what: str, number: int) -> State:
        verdict = self._read(state, what, number, held=state.poller.held)
        if not verdict:
            return self._started(state, (what, number))
        if verdict == NEVER:
            return _do(state, ("put back", what, number), at="booting")
        return self._conclude(state, verdict, at="booting")

    def _conclude(self, state: State, verdict: str, at: str = "over") -> State:
        assert state.poller.offer is not None
        what, number = state.poller.offer
        entry = state.ledger.pending
        if entry is None or entry.offer != number:
            return state.move(at=at, verdict=verdict, plan=(("nothing",),))
        after = _after(state.ledger, verdict)
        plan: list[Op] = [("withdraw", what, number)] if verdict in (NEVER, UNSTARTABLE) else []
        if after != state.ledger:
            plan.append(("save", after))
        plan.append(("remove" if after.pending is None else "forget", what))
        return _do(state, *plan, at=at)._replace(poller=state.poller._replace(at=at, verdict=verdict, plan=tuple(plan)))

    def _planned(self, state: State, op: Op) -> Iterator[Step]:
        match op:
            case ("write", str(what), Payload() as payload):
                if self._may_write(state, what):
                    yield f"poller.write {what}", self._next(state.put(what, payload=payload))
                else:
                    yield f"poller.write {what}", self._next(state.move(plan=state.poller.plan[:1]))
            case ("save", Ledger() as ledger):
                yield "poller.save", self._next(state._replace(ledger=ledger))
            case ("put back", str(what), int(number)):
                yield "poller.withdraw", self._put_back(state, what, number)
            case ("withdraw", str(what), int(number)):
                if self.is_locked(state, what):  # it is under way after all
                    yield "poller.withdraw", state.move(at="probe", plan=(), verdict="")
                else:
                    yield "poller.withdraw", self._next(_withdrawn(state, what, number)[0])
            case ("remove", str(what)):
                yield "poller.remove", self._next(state.put(what, **Files()._asdict()))
            case ("forget", str(what)):
                yield "poller.forget", self._next(state.put(what, mark=0, outcome=None))
            case ("nothing",):
                yield "poller.nothing", self._next(state)

    def _put_back(self, state: State, what: str, number: int) -> State:
        if self.is_locked(state, what):
            return self._started(state.move(plan=()), (what, number))
        state, present = _withdrawn(state, what, number)
        after = _never_begun(state.ledger, present)
        plan = state.poller.plan if after == state.ledger else (*state.poller.plan, ("save", after))
        return self._next(state.move(plan=plan))

    def _may_write(self, state: State, what: str) -> bool:
        return not (state.files(what).lock and self.is_locked(state, what))

    def _next(self, state: State) -> State:
        """With the first thing of the plan done; what follows where it was the last."""
        poller = state.poller
        state = state.move(plan=poller.plan[1:])
        if state.poller.plan:
            return state
        match poller.at:
            case "over":
                paused = poller.paused or poller.verdict == UNSTARTABLE
                waits = self.waits_after_nothing and poller.verdict == NEVER
                idle = state.move(
                    at="idle", offer=None, verdict="", held=False, paused=paused, waits=poller.waits or waits
                )
                return idle if waits else self._begin(idle)
            case "booting":
                return self._started(state)
        return self._begin(state, is_due=True)  # a look

    def _begin(self, state: State, *, is_due: bool = False) -> State:
        """The next hand-over, if its turn has come."""
        entry, poller, what = state.ledger.pending, state.poller, state.ledger.what
        if entry is None or poller.at != "idle" or poller.paused:
            return state
        if entry.standing in (QUEUED, UNCERTAIN) or (what == COMMENT and (entry.standing == RELEASED or is_due)):
            return state.move(at="ready", offer=(what, entry.offer), mode="deliver")
        return state

    def _look(self, state: State) -> Iterator[Step]:
        """One look at the item, and what is decided about it; one that changes nothing is left out."""
        plan = self._decided(state)
        after = state.move(plan=plan) if plan else self._begin(state, is_due=True)
        if after != state:
            yield "poller.look", after

    def _decided(self, state: State) -> tuple[Op, ...]:
        ledger = state.ledger
        is_fresh = state.written and not ledger.knows_comment
        match ledger.phase:
            case "":
                spawn = Ledger("starting", Entry(QUEUED, 1, carries=state.written))
                return ("write", SPAWN, Payload(1, state.written, redelivery=False)), ("save", spawn)
            case "starting":
                return self._decided_starting(state, is_fresh=is_fresh)
        if is_fresh:
            new = ledger._replace(pending=Entry(QUEUED), behind=False)
            return ("write", COMMENT, Payload(1, comment=True, redelivery=False)), ("save", new)
        return (("save", ledger._replace(behind=False)),) if ledger.behind else ()

    def _decided_starting(self, state: State, *, is_fresh: bool) -> tuple[Op, ...]:
        ledger, entry = state.ledger, state.ledger.pending
        assert entry is not None
        is_running = state.poller.offer is not None and state.poller.offer[0] == SPAWN
        if is_running or entry.standing == UNCERTAIN:
            return (("save", ledger._replace(behind=True)),) if is_fresh and not ledger.behind else ()
        if is_fresh or ledger.behind or entry.standing in (RELEASED, REFUSED):
            return self._rebuilt(ledger, entry, comment=state.written)
        return ()

    def _rebuilt(self, ledger: Ledger, entry: Entry, *, comment: bool) -> tuple[Op, ...]:
        carries = comment and not ledger.seen
        new = entry._replace(standing=QUEUED, carries=carries, offer=entry.offer + 1)
        payload = Payload(new.offer, comment, entry.redelivery)
        return ("write", SPAWN, payload), ("save", ledger._replace(pending=new, behind=False))


class Protocol010(Protocol):
    """As 0.1.0 did it: the lock ends with the helper's answer, and the number is raised in the ledger alone."""

    name = "0.1.0"
    waits_after_nothing = False

    def is_locked(self, state: State, what: str) -> bool:
        """Held by the poller and its helper until the manager has answered, then by the keeper once it took it."""
        poller = state.poller
        return (
            (poller.at in _HOLDING and poller.offer is not None and poller.offer[0] == what)
            or (state.message is not None and state.message[0] == what)
            or any(keeper.what == what and keeper.step != "hold" for keeper in state.keepers)
        )

    def _may_hold(self, state: State, keeper: Keeper) -> bool:
        return state.files(keeper.what).lock and not self.is_locked(state, keeper.what)

    def _hand_over(self, state: State, what: str, number: int) -> Iterator[Step]:
        match state.poller.at:
            case "ready":
                yield "poller.ready", self._prepared(state, what, number)
            case "claim" if self.is_locked(state, what):
                yield "poller.claim", state.move(at="probe")
            case "claim":
                yield "poller.claim", _without_old_marks(state.put(what, lock=True), what, number).move(at="ask")
            case "watch":
                verdict = self._read(state, what, number, held=self.is_locked(state, what))
                if verdict != NEVER:
                    yield "poller.watch", state.move(at="probe")
                elif state.faults:  # 30 s went by
                    yield "fault.timeout", state._replace(faults=state.faults - 1).move(at="probe")
            case _:
                yield from super()._hand_over(state, what, number)

    def _answered(self, state: State) -> Iterator[Step]:
        match state.poller.answer:
            case "accepted" | "name":
                yield "poller.answer", state.move(at="watch", answer="")
            case "refused":
                yield "poller.answer", state.move(at="probe", answer="")
        if state.faults:
            yield "fault.no answer", state._replace(faults=state.faults - 1).move(at="probe", answer="")

    def _prepared(self, state: State, what: str, number: int) -> State:
        entry, payload = state.ledger.pending, state.files(what).payload
        assert entry is not None
        assert payload is not None
        state = state.put(what, payload=Payload(number, payload.comment, entry.redelivery))
        return _without_old_marks(state, what, number).move(at="claim", mode="deliver")

    def _recovered(self, state: State, what: str, number: int) -> State:
        verdict = self._read(state, what, number, held=state.poller.held)
        if not verdict:
            return self._started(state, (what, number))
        if verdict != NEVER:
            return self._conclude(state, verdict, at="booting")
        entry = state.ledger.pending
        assert entry is not None
        released = entry._replace(standing=RELEASED) if entry.standing == QUEUED else entry
        return _do(state, ("save", state.ledger._replace(pending=released)), at="booting")

    def _conclude(self, state: State, verdict: str, at: str = "over") -> State:
        assert state.poller.offer is not None
        what = state.poller.offer[0]
        after = state.ledger if verdict == NEVER else _after(state.ledger, verdict)
        plan: list[Op] = [("save", after)]
        if after.pending is None:
            plan.append(("remove", what))
        return state.move(at=at, verdict=verdict, plan=tuple(plan))

    def _may_write(self, state: State, what: str) -> bool:
        return True

    def _rebuilt(self, ledger: Ledger, entry: Entry, *, comment: bool) -> tuple[Op, ...]:
        new = entry._replace(standing=QUEUED, carries=comment and not ledger.seen)
        return ("write", SPAWN, Payload(1, comment, redelivery=False)), (
            "save",
            ledger._replace(pending=new, behind=False),
        )


# --- parts ---


def _do(state: State, *plan: Op, at: str) -> State:
    return state.move(at=at, plan=plan)


def _close(state: State, keeper: Keeper, end: str) -> State:
    """The command of this keeper ended."""
    got = tuple(one._replace(end=end) if one[:2] == keeper[:2] and one.end == OPEN else one for one in state.got)
    return state._replace(got=got)


def _without_old_marks(state: State, what: str, number: int) -> State:
    files = state.files(what)
    if files.mark == number or (files.outcome is not None and files.outcome[0] == number):
        return state
    return state.put(what, mark=0, outcome=None)


def _withdrawn(state: State, what: str, number: int) -> tuple[State, int]:
    """With the number in the payload raised, under the lock; the number of the next offer."""
    files = state.files(what)
    if not files.lock or files.payload is None:
        return state, number if not files.lock else number + 1
    if files.payload.number > number:
        return state, files.payload.number
    return state.put(what, payload=files.payload._replace(number=number + 1)), number + 1


def _after(ledger: Ledger, verdict: str) -> Ledger:
    """What an outcome makes of the ledger."""
    entry = ledger.pending
    assert entry is not None
    match verdict:
        case "delivered" if ledger.what == SPAWN:
            return ledger._replace(phase="live", pending=None, seen=ledger.seen or entry.carries)
        case "delivered":
            return ledger._replace(pending=None, seen=True)
        case "refused":
            entry = entry._replace(standing=REFUSED, offer=entry.offer + 1)
        case "unknown":
            entry = entry._replace(standing=UNCERTAIN, offer=entry.offer + 1, redelivery=True)
        case "unstartable":
            entry = entry._replace(offer=entry.offer + 1)
        case _:
            return _never_begun(ledger, entry.offer + 1)
    return ledger._replace(pending=entry)


def _never_begun(ledger: Ledger, number: int) -> Ledger:
    entry = ledger.pending
    assert entry is not None
    standing = entry.standing
    if standing == QUEUED and entry.redelivery:
        standing = UNCERTAIN
    elif standing == QUEUED and ledger.what == SPAWN:
        standing = RELEASED
    return ledger._replace(pending=entry._replace(standing=standing, offer=number))
