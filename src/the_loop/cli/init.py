"""`the-loop init`: a first configuration file, from options or answers, checked before it is written."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from the_loop.cli.common import Options, with_options
from the_loop.cli.completion import files, folders
from the_loop.cli.doctor import end, lines_of
from the_loop.cli.help import examples
from the_loop.cli.page import Line, put
from the_loop.config_file import config_folders, find_file, parse
from the_loop.core.model import LoopError, explain
from the_loop.eventlog import say

if TYPE_CHECKING:
    from the_loop.config import Config
    from the_loop.config_draft import Draft
    from the_loop.findings import Finding

_TOKENS: Final = ("GITHUB_TOKEN", "GH_TOKEN")
_SOURCE: Final = "polling.sources[0]"
_USERS: Final = "routing.authorizedUsers"


@dataclass(frozen=True, slots=True)
class _Question:
    """One thing to decide. `default`: without one it has to be answered; `place`: the key in the file."""

    field: str
    option: str
    text: str
    place: str
    default: Callable[[], str] | None = None
    split: Callable[[str], list[str]] | None = None  # for what is a list


def _words(text: str) -> list[str]:
    return re.split(r"[\s,]+", text.strip())


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _token_file() -> str:
    return "" if any(os.environ.get(name) for name in _TOKENS) else "~/.config/the-loop/token"


_QUESTIONS: Final = {
    "github": (
        _Question("repos", "--repo", "Repositories, as owner/name", f"{_SOURCE}.repos", split=_words),
        _Question("label", "--label", "Label of the issues to work on", f"{_SOURCE}.label", lambda: "auto"),
        _Question("token_file", "--token-file", "File with the token", f"{_SOURCE}.tokenFile", _token_file),
        _Question("users", "--user", "Logins of those whose issues and comments count", _USERS, split=_words),
    ),
    "directory": (
        _Question("path", "--path", "Directory of the items", f"{_SOURCE}.path", lambda: "~/inbox"),
        _Question("users", "--user", "Users whose files count", _USERS, _own_name, split=_words),
    ),
}
_RECEIVER: Final = _Question(
    "command", "--command", "Command to run for each event", "session.command", split=shlex.split
)


@click.command(
    "init",
    epilog=examples(
        "the-loop init",
        "the-loop init --repo octo/repo --user octocat --command my-agent",
        "the-loop init --path ~/inbox --command 'my-agent --from-stdin'",
    ),
)
@click.option("--output", metavar="FILE", shell_complete=files, help="Write this file, not the usual one.")
@click.option("--provider", type=click.Choice(sorted(_QUESTIONS)), help="Where items come from.")
@click.option("--repo", "repos", metavar="OWNER/NAME", multiple=True, help="Watch this repository. Repeatable.")
@click.option("--label", metavar="LABEL", help="Watch issues and pull requests with this label (auto).")
@click.option("--token-file", metavar="FILE", shell_complete=files, help="Read the token of GitHub from this file.")
@click.option("--api-url", metavar="URL", help="Ask this server, not api.github.com.")
@click.option("--path", metavar="DIR", shell_complete=folders, help="Watch the folders in this directory (~/inbox).")
@click.option("--user", "users", metavar="NAME", multiple=True, help="Items and comments of NAME count. Repeatable.")
@click.option("--command", metavar="COMMAND", help="Run this program, with its arguments, for each event.")
@click.option(
    "--runner", type=click.Choice(["exec", "print", "tmux"]), default="exec", help="How events are handed over (exec)."
)
@click.option("--yes", "is_sure", is_flag=True, help="Ask nothing, and write the file also if a check fails.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@with_options
def command(options: Options, *, output: str | None, is_sure: bool, force: bool, **given: Any) -> None:
    """Write a first configuration file.

    Asks for what the options leave open, on a terminal. What is configured is
    checked before the file is written, as `the-loop doctor` does.
    """
    file = Path(output or options.config_file or config_folders(os.environ)[0] / "config.yaml")
    if not force and os.path.lexists(file):
        raise LoopError(f"cannot write '{file}': it exists", "name another with --output, or replace it with --force")
    is_asking = sys.stdin.isatty() and not is_sure
    draft = _decided(given, is_asking=is_asking)
    config = parse(draft.text.encode("utf-8"), "the answers", is_for_here=True)
    if is_asking and draft.token_file:
        _ask_token(Path(draft.token_file).expanduser())
    _make_directory(draft)
    found = _examine(options, config, file)
    put(line for finding in found for line in lines_of(finding))
    if not all(finding.is_good for finding in found) and not is_sure:
        sys.stdout.flush()
        if not is_asking or not click.confirm("\nNot everything is good. Write the file?", default=True, err=True):
            say(f"the-loop: '{file}' is not written, as not everything is good (--yes writes it all the same)")
            end(1)
    _write(file, draft.text, replaces=force)
    here = replace(options, config_file=None if find_file(None, os.environ) == file else str(file))
    put(_next(here, draft, file))
    end(0)


# --- what is decided ---


def _decided(given: dict[str, Any], *, is_asking: bool) -> Draft:
    """The options of the call, and the answers to what they leave open. Raises click.UsageError."""
    from the_loop.config_draft import Draft

    provider = _provider(given, is_asking=is_asking)
    values = {"provider": provider, "runner": given["runner"], "api_url": given["api_url"] or "", **_fillers(provider)}
    questions = [*_QUESTIONS[provider], *([_RECEIVER] if given["runner"] != "print" else [])]
    missing = [one.option for one in questions if one.default is None and given[one.field] in (None, ())]
    if missing and not is_asking:
        raise click.UsageError(f"missing without a terminal: {', '.join(missing)}")
    for question in questions:
        answer, is_open = given[question.field], given[question.field] in (None, ())
        if is_open and is_asking:
            values[question.field] = _asked(question, values)
            continue
        values[question.field] = _value(question, question.default() if is_open and question.default else answer)
        if problem := _problem(question, values):
            raise click.UsageError(f"{question.option}: {problem}")
    if faults := Draft(**values).faults():
        raise click.UsageError("; ".join(map(str, faults)))
    return Draft(**values)


def _provider(given: dict[str, Any], *, is_asking: bool) -> str:
    """Raises click.UsageError for options that contradict each other."""
    fields = {"github": ("repos", "label", "token_file", "api_url"), "directory": ("path",)}
    meant = [name for name, theirs in fields.items() if any(given[field] for field in theirs)]
    named: str | None = given["provider"] or (meant[0] if len(meant) == 1 else None)
    if any(name != named for name in meant):
        others = ["--" + field.replace("_", "-").replace("repos", "repo") for one in meant for field in fields[one]]
        raise click.UsageError(f"one source is configured, of one provider: check --provider, {', '.join(others)}")
    if named is None and not is_asking:
        command = [] if given["command"] or given["runner"] == "print" else ["--command"]
        raise click.UsageError(f"missing without a terminal: {', '.join(['--repo or --path', *command])}")
    kinds = click.Choice(sorted(_QUESTIONS))
    return named or click.prompt("Where do items come from?", type=kinds, default="github", err=True)


def _fillers(provider: str) -> dict[str, Any]:
    """Valid answers, in the place of those that are not known yet."""
    if provider == "github":
        return {"repos": ("octo/repo",), "label": "auto", "users": ("octocat",), "command": ("true",)}
    return {"path": "inbox", "users": (_own_name(),), "command": ("true",)}


def _asked(question: _Question, values: dict[str, Any]) -> Any:
    """The first answer that is right. Raises click.Abort at the end of the input."""
    default = question.default() if question.default else None
    while True:
        answer = click.prompt(question.text, default=default, show_default=bool(default), err=True)
        try:
            value = _value(question, answer)
            problem = _problem(question, {**values, question.field: value})
        except click.UsageError as error:
            problem = error.message
        else:
            if not problem:
                return value
        say(f"  {problem}")


def _value(question: _Question, answer: Any) -> Any:
    """The answer as the file has it: a list that was typed is split. Raises click.UsageError."""
    if not isinstance(answer, str):
        return tuple(answer)
    try:
        return answer if question.split is None else tuple(question.split(answer))
    except ValueError as error:
        raise click.UsageError(f"{question.option}: {explain(error)}: {answer!r}") from error


def _problem(question: _Question, values: dict[str, Any]) -> str:
    """What is wrong with this part of the draft, "" for nothing."""
    from the_loop.config_draft import Draft

    faults = [fault for fault in Draft(**values).faults() if fault.path.startswith(question.place)]
    return "; ".join(fault.problem for fault in faults)


# --- what is checked, written and said ---


def _ask_token(file: Path) -> None:
    """Write the file of the token if it is missing and a token is typed."""
    if not os.path.lexists(file):
        text = f"Token, to be written to '{file}' (it is not shown; empty: later)"
        if token := click.prompt(text, default="", show_default=False, hide_input=True, err=True).strip():
            _write(file, f"{token}\n", replaces=False)


def _make_directory(draft: Draft) -> None:
    """Make the directory of items if only the last part of its path is missing; the check tells if it is not there."""
    path = Path(draft.path).expanduser()
    if draft.path and path.is_absolute():
        with suppress(OSError):
            path.mkdir(mode=0o700)
            say(f"the-loop: made '{path}'")


def _examine(options: Options, config: Config, file: Path) -> list[Finding]:
    """What the doctor command finds about the source and the receiver, for a poller that is started in this shell."""
    from the_loop.config import Loaded
    from the_loop.doctor import checkup
    from the_loop.doctor.parts import examine_all
    from the_loop.doctor.subject import Subject
    from the_loop.lock import Probe, Sight

    loaded, environ = Loaded(config, file), dict(os.environ)
    subject = Subject(None, _own_name(), os.geteuid(), environ, environ)
    case = checkup.Case(subject, [], loaded, options.root_of(loaded), Sight(Probe.FREE))
    parts = list(checkup.sections_of(case))
    return [finding for several in examine_all(parts, checkup.LIMIT_S) for finding in several]


def _write(file: Path, text: str, *, replaces: bool) -> None:
    """Put it in place in one step, for its owner only. Raises LoopError."""
    from the_loop.durable import write_durably

    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if replaces:
            write_durably(Path(os.path.realpath(file)), text.encode("utf-8"))  # a link to it stays one
            return
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        write_durably(beside, text.encode("utf-8"))
        try:
            os.link(beside, file)  # unlike a rename this replaces nothing
        finally:
            beside.unlink()
    except OSError as error:
        raise LoopError(f"cannot write '{file}': {explain(error)}") from error


def _next(options: Options, draft: Draft, file: Path) -> Iterator[Line]:
    yield Line(f"wrote '{file}'", is_command=True)
    yield Line("next:")
    if draft.provider == "github":
        yield Line(f"  put the label '{draft.label}' on an issue of {draft.repos[0]}, then")
    else:
        item = shlex.quote(f"{_inbox(options, draft)}/first")
        yield Line(f"  $ umask 022; mkdir -p {item}; echo 'The door squeaks.' >{item}/item.md", is_command=True)
    for typed in ("`the-loop poll start --once`", "`the-loop unit install`"):
        yield Line(f"  $ {options.typed(typed)[1:-1]}", is_command=True)


def _inbox(options: Options, draft: Draft) -> Path:
    return options.root().path / Path(draft.path).expanduser()
