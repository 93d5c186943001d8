"""The text of the configuration file: YAML or JSON, as values with the line of each.

A key that is written twice is a fault here, as the YAML library keeps the last one in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from the_loop.config import Fault
from the_loop.core.model import explain

_INDENT: Final = re.compile(rb"^[ \t]*\t[ \t]*", re.MULTILINE)


class _Loader(yaml.SafeLoader):
    """YAML without dates: what looks like one is the text that was written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Text:
    """`tree` has the values, `lines` the line (from 1) of each path that is written; `faults` keys written twice."""

    tree: Any
    lines: dict[str, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def line_of(self, path: str) -> int | None:
        """The line of `path`, or of the nearest part above it that is written."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path)


def read(text: bytes) -> Text:
    """What `text` holds. Raises whatever the library raises; `mistake` says it in words."""
    loader = _Loader(_without_tabs(text))
    try:
        node = loader.get_single_node()
        if node is None:
            return Text(None)
        walk = _Walk()
        walk.visit(node, "")
        return Text(loader.construct_document(node), walk.lines, tuple(walk.faults))
    finally:
        loader.dispose()


def mistake(error: Exception) -> Fault:
    """Why `read` failed, with the line where the library stopped."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or "")
    words = " ".join(explain(error).split())
    if "'\\t'" in problem:
        words = "indented with a tab; YAML takes blanks only"
    elif "but found another document" in problem:
        words = "a second document begins here ('---'); the configuration is one document"
    return Fault("", f"it is not YAML: {words}", mark.line + 1 if mark is not None else None)


class _Walk:
    """Goes once over each node, also over one that aliases repeat."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.faults: list[Fault] = []
        self._visited: set[int] = set()

    def visit(self, node: yaml.Node, path: str) -> None:
        if id(node) in self._visited:
            return
        self._visited.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            node.value = _paired(node.value)
        elif isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                self._child(child, child, f"{path}[{index}]")
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, path)

    def _mapping(self, node: yaml.MappingNode, path: str) -> None:
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, child in node.value:
            self.visit(key, path)
            if not isinstance(key, yaml.ScalarNode):
                continue
            inner = f"{path}.{key.value}" if path else str(key.value)
            before = first.setdefault((key.tag, key.value), key)
            if before is not key:
                problem = f"is written twice, first in line {before.start_mark.line + 1}"
                self.faults.append(Fault(inner, problem, key.start_mark.line + 1))
            self._child(key, child, inner)

    def _child(self, place: yaml.Node, child: yaml.Node, path: str) -> None:
        self.lines.setdefault(path, place.start_mark.line + 1)
        self.visit(child, path)


def _paired(text: str) -> str:
    """The characters that JSON writes as two escapes (two halves of one); half a pair stays what it is."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _without_tabs(text: bytes) -> bytes:
    """JSON may be indented with tabs, which YAML refuses; no text in JSON goes over a line end."""
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return text
    return _INDENT.sub(lambda found: b" " * len(found[0]), text)
