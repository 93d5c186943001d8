"""`portable/authors.json`: which account each authorised login belongs to.

A login can change hands: its owner gives it up, and another account takes it over. So the number of the account is
pinned, durably, before anything that this login wrote is accepted. Another account under the same login *waits*: its
entries are neither settled nor delivered until the operator accepts or rejects it. Format::

    {"schema": 1, "hosts": {"api.github.com": {
        "logins": {"octocat": {"id": 583231, "since", "sources": ["work"], "byHand": false,
                               "waiting": {"77": {"since", "refs": ["github:octo/repo#1", …]}}, "rejected": [78]}},
        "reread": ["github:octo/repo#1", …]}}}

Logins are in lower case. `sources`: the names of the sources that list the login; without one the pin is removed.
`byHand`: pinned by the configuration. `reread`: items to read again, as it was decided about one of their authors.
Unknown keys are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from the_loop.config import login_and_id
from the_loop.core.guards import Pin
from the_loop.core.model import LoopError, Note, explain, timestamp
from the_loop.durable import read_json_object, to_json_bytes, write_durably

_SCHEMA: Final = 1
_REFS_LIMIT: Final = 1000  # items of one waiting account that are remembered


class AuthorsUnusable(LoopError):
    """The file cannot be read or written, so no author can be told from one who took over a login."""

    def __init__(self, path: Path, verb: str, cause: str) -> None:
        super().__init__(f"cannot {verb} '{path}': {cause}", "repair it; without it every login is pinned anew")


class Met(NamedTuple):
    """One item or entry of a source: where it is, and who wrote it."""

    ref: str
    login: str | None
    id: int | None


class Waiting(NamedTuple):
    """An account under a pinned login that is not the pinned one. `refs`: the items that it wrote on."""

    host: str
    login: str
    pinned: int
    id: int
    since: str
    refs: tuple[str, ...]
    is_pinned_by_hand: bool


class _Account(Struct):
    since: str
    refs: list[str]


class _Login(Struct, rename="camel"):
    id: int
    since: str
    sources: list[str]
    by_hand: bool = False
    waiting: dict[str, _Account] = {}
    rejected: list[int] = []


class _Host(Struct):
    logins: dict[str, _Login] = {}
    reread: list[str] = []


class _File(Struct):
    schema: int
    hosts: dict[str, _Host] = {}


def read_authors(path: Path) -> dict[str, Any]:
    """The content of the file, checked; an empty one if there is none. Raises AuthorsUnusable."""
    try:
        tree = read_json_object(path)
        if tree.get("schema") != _SCHEMA:
            raise AuthorsUnusable(path, "read", f"its schema is {tree.get('schema')!r:.50}, not {_SCHEMA}")
        for host in msgspec.convert(tree, _File).hosts.values():
            for login in host.logins.values():
                list(map(int, login.waiting))
    except FileNotFoundError:
        return {"schema": _SCHEMA, "hosts": {}}
    except (OSError, ValueError) as error:
        raise AuthorsUnusable(path, "read", explain(error)) from error
    return tree


class Authors:
    """The pins of one host, for one source of it. `authorized`: its list, as configured. `now`: epoch seconds."""

    def __init__(self, path: Path, host: str, source: str, authorized: Iterable[str], now: Callable[[], float]) -> None:
        self.pins: dict[str, Pin] = {}  # by login in lower case; changed in place
        self._path = path
        self._host = host
        self._source = source
        self._now = now
        self._listed = {login.casefold(): number for login, number in map(login_and_id, authorized)}
        self._read: tuple[tuple[int, int, int] | None, dict[str, Any]] | None = None
        self._shown: tuple[frozenset[str], Mapping[str, Any]] = (frozenset(), {})

    def begin(self, cursor: Mapping[str, Any] | None) -> frozenset[str]:
        """A poll begins at this cursor: apply the list. Returns the items to read again. Raises AuthorsUnusable."""
        shown, stored = self._shown
        is_stored = bool(shown) and cursor == stored

        def apply(host: dict[str, Any]) -> None:
            for login, known in list(host["logins"].items()):
                if login not in self._listed and self._source in known["sources"]:
                    known["sources"].remove(self._source)
                    if not known["sources"]:
                        del host["logins"][login]
            for login, number in self._listed.items():
                self._pin_by_hand(host, login, number)
            if is_stored:
                host["reread"] = [ref for ref in host["reread"] if ref not in shown]

        host = self._change(apply)
        return frozenset(host["reread"])

    def end(self, shown: frozenset[str], cursor: Mapping[str, Any]) -> None:
        """The poll shows these items to read again: they are done once its cursor is stored."""
        self._shown = (shown, cursor)

    def meet(self, people: Iterable[Met]) -> list[Note]:
        """Pin logins that are new; the events about those that another account has now. Raises AuthorsUnusable."""
        notes: list[Note] = []
        met = [one for one in people if one.id is not None and one.login and one.login.casefold() in self._listed]

        def apply(host: dict[str, Any]) -> None:
            for one in met:
                known = self._known(host, str(one.login).casefold(), one.id)
                if one.id == known["id"] or one.id in known["rejected"]:
                    continue
                if str(one.id) not in known["waiting"]:
                    known["waiting"][str(one.id)] = {"since": timestamp(self._now()), "refs": []}
                    notes.append(self._changed(one, known["id"]))
                refs = known["waiting"][str(one.id)]["refs"]
                if one.ref not in refs and len(refs) < _REFS_LIMIT:
                    refs.append(one.ref)

        if met:
            self._change(apply)
        return notes

    def _content(self) -> dict[str, Any]:
        """The content of the file, read again only if it is another one."""
        signature = _signature(self._path)
        if self._read is None or self._read[0] != signature:
            self._read = (signature, read_authors(self._path))
        return self._read[1]

    def _pin_by_hand(self, host: dict[str, Any], login: str, number: int | None) -> None:
        if number is None:
            if login in host["logins"]:
                host["logins"][login]["byHand"] = False
            return
        known = self._known(host, login, number)
        known["byHand"] = True
        if known["id"] != number:
            _settle(host, known, number, rejects=False)

    def _known(self, host: dict[str, Any], login: str, number: int | None) -> dict[str, Any]:
        """The login's record; a new one is pinned to this account."""
        fresh = {"id": number, "since": timestamp(self._now()), "sources": [self._source], "byHand": False}
        known: dict[str, Any] = host["logins"].setdefault(login, fresh)
        known.setdefault("byHand", False)
        known.setdefault("waiting", {})
        known.setdefault("rejected", [])
        if self._source not in known["sources"]:
            known["sources"].append(self._source)
        return known

    def _changed(self, one: Met, pinned: int) -> Note:
        fields = {"source": self._source, "ref": one.ref, "author": one.login, "account": one.id, "pinned": pinned}
        return Note("author.changed", fields)

    def _change(self, apply: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Read the file, change the part of this host, write it if it differs, and take it over."""
        before = self._content()
        tree = copy.deepcopy(before)
        host = _host(tree, self._host)
        apply(host)
        if tree != before and (host["logins"] or host["reread"] or self._host in before.get("hosts", {})):
            _write(self._path, tree)
            self._read = None
        pins = {login: Pin(one["id"], frozenset(one.get("rejected", ()))) for login, one in host["logins"].items()}
        self.pins.clear()
        self.pins.update(pins)
        return host


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Distinguishes one content of a file from the next. Raises AuthorsUnusable if that cannot be found out."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AuthorsUnusable(path, "read", explain(error)) from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def waiting_authors(tree: Mapping[str, Any]) -> list[Waiting]:
    """The accounts that wait for a decision, of a tree that `read_authors` returned."""
    return [
        Waiting(
            host, login, known["id"], int(number), account["since"], tuple(account["refs"]), known.get("byHand", False)
        )
        for host, part in sorted(tree.get("hosts", {}).items())
        for login, known in sorted(part.get("logins", {}).items())
        for number, account in known.get("waiting", {}).items()
    ]


def decide_author(path: Path, name: str, *, accepts: bool) -> list[str]:
    """Pin the login to the account that came last, or reject all that wait. Returns the items to be read again.

    `name` is LOGIN or HOST/LOGIN. Raises AuthorsUnusable; LoopError if no account waits under this login, or the
    configuration pins it.
    """
    tree = read_authors(path)
    host, login = _place(tree, name.casefold())
    part = _host(tree, host)
    known = part["logins"].get(login)
    if not known or not known.get("waiting"):
        raise LoopError(f"no other account waits under '{login}' on {host}", "see `the-loop authors list`")
    if accepts and known.get("byHand"):
        raise LoopError(
            f"cannot accept '{login}': the configuration pins it to account {known['id']}",
            "change or remove the number in authorizedUsers, and reload",
        )
    latest = max(known["waiting"].items(), key=lambda item: item[1]["since"])[0]
    refs = sorted({ref for account in known["waiting"].values() for ref in account["refs"]})
    _settle(part, known, int(latest) if accepts else known["id"], rejects=True)
    _write(path, tree)
    return refs


def _place(tree: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The host and login that are meant. Raises LoopError if the login waits on several hosts."""
    host, slash, login = name.rpartition("/")
    if slash:
        return host, login
    hosts = {one.host for one in waiting_authors(tree) if one.login == login}
    if len(hosts) > 1:
        places = " or ".join(f"'{one}/{login}'" for one in sorted(hosts))
        raise LoopError(f"'{login}' changed on several hosts", f"name one: {places}")
    return next(iter(hosts), "api.github.com"), login


def _settle(host: dict[str, Any], known: dict[str, Any], number: int, *, rejects: bool) -> None:
    """Pin the login to this account; its items, and with `rejects` those of all others that wait, are read again."""
    known.setdefault("waiting", {})
    decided = list(known["waiting"]) if rejects else [str(number)]
    for other in decided:
        account = known["waiting"].pop(other, {"refs": []})
        host["reread"] += [ref for ref in account["refs"] if ref not in host["reread"]]
    rejected = {*known.get("rejected", ()), *map(int, decided if rejects else ())}
    known["rejected"] = sorted(rejected - {number})
    known["id"] = number


def _host(tree: dict[str, Any], name: str) -> dict[str, Any]:
    host: dict[str, Any] = tree.setdefault("hosts", {}).setdefault(name, {})
    host.setdefault("logins", {})
    host.setdefault("reread", [])
    return host


def _write(path: Path, tree: dict[str, Any]) -> None:
    try:
        write_durably(path, to_json_bytes(tree))
    except OSError as error:
        raise AuthorsUnusable(path, "write", explain(error)) from error
