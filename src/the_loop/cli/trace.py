"""`the-loop trace`: everything known about one item or one event, in the order in which it happened."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from the_loop.cli.common import Options, must_exist, with_options
from the_loop.cli.completion import deliveries
from the_loop.cli.help import examples
from the_loop.cli.page import Line, age, put, when
from the_loop.core.model import LoopError, delivery_id, epoch, explain, timestamp

if TYPE_CHECKING:
    from the_loop.config import Config
    from the_loop.printed import Output
    from the_loop.seen import Stage
    from the_loop.trace import Traced

_SHOWN: Final = 100  # lines of the timeline
_LINE_LIMIT: Final = 400  # characters of one line of output
_STYLES: Final = {
    **dict.fromkeys(("running", "delivered", "live", "applied", "carried", "settled"), "good"),
    **dict.fromkeys(("held", "gave-up", "unread"), "bad"),
    **dict.fromkeys(("not-seen", "ended", "item-ended", "dropped", "withdrawn"), "dim"),
}


@click.command(
    "trace",
    epilog=examples(
        "the-loop trace 'github:octo/repo#15'",
        "the-loop trace 'https://github.com/octo/repo/issues/15#issuecomment-9'",
        "the-loop trace ~/inbox/squeaky-door/02-hinges.md",
    ),
)
@click.argument("what", metavar="URL|REF|DELIVERY-ID", shell_complete=deliveries)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_options
def command(options: Options, *, what: str, as_json: bool) -> None:
    """Show the life of one item or one event, in order of time.

    An item is named by its ref, its address in the browser, or the path of its
    folder; an event by its delivery id, its address, or the path of its file.
    Exit code 1 if nothing is known about it, or if it cannot be read.
    """
    from the_loop.trace import trace

    root = options.root()
    must_exist(root)
    now = time.time()
    at = timestamp if as_json else lambda moment: when(timestamp(moment), now)
    try:
        found = trace(root, what, _configuration(options), at)
    except OSError as error:
        raise LoopError(f"cannot read '{root.path}': {explain(error)}") from error
    if as_json:
        print(json.dumps(_in_json(found, options.typed)))
    else:
        put(_page(found, options.typed, now))
    click.get_current_context().exit(0 if found.stage.is_known else 1)


def _configuration(options: Options) -> Config | str:
    """The configuration of this call, or why it cannot be read."""
    from the_loop.config import ConfigError

    try:
        return options.load().config
    except ConfigError as error:
        return error.summary


def _in_json(found: Traced, typed: Callable[[str], str]) -> dict[str, Any]:
    ledger, key = found.ledger, found.key
    item = None
    if ledger is not None:
        poll = ledger.poll
        item = {"title": ledger.title, "url": ledger.url, "phase": str(poll.phase), "g": ledger.g}
        item |= {"paused": poll.paused, "away": poll.away, "reason": poll.reason or None}
    shown = found.output
    return {
        "asked": found.asked,
        "ref": found.ref or None,
        "deliveryId": delivery_id(found.ref, key) if key else None,
        "known": found.stage.is_known,
        **_stage_in_json(found.stage, typed),
        "author": found.author or None,
        "url": found.url or None,
        "item": item,
        "pending": [
            {"deliveryId": delivery_id(found.ref, one), **_stage_in_json(stage, typed)}
            for one, stage in found.pending.items()
        ],
        "timeline": list(found.timeline),
        "output": None if shown is None else {"place": shown.place, "shared": shown.is_shared, "lines": shown.lines},
        "unreadable": list(found.unreadable),
        "suggestions": list(found.suggestions),
    }


def _stage_in_json(stage: Stage, typed: Callable[[str], str]) -> dict[str, Any]:
    return {
        "state": stage.state,
        "summary": stage.text,
        "reason": stage.reason or None,
        "since": None if stage.since is None else timestamp(stage.since),
        "until": None if stage.until is None else timestamp(stage.until),
        "unit": stage.unit or None,
        "commands": [typed(f"`{one}`").strip("`") for one in stage.commands],
    }


def _page(found: Traced, typed: Callable[[str], str], now: float) -> Iterator[Line]:
    yield Line(head=delivery_id(found.ref, found.key) if found.key else found.ref or found.asked, style="bold")
    if found.ledger is not None and found.ledger.title:
        yield Line(f"  '{found.ledger.title}'")
    if about := ", ".join(part for part in (found.url, found.author and f"by {found.author}") if part):
        yield Line(f"  {about}")
    yield from _stage_lines(found.stage, typed)
    yield from (Line(problem, "cannot read ", "bad") for problem in found.unreadable)
    yield from (Line(f"did you mean {one}", is_command=True) for one in found.suggestions)
    if found.pending:
        yield from (Line(), Line("pending:"))
        for key, stage in found.pending.items():
            yield Line(f"  {key}")
            yield from _stage_lines(stage, typed, "    ")
    if found.timeline:
        yield Line()
        yield from _timeline_lines(found, now)
    if found.output is not None:
        yield Line()
        yield from _output_lines(found.output)


def _stage_lines(stage: Stage, typed: Callable[[str], str], indent: str = "") -> Iterator[Line]:
    first, blank, rest = stage.text.partition(" ")
    yield Line(blank + rest, indent + first, _STYLES.get(stage.state, "warn"))
    yield from (Line(typed(f"{indent}  run `{one}`"), is_command=True) for one in stage.commands)


def _timeline_lines(found: Traced, now: float) -> Iterator[Line]:
    omitted = len(found.timeline) - _SHOWN
    if omitted > 0:
        yield Line(f"({omitted} earlier ones, see `the-loop events --ref {shlex.quote(found.ref)}`)", is_command=True)
    day = ""
    for event in found.timeline[-_SHOWN:]:
        at = epoch(event["time"]) or 0.0
        today, clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)).split()
        if today != day:
            day = today
            yield Line(f"{day} ({age(at, now)})")
        yield Line(f"  {clock}  {_told(event, found.ref)}", hang=10)


def _told(event: Mapping[str, Any], ref: str) -> str:
    """An event in one sentence; the ref, which stands above, is left out of delivery ids."""
    name, message = event["event"], str(event.get("message", "")).replace(f"{ref}/", "")
    return f"{name}: {message}" if name else message


def _output_lines(shown: Output) -> Iterator[Line]:
    shared = ", which all deliveries write to" if shown.is_shared else ""
    yield Line(f"the end of the output, from {shown.place}{shared}:")
    yield from (Line(f"  | {line.expandtabs()[:_LINE_LIMIT]}", is_command=True) for line in shown.lines)
