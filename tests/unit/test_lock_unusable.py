"""No lock, no run: what cannot be locked is said, within a limit (contract R1.5)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.locks import CLAIM
from support.processes import (
    LIMIT_S,
    in_private_mounts,
    python_argv,
    run_python,
)
from the_loop import lock as lock_module
from the_loop.lock import LockUnusable, RunLock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_attempt_on_no_directory_is_unusable_and_names_it(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / "file").write_bytes(b"")

    with pytest.raises(LockUnusable, match=re.escape(f"cannot lock '{tmp_path / kind}'")) as caught:
        RunLock.attempt(tmp_path / kind, CLAIM)

    assert caught.value.exit_code == 1


def test_attempt_on_a_read_only_file_system_is_unusable_and_names_the_path(root: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from the_loop.lock import LockUnusable, RunLock
        try:
            RunLock.attempt(Path(sys.argv[1]), "poll.pid")
        except LockUnusable as error:
            print(error)
    """
    mount = 'mount -t tmpfs -o ro tmpfs "$1" && shift && exec "$@"'

    argv = in_private_mounts(mount, root, *python_argv(script, root))
    said = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    assert said.startswith(f"cannot lock '{root / CLAIM}': Read-only file system")


def test_attempt_when_the_disk_is_full_is_unusable_and_leaves_the_lock_free(root: Path) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        from the_loop.lock import LockUnusable, RunLock
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            RunLock.attempt(Path(sys.argv[1]), "poll.pid")
        except LockUnusable as error:
            print(error.problem)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        RunLock.attempt(Path(sys.argv[1]), "poll.pid")
    """

    assert run_python(script, root) == f"cannot lock '{root / CLAIM}': File too large\n"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose flock fails, or never returns."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(
        "#include <errno.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "int flock(int fd, int operation) {\n"
        '    while (getenv("SHIM_BLOCKS")) pause();\n'
        "    errno = ENOLCK;\n    return -1;\n}\n"
    )
    argv = ["gcc", "-shared", "-fPIC", "-o", str(folder / "shim.so"), str(folder / "shim.c")]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return folder / "shim.so"


SHIMMED = """
    import sys, time
    from pathlib import Path
    from the_loop import lock
    lock._CALL_LIMIT_S = 0.5
    lock._is_local = lambda _: False  # as on a network file system
    root = Path(sys.argv[1])
    began = time.monotonic()
    try:
        lock.RunLock.attempt(root, "poll.pid")
    except lock.LockUnusable as error:
        print(error.problem)
    print(lock.look(root, "poll.pid").probe)
    (root / "poll.pid").write_text("1:1")
    print(lock.look(root, "poll.pid").probe)
    try:
        lock.remove_stale_claim(root, "poll.pid")
    except lock.LockUnusable as error:
        print(error.problem)
    print(time.monotonic() - began < 5)
"""


@pytest.mark.parametrize(
    ("variables", "cause"),
    [({}, "No locks available"), ({"SHIM_BLOCKS": "1"}, "the lock call did not return within 0 s")],
    ids=["fails", "blocks"],
)
def test_lock_call_that_does_not_work_is_unusable_within_its_limit(
    root: Path, shim: Path, variables: dict[str, str], cause: str
) -> None:
    said = run_python(SHIMMED, root, env={**os.environ, **variables, "LD_PRELOAD": str(shim)})

    attempt, free, held, removal, in_time = said.splitlines()
    assert attempt == f"cannot lock '{root}': {cause}"
    assert (free, held) == ("unknown", "unknown")
    assert removal.endswith(cause)
    assert in_time == "True"


def test_lock_call_limit_is_a_few_seconds() -> None:
    assert 1 <= lock_module._CALL_LIMIT_S <= 10


NO_THREADS = """
    import sys, threading
    from pathlib import Path
    from the_loop import lock
    def start(_):
        raise RuntimeError("can't start new thread")
    threading.Thread.start = start
    root = Path(sys.argv[1])
    if len(sys.argv) > 2:
        lock._is_local = lambda _: False  # as on a network file system
    try:
        held = lock.RunLock.attempt(root, "poll.pid")
    except lock.LockUnusable as error:
        print(error.problem)
    sight = lock.look(root, "poll.pid")
    print(sight.probe, sight.cause)
"""


def test_lock_on_a_local_file_system_needs_no_thread(root: Path) -> None:
    """Under a limit on processes there is none, and a stop is wanted most."""
    assert run_python(NO_THREADS, root) == "held \n"


def test_lock_elsewhere_when_there_can_be_no_thread_is_unusable_and_says_why(root: Path) -> None:
    attempt, sight = run_python(NO_THREADS, root, "elsewhere").splitlines()

    assert attempt.startswith(f"cannot lock '{root}': it is not on a local file system, and a lock call there needs")
    assert sight == f"unknown {attempt}"


@pytest.mark.parametrize(("kind", "is_local"), [("tmpfs", True), ("ramfs", True), ("proc", False), ("sysfs", False)])
def test_local_is_a_file_system_that_is_known_to_be(root: Path, kind: str, is_local: bool) -> None:
    script = """
        import os, sys
        from the_loop import lock
        print(lock._is_local(os.open(sys.argv[1], os.O_RDONLY)))
    """
    mount = f'mount -t {kind} {kind} "$1" && shift && exec "$@"'

    argv = in_private_mounts(mount, root, *python_argv(script, root))

    assert subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout == f"{is_local}\n"
