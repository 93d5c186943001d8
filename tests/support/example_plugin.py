"""The example of a third party's package, installed as a person would, without a network and beside everything else."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

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


def importable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A fixture: it is installed where this process finds it, and forgotten in the end."""
    site = str(install_example(tmp_path_factory.mktemp("example")))
    sys.path.insert(0, site)
    importlib.invalidate_caches()
    yield
    sys.path.remove(site)
    for name in [name for name in sys.modules if name.partition(".")[0] == "the_loop_example"]:
        del sys.modules[name]
