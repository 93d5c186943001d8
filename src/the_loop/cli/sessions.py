"""`the-loop sessions`: the sessions of items, where they live, and a look into them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import TYPE_CHECKING, Any

import click

from the_loop.cli.common import Options, must_exist, with_options
from the_loop.cli.completion import refs
from the_loop.cli.help import examples
from the_loop.cli.page import Line, put, when
from the_loop.core.model import LoopError, explain, printable

if TYPE_CHECKING:
    from the_loop.runners.tmux_server import Server
    from the_loop.runners.tmux_store import Handle
    from the_loop.state import StateRoot


@click.group("sessions", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the sessions of items, and look into them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list", epilog=examples("the-loop sessions list --json"))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@with_options
def list_(options: Options, *, as_json: bool = False) -> None:
    """List the sessions, and commands that run.

    A session is alive while its program runs. One that ended is started again
    with the next event of its item.
    """
    root = options.root()
    must_exist(root)
    found = _sessions(root)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    if not found:
        print("no sessions")
    put(line for one in found for line in _lines(one))


@command.command(epilog=examples("the-loop sessions attach 'github:octo/repo#15'"))
@click.argument("ref", shell_complete=refs)
@click.option("--read-only", is_flag=True, help="Only look: keys do nothing but detach.")
@with_options
def attach(options: Options, *, ref: str, read_only: bool) -> None:
    """Show the terminal of an item's session.

    Leave it with Ctrl-B D; the session goes on.
    """
    from the_loop.requests import no_session

    root = options.root()
    must_exist(root)
    handle = next((one for one in _store(root).handles() if one.ref == ref), None)
    if handle is None:
        raise no_session("attach to", ref)
    server = _server(root)
    if _states(server, [handle])[ref]["alive"] is False:
        raise LoopError(f"cannot attach to the session of '{ref}': it is not there", "the next event starts it again")
    flags = ["-r"] if read_only else []
    argv = server.argv("attach-session", *flags, "-t", f"={handle.name}")
    environ = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
    try:
        os.execvpe(argv[0], argv, environ)
    except OSError as error:
        raise LoopError(f"cannot run 'tmux': {explain(error)}") from error


@command.command(epilog=examples("the-loop sessions close 'github:octo/repo#15'"))
@click.argument("ref", shell_complete=refs)
@with_options
def close(options: Options, *, ref: str) -> None:
    """End the session of an item.

    Its program is told to end (SIGHUP), and killed if it does not within 5 s.
    The next event of the item starts the session again, with what came before.
    """
    from the_loop.cli.deciding import decide

    root = options.root()
    decide(root, "close", {"ref": ref}, lambda: _close_here(options, root, ref))
    print(f"closed: {ref}")


@command.command(epilog=examples("the-loop sessions deliver 'github:octo/repo#15'"))
@click.argument("ref", shell_complete=refs)
@with_options
def deliver(options: Options, *, ref: str) -> None:
    """Type the event that waits for a terminal, whatever is in its way.

    Look into the session before: what is on its input line is sent with it, a
    question is answered by it, and a shell executes it.
    """
    from the_loop.supervision.asking import ask

    root = options.root()
    must_exist(root)
    answer = ask(root, "deliver", {"ref": ref})
    print(f"to be delivered: {ref}/{answer.get('key')}")


def _close_here(options: Options, root: StateRoot, ref: str) -> dict[str, Any]:
    """End it without a poller, under the lock."""
    from the_loop import wiring
    from the_loop.requests import no_session

    async def end() -> bool:
        runner = wiring.runner(options.load().config, root, dict(os.environ), lambda _: None)
        try:
            if not getattr(runner, "keeps_sessions", False):
                raise LoopError("this configuration keeps no sessions", "they are those of `session.runner: tmux`")
            ended: bool = await runner.end(ref)  # type: ignore[attr-defined]
            return ended
        finally:
            await runner.close()

    try:
        is_ended = asyncio.run(end())
    except OSError as error:
        raise LoopError(f"cannot close the session of '{ref}': {explain(error)}") from error
    if not is_ended:
        raise no_session("close", ref)
    return {"ref": ref, "closed": True}


def _store(root: StateRoot) -> Any:
    from the_loop.runners.tmux_store import Store

    return Store(root.path, root.runner_folder("tmux"))


def _server(root: StateRoot) -> Server:
    from the_loop.runners.tmux_server import Server

    return Server(root.path, root.runner_folder("tmux"), os.environ)


def _sessions(root: StateRoot) -> list[dict[str, Any]]:
    """Each session as in `sessions list --json`, then the commands that run."""
    try:
        handles: list[Handle] = _store(root).handles()
    except OSError as error:
        raise LoopError(f"cannot read the sessions: {explain(error)}") from error
    states = _states(_server(root), handles)
    found = []
    for handle in handles:
        said = handle.to_json()
        shown = ("ref", "runner", "url", "title", "since", "name", "socket", "unit", "lastDelivery", "lastDeliveryAt")
        found.append({**{name: said[name] for name in shown}, **states[handle.ref]})
    return found + _commands(root, {one.ref for one in handles})


def _commands(root: StateRoot, others: set[str]) -> list[dict[str, Any]]:
    """What runs of the runner `exec`, by the poller's last report."""
    from the_loop.last_report import read_heartbeat

    running = [one for one in read_heartbeat(root).get("work") or [] if one.get("state") in ("running", "accepted")]
    return [_command(one) for one in running if one.get("ref") not in others]


def _command(one: dict[str, Any]) -> dict[str, Any]:
    known = {name: one.get(name) for name in ("ref", "since", "unit")}
    return {**known, "runner": "exec", "lastDelivery": one.get("deliveryId"), "alive": True, "attached": 0}


def _states(server: Server, handles: list[Handle]) -> dict[str, dict[str, Any]]:
    """By ref whether the program runs, and how many are attached; null where that cannot be found out."""
    from the_loop.runners.tmux_session import Session

    states: dict[str, dict[str, Any]] = {}
    for handle in handles:
        try:
            state = Session(server, handle.name).state_blocking()
        except OSError:  # after the first one the others fail at once
            states[handle.ref] = {"alive": None, "attached": None}
            continue
        is_alive = state is not None and not state.is_dead
        states[handle.ref] = {"alive": is_alive, "attached": 0 if state is None else state.attached}
    return states


def _lines(one: dict[str, Any]) -> list[Line]:
    alive = {True: "alive", False: "ended", None: "cannot be asked"}[one["alive"]]
    count = one["attached"]
    attached = "" if not count else ", 1 attached" if count == 1 else f", {count} attached"
    now = time.time()
    lines = [Line(f"  {alive}{attached}", head=str(one["ref"]), style="bold")]
    if one.get("title"):
        lines.append(Line(f"  {printable(one['title'])}"))
    where = f" in {one['unit']}" if one.get("unit") else ""
    lines.append(Line(f"  {one['runner']}{where} since {when(one['since'], now)}"))
    if one.get("lastDeliveryAt"):
        lines.append(Line(f"  last {one['lastDelivery']}, {when(one['lastDeliveryAt'], now)}"))
    return lines
