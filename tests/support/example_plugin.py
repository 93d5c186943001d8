"""The example of a third party's package, installed as a person would, without a network and beside everything else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
_LIMIT_S = 120.0


def install_example(folder: Path) -> Path:
    """Have pip build and install it; where it is importable from, with its entry points."""
    site = folder / "site"
    # pip builds in the folder itself, and there is nothing to be left in the repository's
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-index", "--no-build-isolation", "--no-deps", "--target", str(site)]
    done = subprocess.run([*pip, *alone, source], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return site
