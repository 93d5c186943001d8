"""The page of `the-loop report`: one HTML document that needs nothing else, and runs no script.

Colours never say anything alone: what a bar shows is in its title and in the table below the chart, and a level is
written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from the_loop import __version__
from the_loop.core.model import epoch, span
from the_loop.markup import Html, element, joined
from the_loop.report import Bar, Event, ItemStory, Report, Result, Wait, moment_of

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_CLASSES: Final = {
    Result.DELIVERED: "delivered",
    Result.DEFERRED: "deferred",
    Result.REJECTED: "rejected",
    Result.UNKNOWN: "unknown",
}
_STATES: Final = {
    "paused": "deliveries paused",
    "gave-up": "given up",
    "breaker": "item paused",
}
_SINCE: Final = {"created": "From writing to hand-over", "accepted": "From acceptance to hand-over"}
_STYLE: Final = Html("""
:root{color-scheme:light dark;--back:#fff;--card:#f5f6f8;--text:#1c2128;--soft:#555d68;--line:#d0d5db;
--delivered:#1f7a3d;--deferred:#6b7280;--rejected:#b42318;--unknown:#8a5300;--link:#0b5cad}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--card:#1e2329;--text:#e6e9ed;--soft:#a3acb8;--line:#3a424c;
--delivered:#4cc274;--deferred:#98a2b0;--rejected:#ff8a7d;--unknown:#e3a94b;--link:#7db8ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
main,header,footer{max-width:60rem;margin:0 auto;padding:0 1rem}
header{padding-top:1rem}h1{font-size:1.5rem;margin:0}h2{font-size:1.2rem;margin:2rem 0 .6rem}
h3{font-size:1rem;margin:1.2rem 0 .4rem}
p{margin:.3rem 0}.soft,footer{color:var(--soft)}footer{padding:2rem 1rem;font-size:.875rem}
ul{list-style:none;margin:0;padding:0}code{font:.875em ui-monospace,monospace}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.5rem,1fr));gap:.6rem;margin:1rem 0 0}
.tiles div,.card,details{background:var(--card);border:1px solid var(--line);border-radius:.4rem}
.tiles div{padding:.5rem .7rem}.tiles dt{font-size:.875rem;color:var(--soft)}.tiles dd{margin:0;font-size:1.5rem}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(18rem,100%),1fr));gap:.6rem}
.card{padding:.6rem .8rem}.card h3{margin:0 0 .3rem}.card dl{display:grid;grid-template-columns:auto 1fr;
gap:.1rem .8rem;margin:0}.card dt{color:var(--soft)}.card dd{margin:0;text-align:right}
.needs .card{border-left:.3rem solid var(--rejected)}.needs code{display:block;margin-top:.3rem}
svg{display:block;width:100%;height:9rem}.spark{width:5rem;height:1.4rem}
.chart{border-bottom:1px solid var(--line);border-top:1px dashed var(--line)}.spark rect{fill:var(--link)}
.delivered{fill:var(--delivered)}.deferred{fill:var(--deferred)}.rejected{fill:var(--rejected)}
.unknown{fill:var(--unknown)}.axis{display:flex;justify-content:space-between;font-size:.875rem;color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.875rem;margin:.4rem 0}
.legend svg{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem;vertical-align:-.05rem}
table{border-collapse:collapse;width:100%;font-size:.875rem}th,td{text-align:left;padding:.25rem .6rem .25rem 0;
border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:break-word}th{vertical-align:bottom}
.number{text-align:right;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}caption{text-align:left;color:var(--soft);padding:.3rem 0}
details{margin:.4rem 0;padding:0 .8rem;content-visibility:auto;contain-intrinsic-size:auto 2.8rem}
summary{cursor:pointer;padding:.6rem 0}summary .soft{font-size:.875rem}
details ol{list-style:none;margin:0 0 .8rem;padding:0;font-size:.875rem}details li{padding:.25rem 0;
border-top:1px solid var(--line)}time{color:var(--soft);font-variant-numeric:tabular-nums;white-space:nowrap}
li time{margin-right:.5rem}
.card time{margin:0}
.warning b,.error b,.bad{color:var(--rejected)}.good{color:var(--delivered)}.doubt{color:var(--unknown)}
:focus-visible{outline:.15rem solid var(--link);outline-offset:.1rem}
@media print{details{break-inside:avoid}}
""")


def page(report: Report, *, state_root: str, state: str, zone: tzinfo | None = None) -> str:
    """The document. `state`: the poller in a few words; `zone`: that of the times shown, None for the system's."""
    view = _View(report, zone)
    title = f"the-loop: {view.time(report.since)} to {view.time(report.until)}"
    head = joined(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", title),
            element("style", _STYLE),
        ]
    )
    header = element(
        "header",
        element("h1", "the-loop"),
        element("p", f"{view.time(report.since)} to {view.time(report.until)} ({view.zones()})"),
        element("p", f"{state}, last report ", view.ago(report.beat.get("writtenAt")), class_="soft"),
        element("p", f"state root {state_root}", class_="soft"),
    )
    main = element("main", view.tiles(), view.needs(), view.chart(), view.waits(), view.sources(), view.items())
    footer = element("footer", f"Written at {view.time(report.until, seconds=True)} by the-loop {__version__}.")
    body = element("body", header, main, footer)
    return f"<!DOCTYPE html>\n{element('html', element('head', head), body, lang='en')}\n"


class _View:
    """The parts of the page."""

    def __init__(self, report: Report, zone: tzinfo | None) -> None:
        self._report = report
        self._zone = zone

    # --- moments ---

    def time(self, moment: datetime, *, seconds: bool = False) -> Html:
        """The moment in the page's zone, as text; not in an element, as titles have none."""
        return Html(moment.astimezone(self._zone).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M"))

    def zones(self) -> str:
        """The names of the zone at both ends, which differ over a change of daylight saving time."""
        ends = (self._report.since, self._report.until)
        return " to ".join(dict.fromkeys(end.astimezone(self._zone).tzname() or "local time" for end in ends))

    def _until(self, moment: object) -> Html | None:
        at = epoch(moment)
        return None if at is None else self.time(datetime.fromtimestamp(at, UTC))

    def ago(self, moment: object) -> Html:
        """A moment of the heartbeat, as how long before the end of the span it was."""
        at = epoch(moment)
        if at is None:
            return Html("never")
        shown = element("time", f"({self.time(datetime.fromtimestamp(at, UTC))})", datetime=moment)
        return joined([f"{span(self._report.until.timestamp() - at)} ago ", shown])

    # --- at a glance ---

    def tiles(self) -> Html:
        report = self._report
        shown: dict[str, object] = {str(result): report.counts[result] for result in _CLASSES}
        shown["given up"] = report.gave_up
        shown["need a person"] = "unknown" if report.attention is None else len(report.attention)
        shown["run now"] = "unknown" if report.running is None else report.running
        return element(
            "dl", *(element("div", element("dt", name), element("dd", n)) for name, n in shown.items()), class_="tiles"
        )

    def needs(self) -> Html:
        attention = self._report.attention
        if attention is None:
            inner = element("p", "Unknown: the poller's last report could not be read.", class_="doubt")
        elif not attention:
            inner = element("p", "Nothing, as of the last report.", class_="good")
        else:
            inner = element("ul", *map(self._need, attention), class_="needs cards")
        return _section("needs", "Needs a person", inner)

    def _need(self, one: Mapping[str, Any]) -> Html:
        what = one.get("deliveryId") or one.get("ref") or one.get("source") or "all deliveries"
        state = str(one.get("state"))
        since = joined([", since ", self.ago(one["since"])]) if one.get("since") else ""
        told = element("p", f"{_STATES.get(state, state)}: {one.get('reason')}", since)
        command = element("code", one["command"]) if one.get("command") else ""
        return element("li", element("strong", what), told, command, class_="card")

    # --- deliveries over time ---

    def chart(self) -> Html:
        report = self._report
        if not report.counts:
            return _section("deliveries", "Deliveries", element("p", "None in this time.", class_="soft"))
        most = max(bar.counts.total() for bar in report.bars)
        drawn = joined(self._bar(place, bar, most) for place, bar in enumerate(report.bars))
        name = f"Deliveries per {_width(report.width)}, at most {most}"
        svg = element(
            "svg",
            element("title", name),
            drawn,
            role="img",
            aria_label=f"{name}; the table below has the numbers",
            class_="chart",
            viewBox=f"0 0 {len(report.bars)} {most}",
            preserveAspectRatio="none",
        )
        ends = (self.time(report.bars[0].start), self.time(report.until))
        axis = element("div", *(element("span", end) for end in ends), class_="axis")
        above = element("div", element("span", most), element("span", f"per {_width(report.width)}"), class_="axis")
        return _section("deliveries", "Deliveries", above, svg, axis, self._legend(), self._table())

    def _bar(self, place: int, bar: Bar, most: int) -> Html:
        """One bar, stacked from the bottom; its title is shown by a pointer that rests on it."""
        title, top, drawn = element("title", f"{self.time(bar.start)}: {_in_words(bar.counts)}"), most, []
        for result, name in _CLASSES.items():
            if count := bar.counts[result]:
                top -= count
                drawn.append(element("rect", x=f"{place + 0.1:g}", y=top, width="0.8", height=count, class_=name))
        return element("g", title, *drawn) if drawn else Html("")

    def _legend(self) -> Html:
        seen = [result for result in _CLASSES if self._report.counts[result]]
        return element("ul", *(element("li", _swatch(result), str(result)) for result in seen), class_="legend")

    def _table(self) -> Html:
        rows = [("from", *map(str, _CLASSES))]
        bars = [bar for bar in self._report.bars if bar.counts]
        rows += [(self.time(bar.start), *(str(bar.counts[result]) for result in _CLASSES)) for bar in bars]
        return element("details", element("summary", "The same as a table"), _table("Deliveries by outcome", rows))

    # --- latencies ---

    def waits(self) -> Html:
        report = self._report
        if not report.deliveries and not report.waits:
            inner = element("p", "No event was handed over, as far as is known.", class_="soft")
            return _section("waits", "Latency", inner)
        parts = [_table("From acceptance to delivery", list(self._wait_rows(report.deliveries)))]
        if report.waits:
            start = self.ago(report.beat.get("since"))
            parts.append(element("p", "Since the start of the poller, ", start, ":", class_="soft"))
        for since, title in _SINCE.items():
            if chosen := [wait for wait in report.waits if wait.since == since]:
                parts.append(_table(title, list(self._wait_rows(chosen))))
        return _section("waits", "Latency", *(parts if report.deliveries else parts[1:]))

    def _wait_rows(self, waits: Sequence[Wait]) -> Iterator[tuple[str, ...]]:
        yield "events", "number", "half within", "95 % within", "spread"
        for wait in waits:
            times = (_within(wait, 0.5), _within(wait, 0.95))
            yield f"{wait.kind} of {wait.source}", str(wait.number), *times, _spark(wait)

    # --- sources ---

    def sources(self) -> Html:
        sources = self._report.sources
        if sources is None:
            inner = element("p", "Unknown: the poller's last report could not be read.", class_="doubt")
        else:
            inner = element("ul", *map(self._source, sources), class_="cards")
        return _section("sources", "Sources", inner)

    def _source(self, source: Mapping[str, Any]) -> Html:
        state = str(source.get("state"))
        shown = {
            "provider": source.get("provider"),
            "items": source.get("items"),
            "last good cycle": self.ago(source.get("lastGoodAt")),
            "waits until": self._until(source.get("waitingUntil")),
            "need a full re-read": source.get("owed") or None,
            "wait for a start word": source.get("waiting") or None,
        }
        rows = [
            part
            for name, value in shown.items()
            if value is not None
            for part in (element("dt", name), element("dd", value))
        ]
        error = element("p", source["error"], class_="bad") if source.get("error") else ""
        good = {"ok": "good", "failing": "bad"}.get(state, "doubt")
        title = element("h3", source.get("name"), " ", element("span", state, class_=good))
        return element("li", title, error, element("dl", *rows), class_="card")

    # --- timelines ---

    def items(self) -> Html:
        report = self._report
        parts = [self._story(story) for story in report.items] or [element("p", "No events of items.", class_="soft")]
        section = _section("items", f"Items ({len(report.items)})", *parts)
        if not report.others:
            return section
        title = element("summary", f"{len(report.others)} events of the poller and its sources")
        return joined([section, _section("poller", "Poller", element("details", title, self._timeline(report.others)))])

    def _story(self, story: ItemStory) -> Html:
        last = self.time(moment_of(story.events[-1]))
        words = [*([_in_words(story.counts)] if story.counts else []), f"last event {last}"]
        mark = element("strong", " needs a person", class_="bad") if story.needs_person else ""
        summary = element("summary", story.ref, mark, " ", element("span", ", ".join(words), class_="soft"))
        return element("details", summary, self._timeline(story.events))

    def _timeline(self, events: Any) -> Html:
        return element("ol", *map(self._line, events))

    def _line(self, event: Event) -> Html:
        level = str(event.get("level", ""))
        when = element("time", self.time(moment_of(event), seconds=True), datetime=event["time"])
        loud = element("b", f"{level} ") if level in ("warning", "error") else ""
        return element("li", when, loud, event.get("message") or event["event"], class_=level or None)


def _section(name: str, title: str, *inner: object) -> Html:
    return element("section", element("h2", title, id=name), *inner, aria_labelledby=name)


def _table(caption: str, rows: list[tuple[str, ...]]) -> Html:
    """A table whose first row is its head. A column of numbers is aligned to the right."""
    head, *body = rows
    kinds = ["number" if all(cell.isdigit() for cell in column[1:]) else None for column in zip(*rows, strict=True)]
    heads = element(
        "tr", *(element("th", one, scope="col", class_=kind) for one, kind in zip(head, kinds, strict=True))
    )
    lines = (
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in body
    )
    table = element("table", element("caption", caption), element("thead", heads), element("tbody", *lines))
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _swatch(result: Result) -> Html:
    square = element("rect", width="1", height="1", class_=_CLASSES[result])
    return element("svg", square, viewBox="0 0 1 1", aria_hidden="true")


def _spark(wait: Wait) -> Html:
    """The histogram of a row, a bar for each bucket."""
    most = max(wait.counts)
    bars = [
        element("rect", x=f"{place + 0.1:g}", y=most - count, width="0.8", height=count)
        for place, count in enumerate(wait.counts)
        if count
    ]
    limits = [f"within {span(limit)}" for limit in wait.limits] + ["later"]
    title = ", ".join(f"{limit}: {count}" for limit, count in zip(limits, wait.counts, strict=True) if count)
    return element(
        "svg",
        element("title", title),
        *bars,
        role="img",
        aria_label=title,
        class_="spark",
        viewBox=f"0 0 {len(wait.counts)} {most}",
        preserveAspectRatio="none",
    )


def _within(wait: Wait, share: float) -> str:
    limit = wait.within_s(share)
    return f"more than {span(wait.limits[-1])}" if limit is None else span(limit)


def _in_words(counts: Counter[Result]) -> str:
    return ", ".join(f"{counts[result]} {result}" for result in _CLASSES if counts[result])


def _width(width: timedelta) -> str:
    return span(width.total_seconds())
