"""`make test` needs neither npm nor a browser: it runs every folder of tests but these."""

from __future__ import annotations

import tomllib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_testpaths_when_read_then_every_other_folder_of_tests() -> None:
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))
    folders = {file.parent.relative_to(TESTS.parent).as_posix() for file in TESTS.rglob("test_*.py")}

    assert folders - {"tests/published", "tests/browser"} == set(settings["tool"]["pytest"]["ini_options"]["testpaths"])
