"""`the-loop authors`: which account each authorised login belongs to, and logins that changed hands."""

from __future__ import annotations

import json
import shlex

import click

from the_loop.authors import Waiting, decide_author, read_authors, waiting_authors
from the_loop.cli.common import Options, must_exist, with_options
from the_loop.cli.completion import logins
from the_loop.cli.deciding import decide
from the_loop.cli.help import examples
from the_loop.core.model import printable
from the_loop.state import StateRoot


@click.group("authors", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show the accounts of authorised logins, and decide about changed ones."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list", epilog=examples("the-loop authors list --json"))
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
            print(printable(options.typed(line)))


@command.command(epilog=examples("the-loop authors accept octocat"))
@click.argument("login", shell_complete=logins)
@with_options
def accept(options: Options, *, login: str) -> None:
    """Trust the account that has LOGIN now.

    What it wrote is delivered. If several accounts had the login since, it is the
    last one that is trusted. LOGIN may be written as HOST/LOGIN.
    """
    print(f"accepted: {login}, {_decide(options.root(), login, accepts=True)} to be read again")


@command.command(epilog=examples("the-loop authors reject ghe.example/octocat"))
@click.argument("login", shell_complete=logins)
@with_options
def reject(options: Options, *, login: str) -> None:
    """Never listen to the account that has LOGIN now.

    What it wrote is dropped as unauthorised. The pinned account goes on being
    trusted. LOGIN may be written as HOST/LOGIN.
    """
    print(f"rejected: {login}, {_decide(options.root(), login, accepts=False)} to be read again")


def waiting_lines(waiting: list[Waiting]) -> list[str]:
    """For people: each account that waits, and what to type."""
    lines = []
    for one in waiting:
        name = shlex.quote(one.login)
        choices = f"the-loop authors reject {name}"
        if not one.is_pinned_by_hand:
            choices = f"the-loop authors accept {name}` or `{choices}"
        was = f"it was {one.pinned}; {_items(len(one.refs))} with entries that wait"
        lines += [f"author changed: {one.login} is account {one.id} on {one.host}, {was}", f"  run `{choices}`"]
    return lines


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _decide(root: StateRoot, login: str, *, accepts: bool) -> str:
    """How many items are read again, in words."""
    answer = decide(
        root,
        "author",
        {"login": login, "accepts": accepts},
        lambda: {"items": decide_author(root.authors, login, accepts=accepts)},
    )
    return _items(len(answer.get("items", ())) + int(answer.get("more", 0)))
