"""`the-loop trace`: everything known about one item or one event, in the order in which it happened."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from the_loop.cli import output
from the_loop.cli.common import Options, must_exist, with_options
from the_loop.core.model import LoopError, delivery_id, epoch, explain, printable, timestamp

if TYPE_CHECKING:
    from the_loop.config import Config
    from the_loop.stages import Stage
    from the_loop.trace import Traced

_WIDTH: Final = 80
_SHOWN: Final = 100  # lines of the timeline
_LINE_LIMIT: Final = 400  # characters of one line of output


@click.command("trace")
@click.argument("what", metavar="URL|REF|DELIVERY-ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_options
def command(options: Options, *, what: str, as_json: bool) -> None:
    r"""Show the life of one item or one event, in order of time.

    An item is named by its ref, its address in the browser, or the path of its
    folder; an event by its delivery id, its address, or the path of its file.
    Exit code 1 if nothing is known about it, or if it cannot be read.

    \b
    Examples:
      the-loop trace github:octo/repo#15
      the-loop trace 'https://github.com/octo/repo/issues/15#issuecomment-9'
      the-loop trace ~/inbox/squeaky-door/02-hinges.md
    """
    from the_loop.trace import trace

    root = options.root()
    must_exist(root)
    now = time.time()
    try:
        found = trace(root, what, _configuration(options), timestamp if as_json else lambda at: output.moment(at, now))
    except OSError as error:
        raise LoopError(f"cannot read '{root.path}': {explain(error)}") from error
    if as_json:
        print(json.dumps(_in_json(found)))
    else:
        print("\n".join(printable(options.typed(line)) for line in _in_words(found, now)))
    click.get_current_context().exit(0 if found.stage.is_known else 1)


def _configuration(options: Options) -> Config | str:
    """The configuration of this call, or why it cannot be read."""
    from the_loop.config import ConfigError

    try:
        return options.load().config
    except ConfigError as error:
        return error.summary


def _in_json(found: Traced) -> dict[str, Any]:
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
        **_stage_in_json(found.stage),
        "author": found.author or None,
        "url": found.url or None,
        "item": item,
        "pending": [
            {"deliveryId": delivery_id(found.ref, one), **_stage_in_json(stage)} for one, stage in found.pending.items()
        ],
        "timeline": list(found.timeline),
        "output": None if shown is None else {"place": shown.place, "shared": shown.is_shared, "lines": shown.lines},
        "unreadable": list(found.unreadable),
        "suggestions": list(found.suggestions),
    }


def _stage_in_json(stage: Stage) -> dict[str, Any]:
    return {
        "state": stage.state,
        "summary": stage.text,
        "reason": stage.reason or None,
        "since": None if stage.since is None else timestamp(stage.since),
        "until": None if stage.until is None else timestamp(stage.until),
        "unit": stage.unit or None,
        "commands": list(stage.commands),
    }


def _in_words(found: Traced, now: float) -> Iterator[str]:
    yield delivery_id(found.ref, found.key) if found.key else found.ref or found.asked
    if found.ledger is not None and found.ledger.title:
        yield from _wrapped(f"'{printable(found.ledger.title)}'", "  ")
    about = [part for part in (found.url, found.author and f"by {found.author}") if part]
    if about:
        yield from _wrapped(", ".join(about), "  ")
    yield from _stage_lines(found.stage, "")
    for problem in found.unreadable:
        yield from _wrapped(f"cannot read {problem}", "")
    for number, one in enumerate(found.suggestions):
        yield f"did you mean {one}" if number == 0 else f"          or {one}"
    if found.pending:
        yield from ("", "pending:")
        for key, stage in found.pending.items():
            yield f"  {key}"
            yield from _stage_lines(stage, "    ")
    if found.timeline:
        yield ""
        yield from _timeline_lines(found, now)
    if found.output is not None:
        yield ""
        yield from _output_lines(found)


def _stage_lines(stage: Stage, indent: str) -> Iterator[str]:
    yield from _wrapped(stage.text, indent)
    yield from (f"{indent}  run `{one}`" for one in stage.commands)


def _timeline_lines(found: Traced, now: float) -> Iterator[str]:
    omitted = len(found.timeline) - _SHOWN
    if omitted > 0:
        yield f"({omitted} earlier events, see `the-loop events`)"
    day = ""
    for event in found.timeline[-_SHOWN:]:
        at = epoch(event["time"]) or 0.0
        today = time.strftime("%Y-%m-%d", time.localtime(at))
        if today != day:
            day = today
            yield f"{day} ({output.age(at, now)})"
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        yield from _wrapped(f"{clock}  {_told(event, found.ref)}", "  ", hanging=10)


def _told(event: Mapping[str, Any], ref: str) -> str:
    """An event in one sentence; the ref, which stands above, is left out of delivery ids."""
    name, message = event["event"], str(event.get("message", ""))
    short = message.replace(f"{ref}/", "")
    return f"{name}: {short}" if name else short


def _output_lines(found: Traced) -> Iterator[str]:
    shown = found.output
    if shown is None:
        return
    shared = ", which all deliveries write to" if shown.is_shared else ""
    yield from _wrapped(f"the end of the output, from {shown.place}{shared}:", "")
    yield from (f"  | {printable(line.expandtabs())[:_LINE_LIMIT]}" for line in shown.lines)


def _wrapped(text: str, indent: str, hanging: int = 2) -> Sequence[str]:
    """`text` in lines of at most 80 columns, where its words allow that."""
    after = indent + " " * hanging
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )
