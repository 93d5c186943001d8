"""The configuration file: found, read and checked.

Every fault is found in one pass and named by its path (`polling.sources[0].repos`), with what would be right.
"""

from __future__ import annotations

import difflib
import os
import pwd
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
import yaml

from the_loop.config import (
    BUILT_IN_SOURCES,
    Config,
    ConfigError,
    Fault,
    GithubSection,
    Loaded,
    RepoName,
    Section,
    SourceSection,
    embedded_default,
    source_name,
)
from the_loop.core.model import explain

_CREDENTIALS: Final = re.compile(r"//[^\s]*@")
_BRIEFLY: Final = reprlib.Repr()
_BRIEFLY.maxstring = _BRIEFLY.maxother = 60
_BRIEFLY.maxlevel = 2


class _Loader(yaml.SafeLoader):
    """YAML without dates: what looks like one is the text that was written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def find_file(option: str | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file: `--config`, `$THE_LOOP_CONFIG`, then the places looked at; None for the default."""
    named = option or environ.get("THE_LOOP_CONFIG")
    if named:
        return Path(named)
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or _home()) / ".config")
    places = (Path(home) / "the-loop" / "config.yaml", Path("/etc/the-loop/config.yaml"))
    return next((place for place in places if os.path.lexists(place)), None)


def load(file: Path | None, providers: Mapping[str, type[SourceSection]] = BUILT_IN_SOURCES) -> Loaded:
    """Read and check `file` (the embedded default for None). Raises ConfigError with every fault."""
    if file is None:
        return Loaded(embedded_default(), None)
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(str(file), [Fault("", f"cannot read it: {error.strerror}")]) from error
    return Loaded(parse(text, str(file), providers), file)


def parse(text: bytes, file: str, providers: Mapping[str, type[SourceSection]] = BUILT_IN_SOURCES) -> Config:
    """The configuration that `text` holds. Raises ConfigError with every fault that can be seen at once."""
    try:
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 (it is a SafeLoader)
    except Exception as error:  # a tag may make the library raise anything
        raise ConfigError(file, [Fault("", f"it is not YAML: {_one_line(error)}")]) from error
    if not isinstance(tree, dict):
        what = "it is empty" if tree is None else f"expected a mapping, got {_shown(tree)}"
        raise ConfigError(file, [Fault("", f"{what}; at least 'polling.sources' is needed")])
    faults: list[Fault] = []
    config: Config | None = _section(Config, tree, "", faults, providers)
    if config is not None and not faults:
        faults += _contradictions(config)
    if faults or config is None:
        raise ConfigError(file, faults)
    return config


def peek_root(file: Path | None) -> str | None:
    """`state.root` of a file that may be wrong in every other way; for commands that need no valid configuration.

    Raises ConfigError where the file breaks off before it says one: then nobody knows which root is meant.
    """
    if file is None:
        return None
    try:
        text = file.read_bytes()
    except PermissionError as error:
        raise ConfigError(str(file), [Fault("state.root", f"cannot find out: {error.strerror}")]) from error
    except OSError:
        return None  # there is no file, so it says nothing
    try:
        found = _root_of(text)
    except Exception as error:  # a broken file may make the library raise anything
        raise ConfigError(str(file), [Fault("state.root", f"cannot find out: {_one_line(error)}")]) from error
    return found if found is not None and not _path_fault(found) else None


def _root_of(text: bytes) -> str | None:
    """As a start would take it where the file is YAML; else what stands in front of the mistake."""
    try:
        tree = yaml.safe_load(text)
    except Exception:  # noqa: BLE001 (a broken file may make the library raise anything)
        return _root_in(text)
    state = tree.get("state") if isinstance(tree, dict) else None
    root = state.get("root") if isinstance(state, dict) else None
    return root if isinstance(root, str) else None


def _root_in(text: bytes) -> str | None:
    """The scalar at `state.root`, from the parser's events: what stands in front of a mistake is intact."""
    path: list[str | None] = []  # the keys that lead to here; None where a key comes next
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent) and path and path[-1] is None:
            path[-1] = event.value
            continue
        if isinstance(event, yaml.ScalarEvent) and path == ["state", "root"]:
            value = yaml.safe_load(event.value) if event.implicit[0] else event.value
            return value if isinstance(value, str) else None
        if isinstance(event, yaml.MappingStartEvent):
            path.append(None)
            continue
        if isinstance(event, yaml.SequenceStartEvent):
            path.append("-")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            path.pop()
        if path and path[-1] != "-":
            path[-1] = None  # that was a value
    return None


def _one_line(error: Exception) -> str:
    return " ".join(explain(error).split())


def _section(
    kind: type[Section], tree: Any, path: str, faults: list[Fault], providers: Mapping[str, type[SourceSection]]
) -> Any:
    """`tree` as a `kind`, or None with the faults noted. Goes field by field, so that one fault hides no other."""
    if not isinstance(tree, dict):
        faults.append(Fault(path, f"expected a mapping, got {_shown(tree)}"))
        return None
    hints = get_type_hints(kind, include_extras=True)
    fields = {info.encode_name: info for info in msgspec.structs.fields(kind)}
    faults += [Fault(_join(path, key), _unknown(key, fields)) for key in tree if key not in fields]
    before = len(faults)
    values = {}
    for name, info in fields.items():
        if name not in tree:
            if info.required:
                faults.append(Fault(_join(path, name), "is missing"))
            continue
        value = _value(hints[info.name], tree[name], _join(path, name), faults, providers)
        values[info.name] = value
    return kind(**values) if len(faults) == before else None


def _value(hint: Any, value: Any, path: str, faults: list[Fault], providers: Mapping[str, type[SourceSection]]) -> Any:
    if isinstance(hint, type) and issubclass(hint, Section):
        return _section(hint, value, path, faults, providers)
    if hint == tuple[SourceSection, ...]:
        return _sources(value, path, faults, providers)
    if isinstance(value, str) and (problem := _text_fault(value)):
        faults.append(Fault(path, problem))
        return None
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        problem, _, inner = str(error).partition(" - at `$")
        faults.append(Fault(path + inner.rstrip("`"), f"{_plain(problem)}, got {_shown(value)}{_expectation(hint)}"))
        return None


def _sources(
    value: Any, path: str, faults: list[Fault], providers: Mapping[str, type[SourceSection]]
) -> tuple[SourceSection, ...]:
    if not isinstance(value, list):
        faults.append(Fault(path, f"expected a list, got {_shown(value)}"))
        return ()
    sections = []
    for index, tree in enumerate(value):
        here = f"{path}[{index}]"
        provider = tree.get("provider") if isinstance(tree, dict) else None
        if not isinstance(provider, str) or provider not in providers:
            known = ", ".join(sorted(providers))
            what = "is missing" if provider is None else f"unknown provider {_shown(provider)}"
            faults.append(Fault(f"{here}.provider", f"{what}; one of: {known}{_suggestion(provider, providers)}"))
            continue
        sections.append(_section(providers[provider], tree, here, faults, providers))
    return tuple(section for section in sections if section is not None)


def _contradictions(config: Config) -> list[Fault]:
    """What is wrong between fields that are right by themselves."""
    faults = []
    sections = config.polling.sources
    if not sections:
        faults.append(Fault("polling.sources", "is empty; at least one source is needed"))
    names = [source_name(section) for section in sections]
    for index, name in enumerate(names):
        if name in names[:index]:
            faults.append(
                Fault(
                    f"polling.sources[{index}].name", f"'{name}' is taken by another source; give it a name of its own"
                )
            )
    faults += _shared_repositories(sections)
    sharing = {section.provider for section in sections if section.authorized_users is None}
    bare = [name for name in config.routing.authorized_users if ":" not in name]
    if len(sharing) > 1 and bare:
        example = f"{min(sharing)}:{bare[0]}"
        faults.append(
            Fault(
                "routing.authorizedUsers",
                f"'{bare[0]}' could be meant for any of {', '.join(sorted(sharing))}; write '{example}'",
            )
        )
    for index, section in enumerate(sections):
        if isinstance(section, GithubSection) and not (section.monitor.issues or section.monitor.pull_requests):
            faults.append(
                Fault(f"polling.sources[{index}].monitor", "leaves nothing to watch; one of both has to be true")
            )
    faults += _path_faults(config)
    words = [phrase.casefold() for phrase in msgspec.structs.astuple(config.routing.control)]
    if len(set(words)) < len(words):
        faults.append(Fault("routing.control", "two words are the same"))
    workdir = config.session.workdir
    if workdir is not None and not workdir.startswith(("/", "~")):
        faults.append(Fault("session.workdir", f"'{workdir}' is relative; give an absolute path, or one below ~"))
    if config.session.runner == "exec" and not config.session.command:
        faults.append(
            Fault(
                "session.command", "is missing; the program to run for each event, as a list: [my-agent, --from-stdin]"
            )
        )
    return faults


def _shared_repositories(sections: tuple[SourceSection, ...]) -> list[Fault]:
    faults = []
    seen: dict[tuple[str, str], int] = {}
    for index, section in enumerate(sections):
        if not isinstance(section, GithubSection):
            continue
        for number, repo in enumerate(section.repos):
            first = seen.setdefault((urlsplit(section.api_url).hostname or "", repo.lower()), index)
            if first != index or repo.lower() in [other.lower() for other in section.repos[:number]]:
                faults.append(
                    Fault(
                        f"polling.sources[{index}].repos[{number}]",
                        f"'{repo}' belongs to polling.sources[{first}] already",
                    )
                )
    return faults


def _path_faults(config: Config) -> list[Fault]:
    """Paths that cannot be one, or name a home that is not there."""
    paths = {"state.root": config.state.root, "session.workdir": config.session.workdir}
    for index, section in enumerate(config.polling.sources):
        paths[f"polling.sources[{index}].path"] = getattr(section, "path", None)
        paths[f"polling.sources[{index}].tokenFile"] = getattr(section, "token_file", None)
    paths |= {f"session.command[{index}]": part for index, part in enumerate(config.session.command) if "\0" in part}
    return [Fault(field, fault) for field, path in paths.items() if path is not None and (fault := _path_fault(path))]


def _path_fault(path: str) -> str:
    if fault := _text_fault(path):
        return fault
    try:
        Path(path).expanduser()
    except RuntimeError:
        return f"there is no home directory for '{path}'"
    return ""


def _text_fault(text: str) -> str:
    if "\0" in text:
        return "has a NUL character in it"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "has a character in it that is no text"
    return ""


def _unknown(key: Any, known: Mapping[str, Any]) -> str:
    return f"unknown key{_suggestion(key, known)}; known here: {', '.join(known)}"


def _suggestion(word: Any, known: Mapping[str, Any]) -> str:
    if not isinstance(word, str) or len(word) > 100:
        return ""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("_", "").replace("-", ""), lowered, n=1, cutoff=0.6)
    return f", did you mean '{lowered[close[0]]}'?" if close else ""


def _expectation(hint: Any) -> str:
    """What would be right, for the types whose message alone does not say it."""
    base, *metas = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if base in (int, float) and metas and metas[0].le is not None:
        return f" (a number from {metas[0].ge} to {metas[0].le})"
    if get_origin(base) is Literal:
        return f" (one of: {', '.join(get_args(base))})"
    if words := next((meta.description for meta in metas if meta.description), ""):
        return f" ({words})"
    return " (each as owner/name)" if RepoName in get_args(base) else ""


def _shown(value: Any) -> str:
    """Never the whole, as aliases can make it larger than memory; and no password of an address."""
    try:
        text = _BRIEFLY.repr(_CREDENTIALS.sub("//…@", value) if isinstance(value, str) else value)
    except ValueError:
        return "a number of thousands of digits"
    return _CREDENTIALS.sub("//…@", text)


def _plain(problem: str) -> str:
    """The validator's sentence without its own idea of the value, and without a pattern nobody wants to read."""
    text = re.sub(r", got `.*`$| '.*'$", "", re.sub(r" matching regex .*", " of another form", problem)).replace(
        "`", ""
    )
    return text[:1].lower() + text[1:]


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _home() -> str:
    return pwd.getpwuid(os.getuid()).pw_dir
