"""The requirement files pin every package, with its hashes, and name no place to get it from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([a-z0-9-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})*)\n", re.MULTILINE)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_requirements_are_pins_with_hashes_and_nothing_else(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")

    assert {package for package, hashes in PIN.findall(text) if not hashes} == set()
    assert {"click", "msgspec", "setuptools"} <= {package for package, _ in PIN.findall(text)}
    rest = PIN.sub("", text).splitlines()
    assert [line for line in rest if line.strip() and not line.lstrip().startswith("#")] == []
    assert "://" not in text


def test_what_runs_is_pinned_alike_in_both_files() -> None:
    running, developing = (
        dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / name).read_text("utf-8"), re.MULTILINE))
        for name in ("requirements.txt", "requirements-dev.txt")
    )

    assert running.items() <= developing.items()
