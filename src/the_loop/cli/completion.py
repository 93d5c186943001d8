"""Completion of what a shell's user types: items, events, sources, logins, instances. Whatever fails completes nothing.

`click` calls these functions when a shell asks for completions. They load what they need then.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from the_loop.places import Places
    from the_loop.state import StateRoot

_SHOWN: Final = 200

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(names: Callable[[click.Context, str], Iterable[str]]) -> Complete:
    """Those of these names that begin with what is typed; none where they cannot be found out."""

    @functools.wraps(names)
    def complete(ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        try:
            found = (name for name in names(ctx, typed) if name.startswith(typed) and name.isprintable())
            return list(islice(found, _SHOWN))
        except Exception:  # noqa: BLE001 (a prompt is no place for an error message)
            return []

    return complete


@_completing
def refs(ctx: click.Context, typed: str) -> Iterable[str]:
    """Items that did not end."""
    return _places(ctx).refs(typed)


@_completing
def all_refs(ctx: click.Context, typed: str) -> Iterable[str]:
    """Items, also those that ended."""
    return _places(ctx).refs(typed, has_ended=True)


@_completing
def deliveries(ctx: click.Context, typed: str) -> Iterable[str]:
    """Items, and behind the `/` of one its events."""
    ref = typed.rpartition("/")[0]
    keys = _keys(ctx, ref, is_all=True) if ":" in ref else []
    return [f"{ref}/{key}" for key in keys] or _places(ctx).refs(typed, has_ended=True)


@_completing
def pending_events(ctx: click.Context, _typed: str) -> Iterable[str]:
    """The pending events of the item that was named before."""
    return _keys(ctx, str(ctx.params.get("ref") or ""))


@_completing
def sources(ctx: click.Context, _typed: str) -> Iterable[str]:
    """What `poll wake` takes."""
    return _sources(ctx)


@_completing
def groups_and_sources(ctx: click.Context, _typed: str) -> Iterable[str]:
    """What `events --source` takes."""
    from the_loop.eventlog import CATALOG

    return [*sorted({name.partition(".")[0] for name in CATALOG}), *_sources(ctx)]


@_completing
def logins(ctx: click.Context, _typed: str) -> Iterable[str]:
    """Logins that another account has now."""
    from the_loop.authors import read_authors, waiting_authors

    return sorted({one.login for one in waiting_authors(read_authors(_root(ctx).authors))})


@_completing
def instances(_ctx: click.Context, _typed: str) -> Iterable[str]:
    """The configuration files beside the usual one."""
    from the_loop.config_file import config_folders

    stems = {file.stem for folder in config_folders(os.environ) for file in folder.glob("*.yaml")}
    return sorted(stems - {"config"})


def files(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem[Any]]:
    """Files, as the shell completes them."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="file")]


def folders(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem[Any]]:
    """Directories, as the shell completes them."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(typed, type="dir")]


# --- where the names are from ---


def _given(ctx: click.Context, name: str) -> str | None:
    """A global option of the call, typed behind the command or before it."""
    return ctx.params.get(name) or ctx.find_root().params.get(name)


def _root(ctx: click.Context) -> StateRoot:
    from the_loop import wiring
    from the_loop.config_file import find_file, peek_root

    named = _given(ctx, "state_root") or peek_root(find_file(_given(ctx, "config_file"), os.environ))
    return wiring.state_root(named, None, os.environ)


def _sources(ctx: click.Context) -> list[str]:
    """The sources of the last poller, or of the configuration if there was none."""
    from the_loop.config import source_name
    from the_loop.config_file import find_file, load
    from the_loop.last_report import read_heartbeat

    polled = [str(one["name"]) for one in read_heartbeat(_root(ctx)).get("sources", []) if "name" in one]
    if polled:
        return sorted(polled)
    sections = load(find_file(_given(ctx, "config_file"), os.environ)).config.polling.sources
    return sorted(map(source_name, sections))


def _places(ctx: click.Context) -> Places:
    from the_loop.places import Places

    return Places.of(_root(ctx))


def _keys(ctx: click.Context, ref: str, *, is_all: bool = False) -> list[str]:
    """The pending events of an item; with `is_all` the settled ones behind them."""
    from the_loop.ledgers import Ledgers

    ledger = Ledgers(_root(ctx), lambda _: None, time.time, may_write=False).get(ref)
    if ledger is None:
        return []
    return [*ledger.poll.pending, *(sorted(ledger.poll.seen_comments) if is_all else ())]
