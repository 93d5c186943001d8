"""Configurations for tests, and their faults by path."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from the_loop.config import Config, ConfigError
from the_loop.config_file import parse

INBOX = {"provider": "directory", "path": "inbox"}
WORK = {"provider": "github", "repos": ["octo/repo"], "label": "auto"}


def tree(*sources: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration without faults, with these sources and sections instead of its own."""
    whole: dict[str, dict[str, Any]] = {
        "polling": {"sources": list(sources) or [INBOX]},
        "routing": {"authorizedUsers": ["alice"]},
        "session": {"command": ["agent"]},
    }
    for name, section in sections.items():
        whole[name] = {**whole.get(name, {}), **section}
    return whole


def faults_of(content: Any) -> dict[str, str]:
    """The faults by their path."""
    text = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
    with pytest.raises(ConfigError) as caught:
        parse(text, "config.yaml")
    error = caught.value
    assert error.exit_code == 78
    assert str(error).startswith("cannot use configuration 'config.yaml':\n  ")
    for fault in error.faults:
        assert f"\n  {fault}" in str(error)
    return {fault.path: fault.problem for fault in error.faults}


def config_of(content: dict[str, Any]) -> Config:
    return parse(yaml.safe_dump(content).encode(), "config.yaml")
