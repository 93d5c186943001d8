"""Which item a person means, and which configured source it is of: an `Address` looked up in files. Changes nothing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
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

    def find(self, address: Address) -> Address:
        """The same with one ref, of an item that is known if there is one; without a ref if none can be meant."""
        candidates = list(self._of_path(address.path) if address.path else [(ref, "") for ref in address.refs])
        for ref, key in [*candidates, *((ref, "") for ref in self._renamed(address.refs))]:
            if self._is_known(ref):
                return Address((ref,), address.key or key)
        owned = (one for one in candidates if self.source_of(one[0]))
        ref, key = next(owned, candidates[0] if candidates else ("", ""))
        return Address((ref,) if ref else (), address.key or key, address.path)

    def source_of(self, ref: str) -> str:
        """The name of the configured source that the item is of; "" if none is known to have it."""
        return next((source_name(section) for section in self._sections if self._has(section, ref)), "")

    def names(self) -> tuple[str, ...]:
        """The configured sources."""
        return tuple(source_name(section) for section in self._sections)

    def similar(self, text: str) -> list[str]:
        """Known items whose names are like this one, the best first. Raises OSError."""
        slugs = self._slugs()
        asked = slug(text)
        folded = asked.casefold()
        found = [one for one in slugs if one.casefold() == folded]
        number = asked.rpartition("@")[1:]
        if number[0] and number[1]:  # of another repository
            found += [one for one in slugs if one.endswith("".join(number))][:_SHOWN]
        if len(found) < _SHOWN:
            close = [one for one in slugs if abs(len(one) - len(asked)) <= len(asked) // 4]
            found += difflib.get_close_matches(asked, close, n=_SHOWN, cutoff=_LIKE)
        refs = (unslug(one) for one in dict.fromkeys(found) if one != asked)
        return [ref for ref in refs if ref is not None][:_SHOWN]

    def refs(self) -> Iterator[str]:
        """Every item that has a readable name. Raises OSError."""
        return (ref for one in self._slugs() if (ref := unslug(one)) is not None)

    def _slugs(self) -> list[str]:
        names = {*self._records.names(), *self._records.names(is_ended=True)}
        return sorted(name.removesuffix(".json") for name in names if is_of_a_ledger(name))

    def _is_known(self, ref: str) -> bool:
        try:
            return self._records.find(ref) is not None
        except OSError:
            return True  # whatever is wrong is found again when it is read

    def _renamed(self, refs: Sequence[str]) -> Iterator[str]:
        """The refs under which items of a renamed repository are filed, by what its source's cursor says."""
        for ref in refs:
            place, _, number = ref.removeprefix("github:").partition("#")
            host, name = "/".join(place.split("/")[:-2]), "/".join(place.split("/")[-2:])
            for record in self._repositories():
                if str(record.get("name", "")).lower() == name:
                    yield f"github:{host}/{record['filed']}#{number}".replace(":/", ":")

    def _repositories(self) -> Iterator[dict[str, Any]]:
        """What the cursors keep of each repository that has both its names."""
        for section in self._sections:
            if section.provider == "github":
                with suppress(OSError, UnusableCursor):
                    repos = (read_cursor(self._root, source_name(section)).value or {}).get("repos", {})
                    yield from (one for one in repos.values() if isinstance(one, dict) and "filed" in one)

    def _has(self, section: SourceSection, ref: str) -> bool:
        if section.provider != "github":
            return ref.startswith(f"{section.provider}:{encode_name(os.fsencode(source_name(section)))}/")
        host = getattr(section, "host", "")
        start = "github:" if host == "api.github.com" else f"github:{host}/"
        name = ref.removeprefix(start).partition("#")[0]
        repos = {repo.lower() for repo in getattr(section, "repos", ())}
        return ref.startswith(start) and (name in repos or name in self._filed(repos))

    def _filed(self, repos: set[str]) -> set[str]:
        return {str(one["filed"]) for one in self._repositories() if str(one.get("name", "")).lower() in repos}

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


def event_of_file(ledger: Ledger | None, key: str) -> str:
    """The event that a file of a folder is: the one that was chosen as the item's body came with its spawn."""
    name = key.removeprefix("comment:")
    if ledger is not None and ledger.url.startswith("file://"):
        body = encode_name(unquote_to_bytes(ledger.url.rpartition("/")[2]))
        return "" if name == body else key
    return "" if name == "item.md" else key
