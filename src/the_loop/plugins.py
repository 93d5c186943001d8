"""Where sources and runners come from: one registry for each kind, ours and third-party ones in the same form.

A provider is a module that says three things: the shape of its section (`Section`), what is wrong with one that has
that shape (`check`), and what it makes of one that is right (`build`). It is imported when a configuration names it.
Ours are listed here; third-party ones are entry points of the groups `the_loop.sources` and `the_loop.runners`,
whose names are what `provider:` and `runner:` say, and whose values are modules. A name of ours cannot be taken.

Beside these three a provider may have `examine`, for `the-loop doctor`: see `findings`. Everything that is optional is
asked for where it is used.

Provisional until 1.0.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from the_loop.config import Config, Fault, Section, Session, SourceSection
from the_loop.core.model import LoopError, explain
from the_loop.runners.base import Runner, RunnerSite
from the_loop.sources.base import Source, SourceSite

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PARTS: Final = ("Section", "check", "build")


class SourceProvider(Protocol):
    """A module that an entry point of the group `the_loop.sources` names."""

    Section: type[SourceSection]

    def check(self, section: Any, config: Config) -> Sequence[Fault]:
        """What is wrong with a section of this shape, beside the others in `config`. Asks nothing of the outside.

        Paths are those within the section: `repos[1]`.
        """

    def build(self, section: Any, site: SourceSite) -> Source:
        """The source. Called at each start and reload, also of a configuration that is rejected in the end.

        It neither asks nor opens anything: what cannot be reached is for `poll` to say.
        """


class RunnerProvider(Protocol):
    """A module that an entry point of the group `the_loop.runners` names."""

    Section: type[Session]

    def check(self, section: Any, config: Config) -> Sequence[Fault]:
        """What is wrong with a section of this shape. Paths are those within `session`: `command`."""

    def build(self, section: Any, site: RunnerSite) -> Runner:
        """The runner. Called at each start and reload; starts nothing."""


class PluginError(LoopError):
    """A provider that is not there (`is_unknown`), or cannot be used."""

    def __init__(self, problem: str, *, is_unknown: bool = False) -> None:
        super().__init__(problem)
        self.is_unknown = is_unknown


P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Registry(Generic[P]):
    """The providers of one kind. `base` is what their sections derive from, `ours` has their modules by name."""

    group: str
    base: type[Section]
    ours: Mapping[str, str]

    def get(self, name: str) -> P:
        """The provider of this name. Raises PluginError."""
        if (module := self.ours.get(name)) is not None:
            ours: P = importlib.import_module(module)  # type: ignore[assignment]
            return ours
        points = {point.value: point for point in self._installed() if point.name == name}
        if not points:
            raise PluginError(f"'{name}' is not among the entry points '{self.group}'", is_unknown=True)
        if len(points) > 1:
            raise PluginError(f"more than one installed package has it: {', '.join(sorted(points))}")
        return self._load(*points.values())

    def names(self) -> list[str]:
        """All that can be named, in the order of the alphabet. Imports none of them."""
        return sorted({*self.ours, *(point.name for point in self._installed())})

    def _installed(self) -> Sequence[EntryPoint]:
        from importlib.metadata import entry_points  # who uses only ours need not load it

        return tuple(entry_points(group=self.group))

    def _load(self, point: EntryPoint) -> P:
        try:
            found: P = point.load()
        except Exception as error:
            cause = f"{type(error).__name__}: {explain(error)}"
            raise PluginError(f"cannot load '{point.value}': {cause}") from error
        missing = [part for part in _PARTS if not hasattr(found, part)]
        if missing:
            raise PluginError(f"'{point.value}' has no {' and no '.join(missing)}")
        shape = found.Section  # type: ignore[attr-defined]
        if not (isinstance(shape, type) and issubclass(shape, self.base)):
            raise PluginError(f"'{point.value}.Section' does not derive from '{self.base.__name__}'")
        return found


SOURCES: Final[Registry[SourceProvider]] = Registry(
    "the_loop.sources",
    SourceSection,
    {
        "directory": "the_loop.sources.directory_provider",
        "github": "the_loop.sources.github.provider",
        "telegram": "the_loop.sources.telegram.provider",
    },
)
RUNNERS: Final[Registry[RunnerProvider]] = Registry(
    "the_loop.runners",
    Session,
    {
        "exec": "the_loop.runners.exec_provider",
        "print": "the_loop.runners.print_provider",
        "tmux": "the_loop.runners.tmux_provider",
    },
)
