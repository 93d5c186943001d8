"""`the-loop report`: from events to numbers, and to one page that is well formed, needs nothing, and is honest.

There is no browser among what the tests need; what is drawn was looked at in one (docs/development/testing.md).
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner, Result

from the_loop.cli import cli, status
from the_loop.core.model import Note, timestamp
from the_loop.durable import to_json_bytes
from the_loop.eventlog import JsonLog, compose
from the_loop.lock import Probe, Sight
from the_loop.markup import Html, element
from the_loop.processes import Identity
from the_loop.report import Report, Wait, report_of
from the_loop.report import Result as Became
from the_loop.report_page import _STYLE, POLICY, page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from the_loop.state import StateRoot

NOW: Final = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
DAY: Final = timedelta(days=1)
HOSTILE: Final = "</title></style><script>alert(1)</script>\"'&<!-- \x1b[31m\u202e\ud800"
BEAT: Final[Mapping[str, Any]] = {
    "writtenAt": "2026-01-31T11:59:30.000Z",
    "since": "2026-01-31T06:00:00.000Z",
    "sources": [
        {"name": "work", "provider": "github", "state": "failing", "items": 5, "error": "down", "lastGoodAt": None},
        {"name": "inbox", "provider": "directory", "state": "ok", "items": 2, "lastGoodAt": "2026-01-31T11:58:00.000Z"},
    ],
    "attention": [
        {"ref": "fake:2", "deliveryId": "fake:2/comment:1", "state": "gave-up", "reason": "why", "command": "do this"},
        {"state": "paused", "reason": "no such command"},
    ],
    "counters": {
        "running": 3,
        "limits": [1, 60],
        "waits": [{"since": "created", "source": "work", "kind": "comment", "counts": [1, 18, 1], "seconds": 400.0}],
    },
}


KNOWN: Final = set(
    re.findall(
        r"\w+",
        "html head meta title style body header main footer section h1 h2 h3 p dl dt dd div ul ol li span strong b "
        "code time svg g rect table caption thead tbody tr th td details summary",
    )
)


def event(name: str, minutes_ago: float = 10, **fields: Any) -> dict[str, Any]:
    return compose(Note(name, fields), (NOW - timedelta(minutes=minutes_ago)).timestamp())


def delivered(ref: str = "fake:1", minutes_ago: float = 10, key: str = "comment:1") -> dict[str, Any]:
    return event("poll.comment_forwarded", minutes_ago, ref=ref, key=key, kind="comment", attempt=1)


def rejected(ref: str = "fake:1", minutes_ago: float = 10, *, will_retry: bool = True) -> dict[str, Any]:
    fields = {"ref": ref, "key": "comment:1", "attempt": 1, "reason": "exit status 1", "willRetry": will_retry}
    return event("poll.comment_failed", minutes_ago, **fields)


def report(
    *events: Mapping[str, Any], beat: Mapping[str, Any] = BEAT, span: timedelta = DAY, is_current: bool = True
) -> Report:
    told = sorted(events, key=lambda one: str(one["time"]))
    return report_of(told, beat, NOW - span, NOW, is_current=is_current)


def shown(found: Report, state: str = "running") -> str:
    return page(found, state_root="/r", state=state, zone=UTC)


class Strict(HTMLParser):
    """Fails where an element is not closed by its own end tag; keeps elements with their attributes, and the text."""

    VOID: Final = {"meta"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # with the element around each
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def said(self, tag: str) -> list[str]:
        return [text for around, text in self.texts if around == tag]

    @property
    def words(self) -> str:
        return " ".join(text for around, text in self.texts if around != "style")


def read(text: str) -> Strict:
    return Strict(text.removeprefix("<!DOCTYPE html>\n"))


def tiles(text: str) -> dict[str, str]:
    pairs = re.findall(r"<div><dt>([^<]*)</dt><dd>([^<]*)</dd></div>", text)
    return dict(pairs)


# --- numbers ---


def test_counts_when_events_are_told_then_are_of_deliveries_by_what_became_of_them() -> None:
    found = report(
        event("poll.spawned", ref="fake:1", key="spawn:1"),
        event("session.started", ref="fake:1", key="spawn:1"),
        delivered(),
        event("session.closed", ref="fake:1", key="close:1", reason="closed"),
        rejected(),
        rejected(will_retry=False),
        event("dispatch.uncertain", ref="fake:1", key="comment:1", reason="killed"),
        event("poll.comment_held", ref="fake:1", key="comment:1", reason="killed again"),
        event("poll.deferred", ref="fake:1", key="comment:1", reason="exit status 75"),
        event("poll.cycle", delivered=3),
    )

    assert found.counts == {Became.DELIVERED: 3, Became.REJECTED: 2, Became.UNKNOWN: 2, Became.DEFERRED: 1}
    assert found.gave_up == 1
    assert sum((bar.counts for bar in found.bars), Counter()) == found.counts


@pytest.mark.parametrize(
    ("span", "width", "number"),
    [
        (timedelta(minutes=5), timedelta(minutes=1), 5),
        (timedelta(hours=24), timedelta(minutes=30), 48),
        (timedelta(days=7), timedelta(hours=6), 28),
        (timedelta(days=48), timedelta(days=1), 49),
        (timedelta(days=3650), timedelta(days=128), 29),
    ],
)
def test_bars_when_the_span_is_short_or_long_then_are_not_too_many(
    span: timedelta, width: timedelta, number: int
) -> None:
    bars = report(span=span).bars

    assert (bars[1].start - bars[0].start, len(bars)) == (width, number)
    assert bars[0].start <= NOW - span < bars[0].start + width
    assert bars[-1].start < NOW <= bars[-1].start + width


def test_bars_when_the_zone_is_not_of_whole_hours_then_begin_at_its_own() -> None:
    zone = timezone(timedelta(hours=5, minutes=45))
    bars = report_of([], {}, (NOW - DAY).astimezone(zone), NOW, is_current=False).bars

    assert {bar.start.minute for bar in bars} == {0, 30}


def test_bars_when_an_event_is_at_an_end_of_the_span_then_it_is_in_the_first_or_the_last() -> None:
    bars = report(delivered(minutes_ago=0.001), delivered(minutes_ago=24 * 60)).bars

    assert [place for place, bar in enumerate(bars) if bar.counts] == [0, len(bars) - 1]


def test_items_when_events_name_only_a_delivery_then_that_is_of_its_item() -> None:
    found = report(
        delivered("fake:1", 30),
        delivered("fake:2", 20),
        event("dispatch.left_running", 10, deliveryId="fake:1/spawn:1"),
    )

    assert [(story.ref, len(story.events), story.needs_person) for story in found.items] == [
        ("fake:2", 1, True),
        ("fake:1", 2, False),
    ]


def test_others_when_a_cycle_had_nothing_to_say_then_it_is_left_out() -> None:
    events = [event("poll.cycle", errors=0, interrupted=False), event("poll.cycle", errors=1), event("poller.started")]

    assert [one["event"] for one in report(*events).others] == ["poll.cycle", "poller.started"]


@pytest.mark.parametrize(
    ("counts", "half", "most"),
    [([2, 0, 0], 1, 1), ([1, 18, 1], 60, 60), ([0, 1, 1], 60, None), ([0, 0, 1], None, None)],
)
def test_waits_when_asked_for_a_share_then_tell_the_limit_of_its_bucket(
    counts: list[int], half: float | None, most: float | None
) -> None:
    wait = Wait("created", "work", "comment", [1, 60], counts)

    assert (wait.within_s(0.5), wait.within_s(0.95)) == (half, most)


def test_deliveries_when_acceptance_and_delivery_are_told_then_tell_how_long_that_took() -> None:
    events = [
        event("poll.accepted", 60, ref="fake:1", key="comment:1", kind="comment", source="work"),
        event("poll.accepted", 60, ref="fake:1", key="comment:1", kind="comment", source="work"),
        rejected("fake:1", 59),
        event("poll.comment_forwarded", 58, ref="fake:1", key="comment:1", kind="comment", source="work"),
        event("poll.comment_forwarded", 30, ref="fake:1", key="comment:2", kind="comment", source="work"),
        event("poll.accepted", 20, ref="fake:1", key="comment:3", kind="comment", source="work"),
    ]
    (found,) = report(*events).deliveries

    assert (found.source, found.kind, found.number) == ("work", "comment", 1)
    assert found.within_s(0.5) == 300  # two minutes are more than one, and not more than five
    assert "comment of work" in read(shown(report(*events))).said("td")


# --- the page ---


def full() -> Report:
    kinds = [delivered("fake:1", 30), rejected("fake:2", 20, will_retry=False), event("source.failed", source="work")]
    return report(*kinds, delivered(HOSTILE, 10))


def test_page_when_read_strictly_then_every_element_is_closed_and_known() -> None:
    found = read(shown(full()))

    assert {name for name, _ in found.elements} == KNOWN
    assert shown(full()).startswith('<!DOCTYPE html>\n<html lang="en">')


def test_page_when_opened_then_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    text = shown(full())
    found = read(text)

    metas = {meta.get("http-equiv") or meta.get("name") or "charset": meta.get("content") for meta in found.of("meta")}
    assert metas["Content-Security-Policy"] == POLICY == "default-src 'none'; style-src 'unsafe-inline'"
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    names = {name for _, attributes in found.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href", "style", "srcset")]
    assert not re.search(r"url\(|@import|expression|</?script", "".join(found.said("style")))


@pytest.mark.parametrize("place", ["ref", "message", "level", "name", "error", "reason", "command", "since", "kind"])
def test_page_when_a_text_from_outside_is_markup_then_it_is_shown_as_text(place: str) -> None:
    odd = {**delivered(), **({place: HOSTILE} if place in ("ref", "message", "level") else {})}
    beat = json.loads(json.dumps(BEAT))
    for one in (*beat["sources"], *beat["attention"], *beat["counters"]["waits"]):
        one.update({place: HOSTILE} if place in one else {})

    text = page(report(odd, beat=beat), state_root=HOSTILE, state=HOSTILE, zone=UTC)

    found = read(text)
    assert not found.of("script")
    assert "\\x1b[31m\\u202e\ufffd" in found.words
    assert text.isascii() or all(char.isprintable() or char == "\n" for char in text)
    assert {name for name, _ in found.elements} <= KNOWN
    assert len(found.of("style")) == len(found.of("h1")) == 1


def test_page_when_it_is_read_aloud_then_headings_tables_and_drawings_have_names() -> None:
    found = read(shown(full()))
    heads = [int(name[1]) for name, _ in found.elements if re.fullmatch(r"h\d", name)]
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]

    assert heads[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(heads))
    assert len(ids) == len(set(ids))
    assert {one["aria-labelledby"] for one in found.of("section")} == set(ids)
    assert found.of("th")
    assert all(one.get("scope") == "col" for one in found.of("th"))
    assert len(found.of("caption")) == len(found.of("table")) >= 2
    for drawing in found.of("svg"):
        assert drawing.get("aria-hidden") == "true" or (drawing["role"] == "img" and drawing["aria-label"])


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2) of `#rrggbb` or `#rgb`."""
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_when_text_is_on_page_or_card_then_have_enough_contrast(scheme: int) -> None:
    names = re.findall(r":root\{([^}]*)\}", _STYLE)[scheme]
    colours = {name: luminance(value) for name, value in re.findall(r"--(\w+):#([0-9a-f]+)", names)}

    assert "prefers-color-scheme:dark" in _STYLE
    for back in ("back", "card"):
        for text in ("text", "soft", "delivered", "rejected", "unknown"):
            light, dark = sorted((colours[back], colours[text]), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {back}"
    for part in ("deferred", "link"):  # of drawings
        light, dark = sorted((colours["back"], colours[part]), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3, part


def test_page_when_something_needs_a_person_then_says_what_to_type_and_has_its_item_first() -> None:
    found = read(shown(full()))

    assert "do this" in found.said("code")
    assert "given up: why" in found.words
    first = next(text for around, text in found.texts if around == "summary" and "table" not in text)
    assert first == "fake:2"


def test_page_when_a_drawing_is_read_as_a_table_then_has_the_same_numbers() -> None:
    text = shown(report(delivered(), delivered(), rejected()))
    found = read(text)

    cells = found.said("td")
    assert cells[:5] == ["2026-01-31 11:30", "2", "0", "1", "0"]
    assert "2026-01-31 11:30: 2 delivered, 1 rejected" in found.said("title")
    heights = [one["height"] for one in found.of("rect") if one.get("class") in ("delivered", "rejected")]
    assert heights[:2] == ["2", "1"]


def test_page_when_the_heartbeat_is_missing_then_says_unknown_and_not_nothing() -> None:
    text = shown(report(delivered(), beat={"sources": []}, is_current=False))

    assert text.count("Unknown: ") == 2
    assert (tiles(text)["need a person"], tiles(text)["run now"]) == ("unknown", "unknown")
    assert "last report never" in read(text).words


@pytest.mark.parametrize(("is_current", "running"), [(True, "3"), (False, "unknown")])
def test_page_when_the_heartbeat_is_of_an_earlier_run_then_what_runs_is_unknown(is_current: bool, running: str) -> None:
    assert tiles(shown(report(is_current=is_current)))["run now"] == running


def test_page_when_nothing_happened_then_says_so() -> None:
    found = read(shown(report(beat={**BEAT, "attention": [], "counters": {}})))

    for words in ("None in this time.", "No event was handed over", "No events of items.", "Nothing, as of"):
        assert words in found.words


@pytest.mark.parametrize("odd", [None, True, -1, 1e999, float("nan"), "x", [], {}, [[]], {"a": []}], ids=repr)
def test_page_when_any_part_of_the_heartbeat_is_damaged_then_is_still_a_page(odd: Any) -> None:
    for name in BEAT:
        read(shown(report(beat={**BEAT, name: odd})))
    for name in ("sources", "attention"):
        for key in BEAT[name][0]:
            read(shown(report(beat={**BEAT, name: [{**BEAT[name][0], key: odd}]})))
    for key in BEAT["counters"]:
        read(shown(report(beat={**BEAT, "counters": {**BEAT["counters"], key: odd}})))
    for key in BEAT["counters"]["waits"][0]:
        waits = [{**BEAT["counters"]["waits"][0], key: odd}]
        read(shown(report(beat={**BEAT, "counters": {**BEAT["counters"], "waits": waits}})))


def test_page_when_there_are_10000_events_then_takes_less_than_2_s() -> None:
    events = [delivered(f"fake:{number % 700}", number / 10, f"comment:{number}") for number in range(10_000)]

    began_s = time.process_time()
    text = shown(report(*events))

    assert time.process_time() - began_s < 2
    assert tiles(text)["delivered"] == "10000"


def test_element_when_it_gets_markup_then_keeps_that_and_escapes_all_other_text() -> None:
    found = element("p", Html("<b>x</b>"), "<i>", 7, title='"<', aria_label=None, class_="a")

    assert found == '<p title="&quot;&lt;" class="a"><b>x</b>&lt;i&gt;7</p>'


# --- the command ---


def run(root: StateRoot, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--state-root", str(root.path), "report", *words])


def write_log(root: StateRoot, *hours_ago: float) -> None:
    for ago in sorted(hours_ago, reverse=True):
        note = Note("poll.spawned", {"ref": f"fake:{ago:g}", "key": "spawn:1"})
        JsonLog(root.logs / "events.jsonl").write(compose(note, time.time() - ago * 3600))


def test_report_when_asked_then_is_about_the_last_day(root: StateRoot) -> None:
    write_log(root, 30, 20, 1)

    done = run(root)

    assert done.exit_code == 0
    assert tiles(done.stdout)["delivered"] == "2"
    assert "no poller is running" in read(done.stdout).words


def test_report_since_a_moment_then_is_about_the_time_from_then_on(root: StateRoot) -> None:
    write_log(root, 30, 20, 1)

    assert tiles(run(root, "--since", "2d").stdout)["delivered"] == "3"
    assert tiles(run(root, "--since", "2h ago").stdout)["delivered"] == "1"


@pytest.mark.parametrize("since", ["tomorrow-ish", "2999-01-01"])
def test_report_since_no_time_of_the_past_then_2(root: StateRoot, since: str) -> None:
    assert run(root, "--since", since).exit_code == 2


def test_report_when_the_poller_runs_then_says_so_and_what_runs(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(root, 1)
    root.heartbeat.write_bytes(to_json_bytes({**BEAT, "pid": 11, "starttime": 22, "writtenAt": timestamp(time.time())}))
    monkeypatch.setattr(status, "look", lambda *_: Sight(Probe.HELD, Identity(11, 22)))

    text = run(root).stdout

    assert "running as pid 11, last report" in read(text).words
    assert tiles(text)["run now"] == "3"


def test_report_when_it_tells_a_command_then_that_is_about_this_state_root(root: StateRoot) -> None:
    write_log(root, 1)
    attention = [{"ref": "fake:1", "state": "held", "reason": "x", "command": "the-loop ledger retry fake:1"}]
    root.heartbeat.write_bytes(to_json_bytes({**BEAT, "attention": attention}))

    assert f"the-loop --state-root {root.path} ledger retry fake:1" in read(run(root).stdout).said("code")


@pytest.mark.parametrize(("by_hand", "verb"), [(False, "accept"), (True, "reject")])
def test_report_when_an_account_changed_then_that_needs_a_person_too(root: StateRoot, by_hand: bool, verb: str) -> None:
    write_log(root, 1)
    root.heartbeat.write_bytes(to_json_bytes(BEAT))
    waiting = {"7": {"since": "2026-01-31T11:00:00.000Z", "refs": ["fake:1"]}}
    pinned = {"id": 1, "since": "2026-01-01T00:00:00.000Z", "sources": ["work"], "byHand": by_hand}
    logins = {"octocat": {**pinned, "waiting": waiting, "rejected": []}}
    tree = {"schema": 1, "hosts": {"api.github.com": {"logins": logins, "reread": []}}}
    root.authors.write_bytes(to_json_bytes(tree))

    text = run(root).stdout

    assert tiles(text)["need a person"] == "3"
    assert f"the-loop --state-root {root.path} authors {verb} octocat" in read(text).said("code")
    root.authors.write_bytes(b"damaged")
    assert "accounts of authors cannot be read" in read(run(root).stdout).words


def test_report_when_there_is_no_event_log_then_1_and_no_page(root: StateRoot) -> None:
    done = run(root)

    assert done.exit_code == 1
    assert done.stdout == ""
    assert f"cannot read the events and the state of '{root.path}': No such file or directory" in str(done.exception)


@pytest.mark.parametrize("what", ["events.jsonl", "poll-status.json"])
def test_report_when_a_file_cannot_be_read_then_1_and_no_page(root: StateRoot, what: str, tmp_path: Path) -> None:
    write_log(root, 1)
    file = root.heartbeat if what == "poll-status.json" else root.logs / what
    file.unlink(missing_ok=True)
    file.mkdir()

    done = run(root, "--output", str(tmp_path / "x.html"))

    assert done.exit_code == 1
    assert "Is a directory" in str(done.exception)
    assert not (tmp_path / "x.html").exists()


def test_report_on_a_terminal_then_is_refused_with_what_to_type(
    root: StateRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(root, 1)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)

    done = run(root)

    assert done.exit_code == 1
    assert done.stdout == ""
    assert f"`the-loop --state-root {root.path} report --output report.html`" in str(done.exception)


def test_output_when_the_file_is_new_then_is_its_owners_alone_whatever_the_umask(
    root: StateRoot, tmp_path: Path
) -> None:
    write_log(root, 1)
    before = os.umask(0)
    try:
        done = run(root, "--output", str(tmp_path / "x.html"))
    finally:
        os.umask(before)

    assert (done.exit_code, done.output) == (0, "")
    assert stat.S_IMODE((tmp_path / "x.html").stat().st_mode) == 0o600
    assert tiles((tmp_path / "x.html").read_text())["delivered"] == "1"


def test_output_when_the_file_is_there_then_is_replaced_and_keeps_its_mode(root: StateRoot, tmp_path: Path) -> None:
    write_log(root, 1)
    file = tmp_path / "x.html"
    file.write_text("old")
    file.chmod(0o644)
    inode = file.stat().st_ino

    assert run(root, "--output", str(file)).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert file.stat().st_ino != inode
    assert sorted(one.name for one in tmp_path.iterdir() if one.is_file()) == ["x.html"]


def test_output_when_it_cannot_be_written_then_1_and_it_says_which(root: StateRoot, tmp_path: Path) -> None:
    write_log(root, 1)

    done = run(root, "--output", str(tmp_path / "none" / "x.html"))

    assert done.exit_code == 1
    assert f"cannot write '{tmp_path}/none/x.html': No such file or directory" in str(done.exception)
