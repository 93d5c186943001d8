"""The provider `tmux`: a terminal session for each item. `tmux.TmuxRunner` runs them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from the_loop.config import Config, Fault, path_faults
from the_loop.runners import prompts
from the_loop.runners.exec_provider import (
    CommandSession,
    at_home,
    check_environment,
    check_workdir,
    examine_section,
    extras_of,
    faults_here,
    workdir_of,
)
from the_loop.runners.keeper import PLACEHOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from the_loop.findings import Finding, Site
    from the_loop.runners.base import Runner, RunnerSite


class TmuxSession(CommandSession, frozen=True, kw_only=True):
    """Of sessions in terminals. A text that is not given is ours, an empty one types nothing."""

    spawn_prompt: str | None = None
    comment_prompt: str | None = None
    review_prompt: str | None = None
    close_prompt: str | None = None
    resume_prompt: str | None = None
    resume_command: tuple[str, ...] = ()
    keep_on_close: bool = False
    busy_pattern: str | None = None


Section = TmuxSession
__all__ = ["Section", "build", "check", "examine", "faults_here"]


def check(section: TmuxSession, config: Config) -> list[Fault]:
    faults = check_workdir(section) + check_environment(section)
    if not section.command:
        faults.append(Fault("command", "is missing; the program to run in each session, as a list: [my-agent]"))
    for field, argv in (("command", section.command), ("resumeCommand", section.resume_command)):
        if argv and "/" in argv[0]:
            faults += path_faults(**{f"{field}[0]": argv[0]})
    if used := [word for word in section.command if word in PLACEHOLDERS]:
        faults.append(Fault("command", f"has the placeholder '{used[0]}', but a session is started before its events"))
    faults += prompts.faults(
        spawnPrompt=section.spawn_prompt,
        commentPrompt=section.comment_prompt,
        reviewPrompt=section.review_prompt,
        closePrompt=section.close_prompt,
        resumePrompt=section.resume_prompt,
    )
    if section.busy_pattern:
        try:
            re.compile(section.busy_pattern, re.MULTILINE)
        except re.error as error:
            faults.append(Fault("busyPattern", f"is not a regular expression: {error}"))
    return faults


def build(section: TmuxSession, site: RunnerSite) -> Runner:
    from pathlib import Path

    from the_loop.core.guards import OWN_MARKER
    from the_loop.core.model import Note
    from the_loop.runners.pane import DEFAULT_BUSY
    from the_loop.runners.tmux import Settings, TmuxRunner
    from the_loop.runners.tmux_server import Server, scrubbed
    from the_loop.runners.tmux_session import Program
    from the_loop.runners.tmux_store import Store
    from the_loop.runners.units import find_units

    units = find_units(site.root, site.environ)
    if units is None:
        site.tell(Note("dispatch.no_manager", {"reason": "this user has no service manager"}))
    environment = {**scrubbed(site.environ), "THE_LOOP_MARK": OWN_MARKER}
    workdir: Path = workdir_of(section, site.environ)

    def program(argv: tuple[str, ...]) -> Program:
        return Program(tuple(map(at_home, argv)), workdir, environment, extras_of(section, site.environ))

    pattern = DEFAULT_BUSY if section.busy_pattern is None else section.busy_pattern
    settings = Settings(
        first=program(section.command),
        resume=program(section.resume_command) if section.resume_command else None,
        prompts=_prompts(section),
        busy=re.compile(pattern, re.MULTILINE) if pattern else None,
        keeps=section.keep_on_close,
        limit_s=site.limit_s,
    )
    server = Server(site.root, site.folder, site.environ, units)
    return TmuxRunner(server, Store(site.root, site.folder), settings, site.tell)


def examine(section: TmuxSession, site: Site) -> Iterator[Finding]:
    from the_loop.runners.examination import examine_tmux

    yield from examine_tmux(site)
    yield from examine_section(section, site, section.command[:1] + section.resume_command[:1])


def _prompts(section: TmuxSession) -> prompts.Prompts:
    """The operator's texts, ours where nothing is said; an empty one is nothing to be said."""
    named = {
        "spawn": section.spawn_prompt,
        "comment": section.comment_prompt,
        "review": section.review_prompt,
        "resume": section.resume_prompt,
        "close": section.close_prompt,
    }
    if "close" not in section.kinds:
        named["close"] = None
    return prompts.Prompts(**{name: text for name, text in named.items() if text is not None})
