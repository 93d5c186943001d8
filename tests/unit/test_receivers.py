"""Receivers of sources and of labels: how they are written, chosen, kept and missed (contract R7.9)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import factories as make
from support.configs import INBOX, WORK, config_of, faults_of, tree
from support.fakes import UNKNOWN, FakeRunner, FakeSource
from support.life import Life, in_virtual_loop
from the_loop import wiring
from the_loop.attention import attention_of
from the_loop.config import session_of, sessions_of, with_labels
from the_loop.core.decide import decide
from the_loop.core.guards import Rules
from the_loop.core.ledger import Phase, decode, encode
from the_loop.core.model import Kind, Outcome, Verdict
from the_loop.durable import to_json_bytes
from the_loop.receivers import Place, Receivers
from the_loop.runners.base import Offer, Status, Trace
from the_loop.runners.exec import ExecRunner
from the_loop.state import StateRoot

REF = "fake:1"
HEAVY = {"command": ["big"], "slice": "theloop-heavy.slice"}


# --- how they are written ---


def test_session_of_a_source_replaces_the_shared_one_whole() -> None:
    own = {**WORK, "session": {"command": ["writer"], "kinds": ["spawn"], "onUncertain": "hold"}}
    config = config_of(
        tree(INBOX, own, session={"command": ["agent"], "workdir": "/srv"}, routing={"authorizedUsers": []})
    )

    shared, theirs = (session_of(config, section) for section in config.polling.sources)

    assert (shared.command, shared.workdir) == (("agent",), "/srv")  # type: ignore[attr-defined]
    assert (theirs.command, theirs.workdir) == (("writer",), None)  # type: ignore[attr-defined]
    assert (theirs.kinds, theirs.on_uncertain) == (("spawn",), "hold")
    assert list(sessions_of(config)) == ["session", "polling.sources[1].session"]


def test_shared_session_may_be_left_out_where_every_source_has_its_own() -> None:
    content = tree({**INBOX, "session": {"runner": "print"}})
    del content["session"]

    config = config_of(content)

    assert list(sessions_of(config)) == ["polling.sources[0].session"]
    assert "session.command" in faults_of({**content, "polling": {"sources": [INBOX]}})


def test_entry_of_a_label_is_the_session_with_what_it_says_instead() -> None:
    session = {"command": ["small"], "workdir": "/srv", "environment": {"A": "1"}, "byLabel": {"heavy": HEAVY, "b": {}}}

    config = config_of(tree(session=session))

    found: Any = with_labels(sessions_of(config))
    assert set(found) == {"session", "session.byLabel.heavy", "session.byLabel.b"}
    heavy = found["session.byLabel.heavy"]
    assert (heavy.command, heavy.slice, heavy.workdir) == (("big",), "theloop-heavy.slice", "/srv")
    assert heavy.environment == {"A": "1"}
    assert found["session.byLabel.b"].command == ("small",)


@pytest.mark.parametrize(
    ("session", "path"),
    [
        ({"byLabel": []}, "session.byLabel"),
        ({"byLabel": {"a": "big"}}, "session.byLabel.a"),
        ({"byLabel": {"a": None}}, "session.byLabel.a"),
        ({"byLabel": {5: {}}}, "session.byLabel.5"),
        ({"byLabel": {"a": {"comand": ["x"]}}}, "session.byLabel.a.comand"),
        ({"byLabel": {"a": {"command": "x"}}}, "session.byLabel.a.command"),
        ({"byLabel": {"a": {"command": []}}}, "session.byLabel.a.command"),
        ({"byLabel": {"a": {"command": ["sh", "-c", "{text}"]}}}, "session.byLabel.a.command"),
        ({"byLabel": {"a": {"slice": "heavy"}}}, "session.byLabel.a.slice"),
        ({"byLabel": {"a": {"slice": "../x.slice"}}}, "session.byLabel.a.slice"),
        ({"byLabel": {"a": {"runner": "print"}}}, "session.byLabel.a.runner"),
        ({"byLabel": {"a": {"kinds": ["spawn"]}}}, "session.byLabel.a.kinds"),
        ({"byLabel": {"a": {"byLabel": {}}}}, "session.byLabel.a.byLabel"),
        ({"byLabel": {"a": {}}, "comand": ["x"]}, "session.comand"),
        ({"trustLabels": "yes"}, "session.trustLabels"),
        ({"runner": "print", "slice": "a.slice"}, "session.slice"),
    ],
)
def test_entry_with_a_mistake_is_a_fault_at_its_path_and_told_once(session: dict[str, Any], path: str) -> None:
    assert list(faults_of(tree(session=session))) == [path]
    own = {**INBOX, "session": {"command": ["agent"], **session}}
    assert list(faults_of(tree(own))) == [path.replace("session", "polling.sources[0].session", 1)]


# --- how they are chosen and kept ---


def rules(*labels: str, **fields: Any) -> Rules:
    return replace(make.rules(), receivers=labels, **fields)


@pytest.mark.parametrize(
    ("labels", "receivers", "chosen"),
    [
        ((), ("heavy",), ""),
        (("auto", "heavy"), ("heavy",), "heavy"),
        (("b", "a"), ("a", "b"), "a"),
        (("b", "a"), ("b", "a"), "b"),
        (("HEAVY",), ("heavy",), "heavy"),
        (("heavy2",), ("heavy",), ""),
    ],
)
def test_first_label_in_the_order_of_the_file_chooses(
    labels: tuple[str, ...], receivers: tuple[str, ...], chosen: str
) -> None:
    decision = decide(None, make.view(item=make.item(labels=labels), thread=()), rules(*receivers))

    assert decision.ledger is not None
    assert decision.ledger.poll.receiver == chosen


def test_labels_differ_by_case_where_names_do() -> None:
    assert rules("heavy", folds_case=False).receiver_for(["Heavy"]) == ""


def test_receiver_stays_until_the_session_ends_and_is_chosen_anew_by_the_next_start() -> None:
    first = decide(None, make.view(item=make.item(labels=("a",)), thread=()), rules("a", "b")).ledger
    assert first is not None

    rebuilt = decide(
        first, make.view(make.entry(1), item=make.item(labels=("b",)), thread=[make.entry(1)]), rules("b", "a")
    ).ledger
    ended = make.ledger(Phase.ENDED, reason="closed", receiver="a")
    reopened = decide(ended, make.view(item=make.item(labels=("b",)), thread=()), rules("a", "b")).ledger

    assert rebuilt is not None
    assert rebuilt.poll.receiver == "a"
    assert reopened is not None
    assert (reopened.g, reopened.poll.receiver) == (2, "b")


def test_ledger_keeps_the_receiver_and_an_older_one_has_none() -> None:
    ledger = make.ledger(receiver="heavy")
    tree = encode(ledger)

    assert decode(to_json_bytes(tree)) == ledger
    del tree["poll"]["receiver"]
    assert decode(to_json_bytes(tree)).poll.receiver == ""


@in_virtual_loop
async def test_item_whose_receiver_is_gone_waits_is_shown_and_goes_on_when_it_is_back(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1, labels=("heavy",))
    life = Life(root, runner, source, rules=rules("heavy"))
    await life.begin()
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1"]

    life.watched[0].rules = rules("light")
    assert len(attention_of(life.ledgers, life.watched, "")) == 1  # also while nothing of it waits
    source.write(REF, make.entry(1))
    await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1"]
    (shown,) = attention_of(life.ledgers, life.watched, "")
    assert (shown["ref"], shown["state"], "byLabel 'heavy'" in shown["reason"]) == (REF, "no-receiver", True)
    life.watched[0].rules = rules("light", "heavy")
    await life.cycle()
    assert runner.ids() == [f"{REF}/spawn:1", f"{REF}/comment:1"]
    assert attention_of(life.ledgers, life.watched, "") == []


# --- whose labels count ---


class LabelledSource(FakeSource):
    """One whose labels anybody may set."""

    def __init__(self) -> None:
        super().__init__()
        self.by: dict[str, tuple[str | None, int | None]] = {}
        self.asked: list[str] = []
        self.label_errors: list[Exception] = []

    async def labelled_by(self, ref: str) -> dict[str, tuple[str | None, int | None]]:
        self.asked.append(ref)
        if self.label_errors:
            raise self.label_errors.pop(0)
        return self.by


@pytest.mark.parametrize(
    ("by", "trusts", "chosen", "asked"),
    [
        ({"heavy": ("alice", None)}, False, "heavy", 1),
        ({"heavy": ("ALICE", 7)}, False, "heavy", 1),
        ({"heavy": ("mallory", None)}, False, "", 1),
        ({"heavy": (None, None)}, False, "", 1),
        ({}, False, "", 1),
        ({"heavy": ("mallory", None), "light": ("alice", None)}, False, "light", 1),
        ({}, True, "heavy", 0),
    ],
)
@in_virtual_loop
async def test_label_counts_only_if_an_authorised_user_set_it(
    root: StateRoot, by: dict[str, tuple[str | None, int | None]], trusts: bool, chosen: str, asked: int
) -> None:
    runner, source = FakeRunner(), LabelledSource()
    source.by = by
    source.add(1, labels=("auto", "Heavy", "light"))
    life = Life(root, runner, source, rules=rules("heavy", "light", trusts_labels=trusts))
    await life.begin()
    for _ in range(3):
        source.write(REF, make.entry(len(source.items[REF].entries) + 1))
        await life.cycle()

    assert life.ledger(REF).poll.receiver == chosen
    assert len(source.asked) == asked


@in_virtual_loop
async def test_labels_are_not_asked_about_without_a_receiver_for_them_or_a_start(root: StateRoot) -> None:
    runner, source = FakeRunner(), LabelledSource()
    source.add(1, labels=("auto",))
    source.add(2, labels=("heavy",), author="mallory")
    life = Life(root, runner, source, rules=rules("heavy"))
    await life.begin()
    await life.cycle()

    assert source.asked == []
    assert runner.ids() == [f"{REF}/spawn:1"]


@in_virtual_loop
async def test_item_does_not_start_while_it_cannot_be_found_out_who_set_its_label(root: StateRoot) -> None:
    runner, source = FakeRunner(), LabelledSource()
    source.by, source.label_errors = {"heavy": ("alice", None)}, [OSError(5, "Input/output error")]
    source.add(1, labels=("heavy",))
    life = Life(root, runner, source, rules=rules("heavy"))
    await life.begin()
    await life.cycle()
    assert (runner.ids(), life.ledgers.get(REF)) == ([], None)

    await life.cycle()

    assert life.ledger(REF).poll.receiver == "heavy"
    assert runner.ids() == [f"{REF}/spawn:1"]


# --- which runner serves ---


class NamedRunner:
    def __init__(self) -> None:
        self.got: list[str] = []
        self.is_closed = False

    async def deliver(self, offer: Offer) -> Outcome:
        self.got.append(f"deliver {offer.ref}")
        return Outcome(Verdict.DELIVERED)

    async def adopt(self, offer: Offer) -> Outcome:
        self.got.append(f"adopt {offer.ref}")
        return Outcome(Verdict.DELIVERED)

    def inspect(self, offer: Offer) -> Status:
        self.got.append(f"inspect {offer.ref}")
        return Status(Trace.NEVER_BEGUN)

    def place(self, offer: Offer) -> str:
        return f"place of {offer.ref}"

    async def close(self) -> None:
        self.is_closed = True


def offer(ref: str) -> Offer:
    return Offer(ref, "spawn:1", Path("unused"), 1, 1)


def test_item_is_served_by_its_label_its_source_or_the_shared_session() -> None:
    places = [Place("", ""), Place("", "heavy"), Place("own", ""), Place("own", "light")]
    runners = {place: NamedRunner() for place in places}
    of_items = {
        "a": (Place("work", ""), places[0]),
        "b": (Place("work", "heavy"), places[1]),
        "c": (Place("own", ""), places[2]),
        "d": (Place("own", "light"), places[3]),
        "e": (Place("own", "heavy"), places[2]),  # of a label that its own session does not have
        "f": (Place("", "gone"), places[0]),
    }
    receivers = Receivers(runners, lambda ref: of_items[ref][0])

    async def all_of_it() -> None:
        for ref in of_items:
            await receivers.deliver(offer(ref))
            await receivers.adopt(offer(ref))
            receivers.inspect(offer(ref))
        await receivers.close()

    asyncio.run(all_of_it())

    for ref, (_, place) in of_items.items():
        assert [one for one in runners[place].got if one.endswith(f" {ref}")] == [
            *(f"deliver {ref}", f"adopt {ref}", f"inspect {ref}")
        ]
        assert receivers.place(offer(ref)) == f"place of {ref}"
    assert all(runner.is_closed for runner in runners.values())


class KeepingRunner(NamedRunner):
    keeps_sessions = True

    async def end(self, ref: str) -> bool:
        self.got.append(f"end {ref}")
        return True

    def insist(self, ref: str) -> None:
        self.got.append(f"insist {ref}")


def test_sessions_are_asked_of_the_runner_that_keeps_them() -> None:
    plain, keeping = NamedRunner(), KeepingRunner()
    runners = {Place("", ""): plain, Place("own", ""): keeping}
    receivers = Receivers(runners, lambda ref: Place("own" if ref == "a" else "work", ""))

    ended = [asyncio.run(receivers.end(ref)) for ref in ("a", "b")]
    receivers.insist("a")
    receivers.insist("b")

    assert receivers.keeps_sessions
    assert ended == [True, False]
    assert (plain.got, keeping.got) == ([], ["end a", "insist a"])
    assert not Receivers({Place("", ""): plain}, lambda _: Place("", "")).keeps_sessions


def test_runner_of_a_configuration_with_one_session_is_that(tmp_path: Path) -> None:
    told: list[object] = []

    def built(content: dict[str, Any]) -> Any:
        return wiring.runner(config_of(content), StateRoot(tmp_path), {"HOME": "/x"}, told.append)

    assert isinstance(built(tree()), ExecRunner)
    assert len(told) == 1
    several = built(tree({**INBOX, "session": {"command": ["own"]}}, WORK, routing={"authorizedUsers": []}))
    assert isinstance(several, Receivers)
    assert len(told) == 2  # that there is no manager is not told for each


@in_virtual_loop
async def test_unknown_outcome_is_held_where_the_session_of_the_source_says_so(root: StateRoot) -> None:
    runner, source = FakeRunner(), FakeSource()
    source.add(1)
    runner.script = {f"{REF}/spawn:1": [UNKNOWN]}
    life = Life(root, runner, source, rules=rules(holds_uncertain=True))
    await life.begin()
    await life.cycle()

    assert runner.ids() == [f"{REF}/spawn:1"]
    assert [entry.state for entry in life.ledger(REF).poll.pending.values()] == ["held"]


def test_rules_of_a_source_are_those_of_its_session() -> None:
    own = {
        **INBOX,
        "session": {"command": ["x"], "kinds": ["spawn"], "trustLabels": True, "byLabel": {"a": {}, "b": {}}},
    }
    config = config_of(tree(own, WORK, routing={"authorizedUsers": []}))
    first, second = config.polling.sources
    source = FakeSource()

    of_first, of_second = (wiring._rules(config, section, source) for section in (first, second))

    assert (of_first.kinds, of_first.receivers, of_first.trusts_labels) == (frozenset({Kind.SPAWN}), ("a", "b"), True)
    assert (of_second.kinds, of_second.receivers, of_second.trusts_labels) == (frozenset(Kind), (), False)
    assert wiring.shape(config, first) != wiring.shape(
        config_of(tree(INBOX)), config_of(tree(INBOX)).polling.sources[0]
    )
