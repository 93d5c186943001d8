"""Against a poller that never stopped: crashes at every step, and lost positions.

Killed before every request; of the other steps each run takes a sample (its seed is printed; `THE_LOOP_SEED` repeats
it), and `THE_LOOP_FULL_SWEEP=1` takes them all.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from support.fuse import Crash, Fuse
from support.github.faults import server_error
from support.github.values import Rules, View
from support.replay_cost import SWEEP
from support.world import REPO, World, carried, in_real_loop, scene
from the_loop import durable
from the_loop import visits as visits_module
from the_loop.core.decide import decide

IS_FULL: Final = bool(os.environ.get("THE_LOOP_FULL_SWEEP"))
SEED: Final = int(os.environ.get("THE_LOOP_SEED") or Random().randrange(10**6))
HOUR = 3600
CYCLES = 12
Received = list[dict[str, Any]]


def happen(world: World, number: int) -> None:
    """What people do before this cycle: something of everything that a poller has to notice."""
    github = world.github
    match number:
        case 0:
            for item in (world.add_issue(), world.add_issue(pull_request=True), world.add_issue(author="stranger")):
                github.comment(REPO, item)
        case 1:
            github.comment(REPO, 1)
            github.comment(REPO, 2, "stranger")
            github.review_comment(REPO, 2, review_id=github.review(REPO, 2))  # 1001: holds that comment, says nothing
            github.comment(REPO, 3, body="the-loop start")
        case 2:
            github.unlabel(REPO, 1, "auto")
            github.comment(REPO, 1)
            github.comment(REPO, world.add_issue())
            github.review(REPO, world.add_issue(pull_request=True), state="APPROVED")
        case 3:
            github.comment(REPO, 1)
            github.comment(REPO, 2)
            github.review(REPO, 2, state="APPROVED")
            github.review(REPO, 2, "stranger", "No.", state="CHANGES_REQUESTED")
            github.close(REPO, 3)
            github.unlabel(REPO, 5, "auto")
        case 4:
            github.label(REPO, 1, "auto")
            github.comment(REPO, 3, body="Last words.")
            github.comment(REPO, 4, body="the-loop stop")
            github.review(REPO, 5, body="Not yet.", state="CHANGES_REQUESTED")
            github.review_comment(REPO, 5, review_id=github.review(REPO, 5))
        case 5:
            github.comment(REPO, 1)
            github.close(REPO, 2, merged=True)
        case 6:
            github.label(REPO, 5, "auto")
        case 7:
            github.comment(REPO, 2)
            github.review(REPO, 2, body="Late praise.")
            github.comment(REPO, 4, body="the-loop start")
        case 8:
            github.review(REPO, 5, body="Now it is right.")
        case 9:
            github.reopen(REPO, 3)
            github.comment(REPO, 3)
        case 10:
            github.comment(REPO, 3)
            github.delete_issue(REPO, 1)
            github.review(REPO, 5, state="APPROVED")
            github.close(REPO, 5, merged=True)


async def live(folder: Path, *fuses: Fuse) -> World:
    """Play all of it; each life that a fuse ends is followed by the next one, in the same cycle."""
    spare = list(fuses)
    world = scene(folder, fuse=spare.pop(0) if spare else None)
    for number in range(CYCLES + 4):
        happen(world, number)
        while True:
            try:
                await world.cycle()
                break
            except Crash:
                pass
            except asyncio.CancelledError:  # by the fuse: a stop that hit an await
                await world.stop()
            world = await next_life(world, spare)
    return world


async def next_life(world: World, spare: list[Fuse]) -> World:
    """The next one that lives long enough to begin its work."""
    while True:
        try:
            return world.restart(fuse=spare.pop(0) if spare else Fuse())
        except Crash:
            continue


def sample(points: Sequence[int], *, one_in: int) -> Sequence[int]:
    """So many of these, or all if all are wanted."""
    print(f"THE_LOOP_SEED={SEED}")
    return points if IS_FULL else sorted(Random(SEED).sample(points, len(points) // one_in))


def by_item(received: Received) -> dict[str, Received]:
    items: dict[str, Received] = {}
    for payload in received:
        items.setdefault(payload["ref"], []).append({**payload, "offer": None})  # the poller's own number
    return items


class TestCrashes:
    @in_real_loop
    async def test_story_then_is_delivered_as_the_people_meant_it(self, tmp_path: Path) -> None:
        """What the other tests of this class compare with."""
        world = await live(tmp_path)
        arrived = [name.partition("#")[2] for name in carried(world.received)]

        assert [name for name in arrived if name.startswith("1/")] == [
            *("1/spawn:1", "1/comment:1001"),
            *("1/comment:1004", "1/comment:1007", "1/comment:1009", "1/comment:1013", "1/close:1"),
        ]
        assert [name for name in arrived if name.startswith("2/")] == [
            *("2/spawn:1", "2/comment:1002", "2/review_comment:1001", "2/review:1003", "2/comment:1010"),
            *("2/review:1007", "2/comment:1014", "2/close:1"),
        ]
        assert [name for name in arrived if name.startswith("3/")] == [
            *("3/spawn:1", "3/comment:1003", "3/comment:1011", "3/close:1"),
            *("3/spawn:2", "3/comment:1003", "3/comment:1011", "3/comment:1016", "3/comment:1017"),
        ]
        assert [name for name in arrived if name.startswith("4/")] == [
            *("4/spawn:1", "4/comment:1008", "4/close:1", "4/spawn:2", "4/comment:1008")
        ]
        assert [name for name in arrived if name.startswith("5/")] == [
            *("5/spawn:1", "5/review:1002", "5/review_comment:1002", "5/review:1005"),
            *("5/review:1008", "5/review:1009", "5/close:1"),
        ]
        verdicts = {payload["deliveryId"].partition("#")[2]: payload.get("verdict") for payload in world.received}
        assert {name: verdict for name, verdict in verdicts.items() if verdict} == {
            **dict.fromkeys(("2/review:1003", "5/review:1009"), "approved"),
            **dict.fromkeys(("2/review:1007", "5/review:1008"), "commented"),
            "5/review:1005": "changes_requested",
        }

    @pytest.mark.crash
    @pytest.mark.parametrize("kind", ["request", "change", "hand-over"])
    @in_real_loop
    async def test_poller_when_killed_before_any_step_then_as_if_it_had_never_stopped(
        self, tmp_path: Path, kind: str
    ) -> None:
        """Each request, file change and hand-over of all cycles in turn."""
        oracle = await live(tmp_path / "oracle")
        points = [at for at, step in enumerate(oracle.fuse.steps, 1) if step == kind]
        assert len(points) > 20
        for at in points if kind == "request" else sample(points, one_in=3):
            world = await live(tmp_path / str(at), Fuse(at=at))
            assert by_item(world.received) == by_item(oracle.received), f"killed before step {at}, a {kind}"

    @pytest.mark.crash
    @in_real_loop
    async def test_poller_when_killed_again_and_again_then_as_if_it_had_never_stopped(self, tmp_path: Path) -> None:
        oracle = await live(tmp_path / "oracle")
        for seed in range(40) if IS_FULL else range(SEED, SEED + 15):
            random = Random(seed)
            fuses = [Fuse(at=random.randrange(1, 40)) for _ in range(random.randrange(2, 12))]
            world = await live(tmp_path / str(seed), *fuses)
            assert by_item(world.received) == by_item(oracle.received), f"seed {seed}: {[fuse.at for fuse in fuses]}"

    @pytest.mark.crash
    @in_real_loop
    async def test_poller_when_stopped_at_any_request_then_as_if_it_had_never_stopped(self, tmp_path: Path) -> None:
        kinds = frozenset({"request"})
        oracle = await live(tmp_path / "oracle", Fuse(kinds=kinds))
        for at in sample(range(1, len(oracle.fuse.steps) + 1), one_in=2):
            fuse = Fuse(at=at, error=asyncio.CancelledError, kinds=kinds)
            world = await live(tmp_path / str(at), fuse)
            assert by_item(world.received) == by_item(oracle.received), f"stopped at request {at}"

    @pytest.mark.crash
    @in_real_loop
    async def test_poller_when_a_disk_write_fails_anywhere_then_nothing_is_lost_or_doubled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each file replacement of all cycles is refused once, as by a full disk."""
        oracle = await live(tmp_path / "oracle")
        writes: list[Path] = []
        genuine = durable.replace_file

        def counting(path: Path, content: bytes, *, sync: bool) -> None:
            writes.append(path)
            if len(writes) == refused:
                raise OSError(errno.ENOSPC, "No space left on device")
            genuine(path, content, sync=sync)

        monkeypatch.setattr(durable, "replace_file", counting)
        refused = 0
        await live(tmp_path / "count")
        total = len(writes)
        assert total > 40
        monkeypatch.setattr("the_loop.dispatcher.asyncio.sleep", _no_sleep)
        for refused in sample(range(1, total + 1), one_in=3):
            writes.clear()
            world = await live(tmp_path / str(refused))
            name = writes[refused - 1].name
            assert set(carried(world.received)) == set(carried(oracle.received)), f"write {refused}, of {name}"
            delivered = [got["deliveryId"] for got in world.received]
            assert len(delivered) == len(set(delivered)), f"write {refused}, of {name}"


async def _no_sleep(_seconds: float) -> None:
    """Time does not pass while a dispatcher waits for its disk."""


class TestPosition:
    @pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\0" * 300, b'{"schema": 99}', b'{"schema": 1}'])
    @in_real_loop
    async def test_position_when_lost_then_waiting_comments_still_arrive_once(
        self, tmp_path: Path, content: bytes | None
    ) -> None:
        """They are older than what any list is asked for without a position."""
        world = await delivered(tmp_path)
        world.github.comment(REPO, 1)
        world.github.review_comment(REPO, 2)
        world.github.close(REPO, 3)
        world.clock.run(HOUR)
        path = world.root.cursor("github")
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        world = world.restart()
        await world.cycle(times=6)

        assert world.ids() == [*STARTED, "1/comment:1001", "2/review_comment:1001", "3/close:1"]

    @in_real_loop
    async def test_position_when_any_value_has_another_shape_then_costs_one_look_and_nothing_else(
        self, tmp_path: Path
    ) -> None:
        world = await delivered(tmp_path)
        world.github.close(REPO, 3)
        world.github.comment(REPO, 3)
        await world.cycle()
        intact = world.cursor()
        tried = 0
        kinds: Iterator[Any] = cycle([None, 7, "x", [], {}, [None], -1.5])
        for path in paths(intact):
            for odd in islice(kinds, 3):
                changed = json.loads(json.dumps(intact))
                if not put(changed, path, odd):
                    continue
                tried += 1
                twin = await delivered(tmp_path / str(tried))
                twin.github.close(REPO, 3)
                twin.github.comment(REPO, 3)
                await twin.cycle()
                twin.root.cursor("github").write_text(json.dumps(changed))
                twin.github.comment(REPO, 1)
                twin.github.review_comment(REPO, 2)
                twin = twin.restart()
                await twin.cycle(times=7)
                assert sorted(twin.ids()) == sorted(
                    [*STARTED, "3/comment:1001", "1/comment:1002", "2/review_comment:1001", "3/close:1"]
                ), f"{path} is {odd!r}"
        assert tried > 80

    @pytest.mark.parametrize("restarts", [False, True])
    @in_real_loop
    async def test_ledger_when_held_and_repaired_later_then_what_passed_meanwhile_arrives(
        self, tmp_path: Path, restarts: bool
    ) -> None:
        world = await delivered(tmp_path)
        path = world.root.ledger(f"github:{REPO}#1")
        good = path.read_bytes()
        path.write_bytes(b"{}")
        await world.cycle()
        world.github.comment(REPO, 1)
        world.github.comment(REPO, 2)
        await world.cycle(times=2)
        if restarts:
            world = world.restart()
            await world.cycle()
        assert world.ids() == [*STARTED, "2/comment:1002"]
        assert f"github:{REPO}#1" in world.ledgers.held()
        path.write_bytes(good)
        await world.cycle(times=2)

        assert world.ids() == [*STARTED, "2/comment:1002", "1/comment:1001"]

    @pytest.mark.parametrize("how", ["closed", "unlabelled"])
    @in_real_loop
    async def test_ledger_when_repaired_after_its_item_left_then_the_end_is_noticed(
        self, tmp_path: Path, how: str
    ) -> None:
        world = await delivered(tmp_path)
        path = world.root.ledger(f"github:{REPO}#1")
        good = path.read_bytes()
        path.write_bytes(b"{}")
        await world.cycle()
        if how == "closed":
            world.github.close(REPO, 1)
        else:
            world.github.unlabel(REPO, 1, "auto")
        await world.cycle(times=2)
        path.write_bytes(good)
        await world.cycle(times=5)
        world.github.close(REPO, 1)
        await world.cycle(times=35)

        assert world.ids() == [*STARTED, "1/close:1"]

    @in_real_loop
    async def test_item_when_it_raises_then_its_rows_are_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = await delivered(tmp_path)

        def raising(ledger: Any, view: Any, rules: Any) -> Any:
            if view.ref.endswith("#1"):
                raise RuntimeError("a bug of ours")
            return decide(ledger, view, rules)

        monkeypatch.setattr(visits_module, "decide", raising)
        world.github.comment(REPO, 1)
        world.github.comment(REPO, 2)
        await world.cycle()
        monkeypatch.setattr(visits_module, "decide", decide)
        assert world.ids() == [*STARTED, "2/comment:1002"]
        assert world.cursor()["owed"] == [f"github:{REPO}#1"]
        world = world.restart()
        await world.cycle()

        assert world.ids() == [*STARTED, "2/comment:1002", "1/comment:1001"]

    @in_real_loop
    async def test_position_when_it_cannot_be_written_then_a_restart_delivers_nothing_twice(
        self, tmp_path: Path
    ) -> None:
        world = await delivered(tmp_path)
        path = world.root.cursor("github")
        kept = path.read_bytes()
        path.unlink()
        path.mkdir()  # nothing can be renamed onto it
        world.github.comment(REPO, 1)
        await world.cycle(times=2)
        path.rmdir()
        path.write_bytes(kept)
        world = world.restart()
        world.github.comment(REPO, 1)
        await world.cycle(times=2)

        assert world.ids() == [*STARTED, "1/comment:1001", "1/comment:1002"]

    @in_real_loop
    async def test_position_when_a_page_fails_then_does_not_move(self, tmp_path: Path) -> None:
        world = await delivered(tmp_path)
        before = world.cursor()
        for _ in range(250):
            world.github.comment(REPO, 1)
        world.github.fail(r"/issues/comments.*&page=2", server_error(500))
        await world.cycle()
        assert world.cursor() == before
        await world.cycle(times=2)

        assert world.ids() == [*STARTED, *(f"1/comment:{id_}" for id_ in range(1001, 1251))]

    @in_real_loop
    async def test_list_when_it_changes_under_every_walk_then_what_was_read_counts(self, tmp_path: Path) -> None:
        """Rows may have slipped over a page edge: they are found in the threads."""
        world = await delivered(tmp_path)
        for _ in range(150):
            world.github.comment(REPO, 1)
        busy, written = [True], []

        def meddle(_number: int, target: str) -> None:
            if busy and "&page=2" in target and "comments" in target:
                written.append(f"comment:{world.github.comment(REPO, 2)}")

        world.github.hook(meddle)
        await world.cycle()
        assert (world.state, len(world.ids(1))) == ("ok", 151)
        busy.clear()
        await world.cycle(times=2)

        assert world.ids(1) == ["spawn:1", *(f"comment:{id_}" for id_ in range(1001, 1151))]
        assert world.ids(2) == ["spawn:1", *written]
        assert len(written) >= 3


STARTED = ["1/spawn:1", "2/spawn:1", "3/spawn:1"]


async def delivered(folder: Path) -> World:
    """Three items, the second a pull request, all of them started."""
    world = scene(folder)
    for is_pull in (False, True, False):
        world.add_issue(pull_request=is_pull)
    await world.cycle(times=3)
    assert world.ids() == STARTED
    return world


Path_ = tuple[str | int, ...]


def paths(tree: Any, here: Path_ = ()) -> Iterator[Path_]:
    """The way to every value in a tree of JSON."""
    keys: Any = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield (*here, key)
        yield from paths(tree[key], (*here, key))


def put(tree: Any, path: Path_, value: Any) -> bool:
    """Replace the value there by one of another shape; False where it would have the same."""
    *way, last = path
    for key in way:
        tree = tree[key]
    if type(tree[last]) is type(value) or (isinstance(tree[last], int | float) and isinstance(value, int | float)):
        return False
    tree[last] = value
    return True


class TestSweep:
    @pytest.mark.parametrize("every_s", [60, 300, 600, 1800, 3600])
    @in_real_loop
    async def test_reviews_when_each_look_is_a_life_of_its_own_then_all_are_found_in_time(
        self, tmp_path: Path, every_s: int
    ) -> None:
        """A timer that starts one look at a time, more rarely than the interval: each has its turn all the same."""
        world = scene(tmp_path, Rules(reviews_move_issue=False))
        numbers = [world.add_issue(pull_request=True) for _ in range(SWEEP + 5)]
        await world.cycle(times=5)
        for number in numbers:
            world.github.review(REPO, number, state="APPROVED")
        for _ in range(2 * SWEEP):
            world.clock.run(every_s - world.options.interval_s)
            world = world.restart()
            await world.cycle()

        found = [name for name in world.ids() if "/review:" in name]
        assert sorted(found) == sorted(f"{number}/review:{1000 + number}" for number in numbers)


class TestDeparture:
    @pytest.mark.parametrize("fault", ["lag", "error"])
    @in_real_loop
    async def test_comments_when_nobody_can_tell_yet_that_their_item_left_then_keep_their_order(
        self, tmp_path: Path, fault: str
    ) -> None:
        """Not listed any more, and still open by its own address, or not to be asked: its rows are to be kept."""
        lag_s = dict.fromkeys(View, 0.0)
        world = scene(tmp_path, Rules(lag_s=lag_s.__getitem__))
        world.add_issue()
        await world.cycle(times=3)
        world.github.close(REPO, 1)
        world.github.comment(REPO, 1)
        if fault == "lag":
            lag_s[View.ISSUE] = 30.0
        else:
            world.github.fail(r"/issues/1$", server_error())
        await world.cycle()
        lag_s[View.ISSUE] = 0.0
        world.github.comment(REPO, 1)
        await world.cycle(times=6)

        assert world.ids() == ["1/spawn:1", "1/comment:1001", "1/comment:1002", "1/close:1"]
