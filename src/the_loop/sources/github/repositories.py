"""The name that a repository has in refs: the first one it was seen with, found by its stable numeric id."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from the_loop.durable import read_json_object, to_json_bytes, write_durably
from the_loop.sources.base import SourceError

_REPAIR: Final = "repair the file, or remove it if no repository was renamed"


class Repositories:
    """`portable/repositories.json`: ``{"<host>/<id>": "<owner>/<name>"}``, lower case."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def filed_name(self, host: str, number: int, name: str) -> str:
        """The name of this repository in refs, which is recorded and never changes. Raises SourceError.

        A repository that took over the name of another recorded one gets ``<name>@<id>``.
        """
        try:
            table = read_json_object(self._path)
        except FileNotFoundError:
            table = {}
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot read '{self._path}': {error}", _REPAIR) from error
        if not all(isinstance(name, str) for name in table.values()):
            raise SourceError(f"cannot read '{self._path}': not every name is text", _REPAIR)
        key = f"{host}/{number}"
        if key in table:
            return str(table[key])
        name = name.lower()
        if any(other == name and known.startswith(f"{host}/") for known, other in table.items()):
            name = f"{name}@{number}"  # names on GitHub cannot contain @
        try:
            write_durably(self._path, to_json_bytes({**table, key: name}))
        except OSError as error:
            raise SourceError(f"cannot write '{self._path}': {error.strerror}") from error
        return name
