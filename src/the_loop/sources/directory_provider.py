"""The provider `directory`: a folder of folders. `directory.DirectorySource` reads it."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from the_loop.config import Config, Fault, SourceSection, path_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from the_loop.findings import Finding, Site
    from the_loop.sources.base import Source, SourceSite


_NSSWITCH: Final = Path("/etc/nsswitch.conf")


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


def user_fault(name: str) -> str:
    """Why a file cannot belong to this user: this machine has all its users in files, and it is not one of them."""
    return _unknown(name) if _has_local_users_only() else ""


def name_doubt(name: str) -> str:
    """The same where users come from a name service as well: it may be out."""
    problem = "" if _has_local_users_only() else _unknown(name)
    return f"{problem}; correct it unless the name service is out" if problem else ""


def _unknown(name: str) -> str:
    if name.isdecimal():  # a user without a name counts by the number
        return ""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return f"there is no user '{name}' on this machine; files are by the user who owns them, as `id -un` prints it"
    except (OSError, ValueError):
        return ""
    return ""


def _has_local_users_only() -> bool:
    """True if nothing but local files tells who is a user; False also if that cannot be found out."""
    try:
        lines = _NSSWITCH.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    services = [line.partition("#")[0].split()[1:] for line in lines if line.startswith("passwd:")]
    return bool(services) and set(services[0]) <= {"files", "compat", "systemd"}


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


def examine(section: DirectorySection, site: Site) -> Iterator[Finding]:
    from the_loop.findings import fail, ok, unknown
    from the_loop.sources.directory_examination import examine_directory
    from the_loop.sources.ignored import Ignored

    for name in sorted(site.authorized):
        if problem := user_fault(name):
            yield fail(f"user {name}", problem)
        elif problem := name_doubt(name):
            yield unknown(f"user {name}", problem)
        else:
            yield ok(f"user {name}", "exists")
    yield from examine_directory(site.root / Path(section.path).expanduser(), Ignored(section.ignore), site)
