"""The provider `directory`: a folder of folders. `directory.DirectorySource` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from the_loop.config import Config, Fault, SourceSection, path_faults

if TYPE_CHECKING:
    from the_loop.sources.base import Source, SourceSite


class DirectorySection(SourceSection, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1)]
    settle_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.0
    ignore: tuple[str, ...] = ()

    def default_name(self) -> str:
        return Path(self.path).name or "root"


Section = DirectorySection


def check(section: DirectorySection, config: Config) -> list[Fault]:
    faults = path_faults(path=section.path)
    if section.ignore:
        from the_loop.sources.ignored import pattern_fault

        wrong = ((number, pattern_fault(one)) for number, one in enumerate(section.ignore))
        faults += [
            Fault(f"ignore[{number}]", f"not a pattern as in a .gitignore: {why}") for number, why in wrong if why
        ]
    return faults


def build(section: DirectorySection, site: SourceSite) -> Source:
    from the_loop.sources.directory import DirectorySource
    from the_loop.sources.ignored import Ignored

    path = Path(section.path).expanduser()
    return DirectorySource(
        site.name,
        site.root / path,
        settle_s=section.settle_seconds,
        authorized=site.authorized,
        is_ours=not path.is_absolute(),
        ignored=Ignored(section.ignore),
    )
