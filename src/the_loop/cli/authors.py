"""`the-loop authors`: which account each authorised login belongs to, and logins that changed hands."""

from __future__ import annotations

import json
import shlex

import click

from the_loop.authors import Waiting, decide_author, read_authors, waiting_authors
from the_loop.cli.common import Options, must_exist, take_lock, with_options
from the_loop.core.model import LoopError, printable
from the_loop.lock import LockHeld
from the_loop.state import StateRoot


@click.group("authors", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the accounts of authorised logins, and decide about changed ones."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_options
def list_(options: Options, *, as_json: bool = False) -> None:
    """List the logins with their accounts, and accounts that wait.

    A login is pinned to the number of its account when the first entry of it is
    seen. What another account writes under it waits for a decision.
    """
    root = options.root()
    must_exist(root)
    tree = read_authors(root.authors)
    for host, part in sorted(tree["hosts"].items()):
        for login, known in sorted(part["logins"].items()):
            if as_json:
                print(json.dumps({"host": host, "login": login, **known}))
            else:
                by_hand = ", pinned by the configuration" if known.get("byHand") else ""
                print(printable(f"{login}  account {known['id']} on {host}, since {known['since']}{by_hand}"))
    if not as_json:
        for line in waiting_lines(waiting_authors(tree)):
            print(printable(line))


@command.command()
@click.argument("login")
@with_options
def accept(options: Options, *, login: str) -> None:
    """Trust the account that has LOGIN now.

    What it wrote is delivered. If several accounts had the login since, it is the
    last one that is trusted. LOGIN may be written as HOST/LOGIN.
    """
    refs = _decide(options.root(), login, accepts=True)
    print(f"accepted: {login}, {_items(refs)} to be read again")


@command.command()
@click.argument("login")
@with_options
def reject(options: Options, *, login: str) -> None:
    """Never listen to the account that has LOGIN now.

    What it wrote is dropped as unauthorised. The pinned account goes on being
    trusted. LOGIN may be written as HOST/LOGIN.
    """
    refs = _decide(options.root(), login, accepts=False)
    print(f"rejected: {login}, {_items(refs)} to be read again")


def waiting_lines(waiting: list[Waiting]) -> list[str]:
    """For people: each account that waits, and what to type."""
    lines = []
    for one in waiting:
        name = shlex.quote(one.login)
        choices = f"the-loop authors reject {name}"
        if not one.is_pinned_by_hand:
            choices = f"the-loop authors accept {name}` or `{choices}"
        was = f"it was {one.pinned}; {_items(one.refs)} with entries that wait"
        lines += [f"author changed: {one.login} is account {one.id} on {one.host}, {was}", f"  run `{choices}`"]
    return lines


def _items(refs: tuple[str, ...] | list[str]) -> str:
    return "1 item" if len(refs) == 1 else f"{len(refs)} items"


def _decide(root: StateRoot, name: str, *, accepts: bool) -> list[str]:
    must_exist(root)
    root.check_owner()
    try:
        lock = take_lock(root)
    except LockHeld as held:
        raise Running(held) from held
    try:
        host, login = _place(root, name.casefold())
        return decide_author(root.authors, host, login, accepts=accepts)
    finally:
        lock.close()


class Running(LoopError):
    """A poller holds the lock; it would not see the decision before its next start."""

    exit_code = 75

    def __init__(self, held: LockHeld) -> None:
        super().__init__(
            f"cannot decide about authors while a poller is running ({held.problem})",
            "run `the-loop poll stop`, then this command, then start it again: nothing is lost meanwhile",
        )


def _place(root: StateRoot, name: str) -> tuple[str, str]:
    """The host and login that are meant. Raises LoopError if the login waits on several hosts."""
    host, slash, login = name.rpartition("/")
    if slash:
        return host, login
    hosts = {one.host for one in waiting_authors(read_authors(root.authors)) if one.login == login}
    if len(hosts) > 1:
        places = " or ".join(f"'{one}/{login}'" for one in sorted(hosts))
        raise LoopError(f"'{login}' changed on several hosts", f"name one: {places}")
    return next(iter(hosts), "api.github.com"), login
