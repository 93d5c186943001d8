"""Which item a person means, and which configured source it is of: an `Address` looked up in files. Changes nothing."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from the_loop.addresses import Address
from the_loop.config import Config, SourceSection, source_name
from the_loop.core.ledger import Ledger
from the_loop.cursors import UnusableCursor, read_cursor
from the_loop.records import Records, is_of_a_ledger
from the_loop.sources.textfiles import encode_name
from the_loop.state import StateRoot, slug, unslug

_SHOWN: Final = 3  # suggestions
_LIKE: Final = 0.75


class Places:
    """The items of one state root, by the words of people. `config` is None where it cannot be read."""

    def __init__(self, root: StateRoot, records: Records, config: Config | None) -> None:
        self._root = root
        self._records = records
        self._sections = () if config is None else config.polling.sources

    @classmethod
    def of(cls, root: StateRoot) -> Places:
        """Without a configuration: what is known only."""
        return cls(root, Records(root, time.time, is_alone=False), None)

    def find(self, address: Address) -> Address:
        """The same with one ref, of an item that is known if there is one; without a ref if none can be meant."""
        named = list(self._of_path(address.path) if address.path else [(ref, "") for ref in address.refs])
        owned = [one for one in named if self.source_of(one[0])]
        others = [] if owned else [(ref, "") for ref in dict.fromkeys(self._elsewhere(address.refs))]
        candidates = [*owned, *(one for one in named if one not in owned), *others]
        known = (one for one in candidates if self._is_known(one[0]))
        ref, key = next(known, next(iter((*owned, *others, *named)), ("", "")))
        return Address((ref,) if ref else (), address.key or key, address.path)

    def source_of(self, ref: str) -> str:
        """The name of the configured source that the item is of; "" if none is known to have it."""
        return next((source_name(section) for section in self._sections if self._has(section, ref)), "")

    def names(self) -> tuple[str, ...]:
        """The configured sources."""
        return tuple(source_name(section) for section in self._sections)

    def needs(self, name: str) -> str:
        """What an item of this source has to have, in words."""
        label = next((getattr(one, "label", "") for one in self._sections if source_name(one) == name), "")
        return f"the label '{label}'" if label else ""

    def similar(self, text: str) -> list[str]:
        """Known items whose names are like this one, the best first. Raises OSError."""
        slugs = self._slugs()
        asked = slug(text)
        folded = asked.casefold()
        found = [one for one in slugs if one.casefold() == folded]
        number = asked.rpartition("@")[2]
        if number.isdecimal():  # of another repository
            same = [one for one in slugs if one.endswith(f"@{number}")]
            found += difflib.get_close_matches(asked, same, n=_SHOWN, cutoff=0)
        if not found:
            close = [one for one in slugs if abs(len(one) - len(asked)) <= len(asked) // 4]
            found += difflib.get_close_matches(asked, close, n=_SHOWN, cutoff=_LIKE)
        return list(self._named(one for one in dict.fromkeys(found) if one != asked))[:_SHOWN]

    def refs(self, start: str, *, has_ended: bool = False) -> Iterator[str]:
        """The items whose names begin like this. Raises OSError."""
        names = self._records.names() + (self._records.names(is_ended=True) if has_ended else [])
        begin = slug(start)  # the whole of a short name is what a longer one begins with
        return self._named(one.removesuffix(".json") for one in names if is_of_a_ledger(one) and one.startswith(begin))

    def _named(self, slugs: Iterable[str]) -> Iterator[str]:
        return (ref for one in slugs if (ref := unslug(one)) is not None)

    def _slugs(self) -> list[str]:
        names = {*self._records.names(), *self._records.names(is_ended=True)}
        return sorted(name.removesuffix(".json") for name in names if is_of_a_ledger(name))

    def _is_known(self, ref: str) -> bool:
        try:
            return self._records.find(ref) is not None
        except OSError:
            return True  # whatever is wrong is found again when it is read

    def _elsewhere(self, refs: Sequence[str]) -> Iterator[str]:
        """The same number in a repository that has another name in refs, or is asked for at another host."""
        for ref in refs:
            place, _, number = ref.removeprefix("github:").partition("#")
            name = "/".join(place.split("/")[-2:])
            for section in self._sections:
                if section.provider == "github" and name in {**self._repos(section), **self._names(section)}:
                    filed = self._names(section).get(name, name)
                    yield f"{_start(section)}{filed}#{number}"

    def _has(self, section: SourceSection, ref: str) -> bool:
        if section.provider != "github":
            return ref.startswith(f"{section.provider}:{encode_name(os.fsencode(source_name(section)))}/")
        if not ref.startswith(_start(section)):
            return False
        name = ref.removeprefix(_start(section)).partition("#")[0]
        return name in self._repos(section) or name in self._names(section).values()

    def _repos(self, section: SourceSection) -> dict[str, str]:
        """The names of a section's repositories, in lower case."""
        return {repo.lower(): repo for repo in getattr(section, "repos", ())}

    def _names(self, section: SourceSection) -> dict[str, str]:
        """By the present name of each of its repositories the one that it has in refs, as the cursor says."""
        try:
            repos = (read_cursor(self._root, source_name(section)).value or {}).get("repos")
        except (OSError, UnusableCursor):
            return {}
        records = repos.values() if isinstance(repos, dict) else ()
        both = ((one.get("name"), one.get("filed")) for one in records if isinstance(one, dict))
        return {name.lower(): filed for name, filed in both if isinstance(name, str) and isinstance(filed, str)}

    def _of_path(self, path: str) -> Iterator[tuple[str, str]]:
        """The folder or file as an item and an event, once for each source that has it."""
        with suppress(RuntimeError):  # `~` of a user that there is not
            path = str(Path(path).expanduser())
        place = Path(os.path.abspath(path))  # noqa: PTH100 (a folder may be a link itself)
        for section in self._sections:
            inbox = getattr(section, "path", None)
            if section.provider != "directory" or not isinstance(inbox, str):
                continue
            base = self._root.path / Path(inbox).expanduser()
            for known, asked in ((base, place), (base.resolve(), place.resolve())):
                parts = asked.relative_to(known).parts if asked.is_relative_to(known) else ()
                if 1 <= len(parts) <= 2:
                    name, *file = (encode_name(os.fsencode(part)) for part in parts)
                    ref = f"directory:{encode_name(os.fsencode(source_name(section)))}/{name}"
                    yield ref, f"comment:{file[0]}" if file else ""


def _start(section: SourceSection) -> str:
    """What the refs of a section of the provider `github` begin with."""
    host = getattr(section, "host", "")
    return "github:" if host == "api.github.com" else f"github:{host}/"


def event_of_file(ledger: Ledger | None, key: str) -> str:
    """The event that a file of a folder is: the one that was chosen as the item's body came with its spawn."""
    name = key.removeprefix("comment:")
    if ledger is not None and ledger.url.startswith("file://"):
        body = encode_name(unquote_to_bytes(ledger.url.rpartition("/")[2]))
        return "" if name == body else key
    return "" if name == "item.md" else key
