"""The configuration file: found, read and checked.

Every fault is found in one pass and named by its path (`polling.sources[0].repos`), with what would be right. What a
section of a source or runner may hold, and what is wrong with it, its provider says.
"""

from __future__ import annotations

import difflib
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
import yaml

from the_loop import config_text
from the_loop.config import (
    Config,
    ConfigError,
    Fault,
    Loaded,
    Section,
    Session,
    SourceSection,
    path_fault,
    path_faults,
    sessions_of,
    source_name,
    text_fault,
    with_labels,
)
from the_loop.config_words import shown, wrong
from the_loop.core.model import explain
from the_loop.plugins import RUNNERS, SOURCES, PluginError, Registry

_FOR_ALL_LABELS: Final = ("runner", "kinds", "onUncertain", "byLabel", "trustLabels")


def find_file(option: str | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file: `--config`, `$THE_LOOP_CONFIG`, then the places looked at; None for the default."""
    named = option or environ.get("THE_LOOP_CONFIG")
    if named:
        return Path(named)
    places = [folder / "config.yaml" for folder in config_folders(environ)]
    return next((place for place in places if os.path.lexists(place) or misnamed(place)), None)


def config_folders(environ: Mapping[str, str]) -> tuple[Path, Path]:
    """Where configuration files are looked for, this user's first."""
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or _home()) / ".config")
    return Path(home) / "the-loop", Path("/etc/the-loop")


def misnamed(file: Path) -> Path | None:
    """`config.yml` beside the missing `config.yaml`, which was meant to be it; None if there is none."""
    beside = file.with_suffix(".yml")
    return beside if file.suffix == ".yaml" and os.path.lexists(beside) else None


def load(file: Path | None) -> Loaded:
    """Read and check `file` (the embedded default for None). Raises ConfigError with every fault."""
    if file is None:
        return Loaded(embedded_default(), None)
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(str(file), [Fault("", f"cannot read it: {error.strerror}{_remedy(file, error)}")]) from error
    return Loaded(parse(text, str(file), is_for_here=True), file)


def _remedy(file: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and (beside := misnamed(file)) is not None:
        return f"; '{beside.name}' is there, rename it to '{file.name}'"
    if isinstance(error, IsADirectoryError):
        return "; name the file in it, as in 'config.yaml'"
    if isinstance(error, PermissionError):
        return f"; let the user '{_invoking_user()}' read it"
    return ""


def parse(text: bytes, file: str, *, is_for_here: bool = False) -> Config:
    """The configuration that `text` holds. Raises ConfigError with every fault that can be seen at once.

    `is_for_here`: it is for this machine, which has to know the users that it names.
    """
    try:
        read = config_text.read(text)
    except Exception as error:  # a tag may make the library raise anything
        raise ConfigError(file, [config_text.mistake(error)]) from error
    tree = read.tree
    if not isinstance(tree, dict):
        what = "it is empty" if tree is None else f"expected a mapping, got {shown(tree)}"
        raise ConfigError(file, [Fault("", f"{what}; at least 'polling.sources' is needed")])
    try:
        config = _config(tree, file)
        if is_for_here and (found := _faults_here(config)):
            raise ConfigError(file, found)
    except ConfigError as error:
        placed = [Fault(fault.path, fault.problem, read.line_of(fault.path)) for fault in error.faults]
        raise ConfigError(file, [*read.faults, *placed]) from None
    if read.faults:
        raise ConfigError(file, list(read.faults))
    return config


def embedded_default() -> Config:
    """What `poll start` runs without any configuration."""
    tree = {
        "polling": {"intervalSeconds": 5, "sources": [{"provider": "directory", "path": "inbox"}]},
        "routing": {"authorizedUsers": [_invoking_user()]},
        "session": {"runner": "print"},
    }
    return _config(tree, "the embedded default")


def _config(tree: Mapping[str, Any], file: str) -> Config:
    faults: list[Fault] = []
    config: Config | None = _section(Config, {"session": {}, **tree}, "", faults)
    if config is not None and not faults:
        faults += _contradictions(config)
    if faults or config is None:
        raise ConfigError(file, faults)
    return config


def _invoking_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def peek_root(file: Path | None) -> str | None:
    """`state.root` of a file that may be wrong in every other way; for commands that need no valid configuration.

    Raises ConfigError where the file breaks off before it says one: then it is unknown which root is meant.
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
    return found if found is not None and not path_fault(found) else None


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


def _section(kind: type[Section], tree: Any, path: str, faults: list[Fault]) -> Any:
    """`tree` as a `kind`, or None with the faults noted. Goes field by field, so that one fault hides no other."""
    if not isinstance(tree, dict):
        how = "is empty: write its keys below it, indented, or take it out"
        faults.append(Fault(path, how if tree is None else f"expected a mapping, got {shown(tree)}"))
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
        value = _value(hints[info.name], tree[name], _join(path, name), faults)
        values[info.name] = value
    return kind(**values) if len(faults) == before else None


def _value(hint: Any, value: Any, path: str, faults: list[Fault]) -> Any:
    if hint is Session or (Session in get_args(hint) and value is not None):
        return _session(value, path, faults)
    if hint == tuple[SourceSection, ...]:
        return _sources(value, path, faults)
    if isinstance(hint, type) and issubclass(hint, Section):
        return _section(hint, value, path, faults)
    if dict in (get_origin(part) for part in get_args(hint)) and isinstance(value, dict):
        return {name: _value(str, one, _join(path, name), faults) for name, one in value.items()}
    texts = value if isinstance(value, list) else [value]
    for index, text in enumerate(texts):
        if isinstance(text, str) and (problem := text_fault(text)):
            faults.append(Fault(f"{path}[{index}]" if texts is value else path, problem))
            return None
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as error:
        inner = str(error).partition(" - at `$")[2].rstrip("`")
        faults.append(Fault(path + inner, wrong(hint, value, path.rpartition(".")[2], str(error))))
        return None


def _session(tree: Any, path: str, faults: list[Fault]) -> Any:
    """A session, with a whole one of the same kind for each entry of its `byLabel`."""
    if not isinstance(tree, dict) or "byLabel" not in tree:
        return _choice(RUNNERS, "runner", tree, path, faults, default="exec")
    base = {key: value for key, value in tree.items() if key != "byLabel"}
    section = _choice(RUNNERS, "runner", base, path, faults, default="exec")
    where, entries, found = f"{path}.byLabel", tree["byLabel"], {}
    if not isinstance(entries, dict):
        faults.append(
            Fault(where, f"expected a mapping, as in {{heavy: {{command: [my-agent]}}}}, got {shown(entries)}")
        )
        return section
    for label, entry in entries.items():
        place = _join(where, label)
        if not isinstance(label, str) or not label:
            faults.append(Fault(place, "is not a label; put it in quotes"))
        elif not isinstance(entry, dict):
            faults.append(Fault(place, f"expected a mapping, got {shown(entry)}"))
        elif common := [key for key in entry if key in _FOR_ALL_LABELS]:
            faults.append(Fault(_join(place, common[0]), "is the same for all labels; write it beside byLabel"))
        else:
            own: list[Fault] = []
            found[label] = _choice(RUNNERS, "runner", {**base, **entry}, place, own, default="exec")
            mine = tuple(_join(place, key) for key in entry)
            faults += [fault for fault in own if fault.path.startswith(mine)]  # the others are told of the session
    if section is None or None in found.values():
        return None
    return msgspec.structs.replace(section, by_label=found)


def _sources(value: Any, path: str, faults: list[Fault]) -> tuple[SourceSection, ...]:
    if not isinstance(value, list):
        faults.append(Fault(path, f"expected a list, each as in '- provider: github', got {shown(value)}"))
        return ()
    sections = []
    for index, tree in enumerate(value):
        if isinstance(tree, dict):
            sections.append(_choice(SOURCES, "provider", tree, f"{path}[{index}]", faults))
        else:
            problem = f"expected a mapping (as in provider: github), got {shown(tree)}"
            faults.append(Fault(f"{path}[{index}]", problem))
    return tuple(section for section in sections if section is not None)


def _choice(
    registry: Registry[Any], key: str, tree: Any, path: str, faults: list[Fault], *, default: str | None = None
) -> Any:
    """`tree` in the shape that the provider which its `key` names has stated."""
    named = tree.get(key, default) if isinstance(tree, dict) else default
    try:
        if isinstance(named, str):
            return _section(registry.get(named).Section, tree, path, faults)
        is_unknown, problem = True, ""
    except PluginError as error:
        is_unknown, problem = error.is_unknown, error.problem
    if is_unknown:
        names = registry.names()
        what = "is missing" if named is None else f"unknown {key} {shown(named)}"
        problem = f"{what}; one of: {', '.join(names)}{_suggestion(named, names)}"
    faults.append(Fault(f"{path}.{key}", problem))
    return None


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
    faults += _about_names(config, "name_fault")
    for index, section in enumerate(sections):
        faults += _stated(SOURCES, section.provider, section, config, f"polling.sources[{index}]")
    faults += [Fault(f"state.{fault.path}", fault.problem) for fault in path_faults(root=config.state.root)]
    words = [phrase.casefold() for phrase in msgspec.structs.astuple(config.routing.control)]
    if len(set(words)) < len(words):
        faults.append(Fault("routing.control", "two words are the same"))
    for path, session in with_labels(sessions_of(config)).items():
        if not session.kinds and ".byLabel." not in path:
            faults.append(Fault(f"{path}.kinds", "is empty: nothing would be handed over"))
        faults += _stated(RUNNERS, session.runner, session, config, path)
    return faults


def _faults_here(config: Config) -> list[Fault]:
    """What is wrong on this machine: users that it does not know, files that the runner cannot use."""
    faults = _about_names(config, "user_fault")
    for path, session in with_labels(sessions_of(config)).items():
        ask = getattr(RUNNERS.get(session.runner), "faults_here", None)
        faults += [Fault(_join(path, one.path), one.problem) for one in ([] if ask is None else ask(session))]
    return faults


def doubts(config: Config) -> list[Fault]:
    """What is probably wrong, and is no error: a name that this machine does not know now."""
    return _about_names(config, "name_doubt")


def _about_names(config: Config, hook: str) -> list[Fault]:
    """What the providers' function `hook` (optional) says about the names of `authorizedUsers`."""
    found: dict[str, str] = {}
    for index, section in enumerate(config.polling.sources):
        own = section.authorized_users
        names, path = (
            (config.routing.authorized_users, "routing.authorizedUsers")
            if own is None
            else (own, f"polling.sources[{index}].authorizedUsers")
        )
        ask = getattr(SOURCES.get(section.provider), hook, None)
        for number, name in enumerate(names):
            provider, colon, bare = name.partition(":")
            is_prefixed = bool(colon) and provider in SOURCES.names()
            if ask is None or (is_prefixed and provider != section.provider):
                continue
            if problem := ask(bare if is_prefixed else name):
                found.setdefault(f"{path}[{number}]", problem)
    return [Fault(path, problem) for path, problem in found.items()]


def _stated(registry: Registry[Any], name: str, section: Section, config: Config, path: str) -> list[Fault]:
    """What the provider finds wrong with its section."""
    try:
        found: Sequence[Fault] = registry.get(name).check(section, config)
    except Exception as error:  # noqa: BLE001 (the border: a provider may be third-party code)
        return [Fault(path, f"the provider '{name}' failed to check it: {type(error).__name__}: {explain(error)}")]
    return [Fault(_join(path, fault.path) if fault.path else path, fault.problem) for fault in found]


def _unknown(key: Any, known: Iterable[str]) -> str:
    return f"unknown key{_suggestion(key, known)}; known here: {', '.join(known)}"


def _suggestion(word: Any, known: Iterable[str]) -> str:
    if not isinstance(word, str) or len(word) > 100:
        return ""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("_", "").replace("-", ""), lowered, n=1, cutoff=0.6)
    return f", did you mean '{lowered[close[0]]}'?" if close else ""


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _home() -> str:
    return pwd.getpwuid(os.getuid()).pw_dir
