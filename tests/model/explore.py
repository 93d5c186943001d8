"""Every state that can be reached, breadth first, and what must hold in each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from model.protocol import Protocol
from model.state import COMMENT, DELIVERED, OPEN, SPAWN, UNKNOWN, Receipt, State


@dataclass
class Explored:
    """`came_by` has for each state the step that led to it first, and from where: the shortest way."""

    protocol: Protocol
    came_by: dict[State, tuple[str, State] | None] = field(repr=False)
    before: dict[State, list[State]] = field(default_factory=dict, repr=False)  # by steps that are no faults
    ends: list[State] = field(default_factory=list, repr=False)  # nothing more happens by itself

    def way_to(self, state: State) -> list[tuple[str, State]]:
        """The shortest way: each step, and the state after it."""
        way: list[tuple[str, State]] = []
        while (came := self.came_by[state]) is not None:
            way.append((came[0], state))
            state = came[1]
        return way[::-1]


class Violated(AssertionError):
    """A property does not hold in `state`; the message has the shortest way to it."""

    def __init__(self, problem: str, found: Explored, state: State) -> None:
        super().__init__(described(problem, found.protocol, found.way_to(state)))
        self.problem = problem
        self.way = found.way_to(state)
        self.state = state


def explore(protocol: Protocol, *, crashes: int, faults: int, only: str = "") -> Explored:
    """All states, up to so many crashes and other faults. Raises Violated at the first that must not be.

    `only`: part of the one problem that is looked for.
    """
    first = State(crashes=crashes, faults=faults)
    found = Explored(protocol, {first: None})
    queue = deque([first])
    while queue:
        state = queue.popleft()
        for problem in problems_of(state):
            if only in problem:
                raise Violated(problem, found, state)
        goes_on = False
        for name, after in protocol.steps(state):
            if not name.startswith("fault."):
                goes_on = True
                found.before.setdefault(after, []).append(state)
            if after not in found.came_by:
                found.came_by[after] = (name, state)
                queue.append(after)
        if not goes_on:
            found.ends.append(state)
    if not only:
        _check_ends(found)
    return found


def described(problem: str, protocol: Protocol, way: list[tuple[str, State]]) -> str:
    lines = [f"protocol {protocol.name}: {problem}, after {len(way)} steps"]
    for number, (name, state) in enumerate(way, 1):
        entry = state.ledger.pending
        number_on_disk = state.spawn.payload.number if state.spawn.payload else "-"
        ledger = f"{state.ledger.phase or '-'}, offer {entry.offer if entry else '-'} in the ledger"
        lines.append(f"{number:3d}  {name:32s} {ledger}, {number_on_disk} in the spawn's payload")
    return "\n".join([*lines, *(f"     arrived: {_told(receipt)}" for receipt in (way[-1][1].got if way else ()))])


def _told(receipt: Receipt) -> str:
    parts = [f"{receipt.what} number {receipt.number}", receipt.end]
    parts += ["with the comment"] if receipt.comment else []
    return ", ".join([*parts, "marked"] if receipt.redelivery else parts)


def problems_of(state: State) -> Iterator[str]:
    """Everything that must not be, and is the case in this state."""
    for what in (SPAWN, COMMENT):
        mine = [receipt for receipt in state.got if receipt.what == what]
        if len({receipt.number for receipt in mine}) < len(mine):
            yield f"two keepers ran the command of the same number of the {what}"
        for number, receipt in enumerate(mine):
            for problem in _unfair(receipt, mine[:number], may_be_marked=what in state.doubts):
                yield f"the {what} {problem}"
    ledger = state.ledger
    if ledger.phase == "live" and not any(one.what == SPAWN and one.end == DELIVERED for one in state.got):
        yield "the spawn is settled and did not arrive"
    if ledger.seen and not any(one.comment and one.end == DELIVERED for one in state.got):
        yield "the comment is settled and did not arrive"


def _unfair(receipt: Receipt, earlier: list[Receipt], *, may_be_marked: bool) -> Iterator[str]:
    if any(one.end in (OPEN, DELIVERED) for one in earlier):
        yield "was handed over again" + ("" if receipt.redelivery else ", unmarked")
    if any(one.end == UNKNOWN for one in earlier) and not receipt.redelivery:
        yield "was handed over again unmarked, after an unknown outcome"
    if receipt.redelivery and not may_be_marked:
        yield "was marked as a redelivery for no reason"


def _check_ends(found: Explored) -> None:
    """Nothing is lost: where nothing more happens all has arrived, and such an end can be reached from everywhere."""
    for state in found.ends:
        if not (state.written and state.ledger.phase == "live" and state.ledger.seen):
            raise Violated("nothing more happens, and something has not arrived", found, state)
    good = set(found.ends)
    queue = deque(found.ends)
    while queue:
        for state in found.before.get(queue.popleft(), ()):
            if state not in good:
                good.add(state)
                queue.append(state)
    for state in found.came_by:
        if state not in good:
            raise Violated("it never comes to rest", found, state)


def way_to_rest(protocol: Protocol, state: State) -> tuple[list[str], State]:
    """The shortest way, without faults, to a state in which nothing more happens: its steps' names, and that state."""
    came_by: dict[State, tuple[str, State] | None] = {state: None}
    queue = deque([state])
    while queue:
        state = queue.popleft()
        steps = [(name, after) for name, after in protocol.steps(state) if not name.startswith("fault.")]
        if not steps:
            names, at = [], state
            while (came := came_by[at]) is not None:
                names.append(came[0])
                at = came[1]
            return names[::-1], state
        for name, after in steps:
            if after not in came_by:
                came_by[after] = (name, state)
                queue.append(after)
    raise AssertionError("it never comes to rest")


def kinds_of_steps(found: Explored) -> set[str]:
    """The names of all steps that were taken, without what they were taken on."""
    return {came[0].partition(" ")[0] for came in found.came_by.values() if came is not None}
