"""A first configuration file: its text, with comments, from the few things that a person has to decide."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

import yaml

from the_loop.config import ConfigError, Fault, Polling, Routing
from the_loop.config_file import parse

_TEXT: Final = """\
# The configuration of the-loop, begun by `the-loop init`.
# All keys: the manual page the-loop.yaml(5), or docs/usage/configuration.md.
# After a change: `the-loop config check`. A running poller reads the file again on SIGHUP.

polling:
  # Seconds between two cycles.
  intervalSeconds: {interval}
  sources:
{source}
routing:
  # Only the items and comments of these people count.{people}
  authorizedUsers: {users}
  # With true an item starts only when one of them writes `the-loop start` on it.
  requireStartCommand: false
  # A command that takes more seconds than this is ended, and offered the event again.
  dispatchTimeoutSeconds: {limit}

session:
  # exec: run `command` for each event; tmux: tell each event to a session in a terminal; print: print the events.
  runner: {runner}
{command}"""
_GITHUB: Final = """\
    - provider: github
      # As owner/name. Their open issues and pull requests with this label are the items.
      repos: {repos}
      label: {label}
"""
_API: Final = """\
      # The address of the API, for GitHub Enterprise Server: https://HOST/api/v3
      apiUrl: {api_url}
"""
_FROM_FILE: Final = """\
      # This file holds the token; close it to others (mode 0600).
      tokenFile: {token_file}
"""
_FROM_ENVIRONMENT: Final = """\
      # Without this key the token is $GITHUB_TOKEN or $GH_TOKEN, which a systemd unit does not get from your shell.
      # tokenFile: ~/.config/the-loop/token
"""
_DIRECTORY: Final = """\
    - provider: directory
      # Each folder in it is an item, each file in that a text. A relative path is below the state root.
      path: {path}
"""
_COMMAND: Final = """\
  # The program and its arguments. No shell is involved unless you name one.
  command: {command}
"""
_INPUT: Final = """\
  # What it reads on standard input: json, or text.
  input: json
"""
_LOGINS: Final = " A GitHub login can be pinned: octocat#583231"
_OWNERS: Final = " The author of a file is its owner."
_UNFOLDED: Final = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was decided, "" for nothing. `path` is of a directory, the four fields above it are of GitHub."""

    provider: str
    users: tuple[str, ...]
    runner: str = "exec"
    command: tuple[str, ...] = ()
    repos: tuple[str, ...] = ()
    label: str = ""
    api_url: str = ""
    token_file: str = ""
    path: str = ""

    @property
    def text(self) -> str:
        """The file. Its values are what was decided, whatever characters they have."""
        return _TEXT.format(
            interval=Polling().interval_seconds,
            limit=Routing().dispatch_timeout_seconds,
            source=self._source(),
            people=_LOGINS if self.provider == "github" else _OWNERS,
            users=scalar(list(self.users)),
            runner=scalar(self.runner),
            command=self._command(),
        )

    def faults(self) -> list[Fault]:
        """What is wrong with it on this machine."""
        try:
            parse(self.text.encode("utf-8"), "the answers", is_for_here=True)
        except ConfigError as error:
            return error.faults
        return []

    def _source(self) -> str:
        if self.provider != "github":
            return _DIRECTORY.format(path=scalar(self.path))
        api = _API.format(api_url=scalar(self.api_url)) if self.api_url else ""
        token = _FROM_FILE.format(token_file=scalar(self.token_file)) if self.token_file else _FROM_ENVIRONMENT
        return _GITHUB.format(repos=scalar(list(self.repos)), label=scalar(self.label)) + api + token

    def _command(self) -> str:
        if self.runner == "print":
            return ""
        return _COMMAND.format(command=scalar(list(self.command))) + (_INPUT if self.runner == "exec" else "")


def scalar(value: str | list[str]) -> str:
    """The text or list on one line of YAML, quoted where it has to be."""
    texts = [value] if isinstance(value, str) else value
    style = None if all(text.isprintable() for text in texts) else '"'  # in this style line breaks are escaped
    dumped: str = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, width=_UNFOLDED, allow_unicode=True
    )
    return dumped.removesuffix("\n").removesuffix("\n...")
