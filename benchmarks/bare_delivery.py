"""What a delivery costs without us: two durable files and `true` in a transient unit. Run by `delivery.py`, in its box.

    bare_delivery.py FOLDER COUNT AT_ONCE KIND      prints the seconds that they took

KIND says what runs in the unit. `python`: a small Python that writes a durable file, starts `true`, and writes another
one: what any program that keeps watch over a command, and survives its starter, has to do. `true`: nothing but `true`,
and the files are written here: the least that the manager and the disk need.

One connection to the user's manager, by our own `the_loop.manager`. The end of a unit is seen by the end of a pipe
that its processes have for standard output, so no time goes by between it and the next.
"""  # noqa: INP001 (a script, not a package)

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from the_loop.durable import to_json_line, write_durably
from the_loop.manager import Manager

KEEPER = """
import json, os, sys
def write(path, value):
    with open(path + ".tmp", "wb") as file:
        file.write(json.dumps(value).encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)
write(sys.argv[1] + ".started.json", {"keeper": os.getpid()})
os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
write(sys.argv[1] + ".outcome.json", {"outcome": "delivered"})
"""


async def deliver(manager: Manager, stem: Path, *, is_watched: bool) -> None:
    argv = [sys.executable, "-I", "-S", "-c", KEEPER, str(stem)] if is_watched else ["/bin/true"]
    if not is_watched:
        write_durably(stem.with_suffix(".started.json"), to_json_line({"keeper": os.getpid()}))
    readable, writable = os.pipe()
    try:
        await manager.start_transient_unit(
            f"bare-{os.getpid()}-{stem.name}.service",
            [
                ("Type", ("s", "exec")),
                ("CollectMode", ("s", "inactive-or-failed")),
                ("Slice", ("s", "theloop.slice")),
                ("ExecStartEx", ("a(sasas)", [(argv[0], argv, ["no-env-expand"])])),
                ("StandardOutputFileDescriptor", ("h", writable)),
            ],
        )
    finally:
        os.close(writable)
    await ended(readable)
    if not is_watched:
        write_durably(stem.with_suffix(".outcome.json"), to_json_line({"outcome": "delivered"}))


async def ended(readable: int) -> None:
    """Return when the last process that has the other side is gone."""
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(readable, is_over.set)
    await is_over.wait()
    loop.remove_reader(readable)
    os.close(readable)


async def deliver_all(folder: Path, count: int, at_once: int, *, is_watched: bool) -> None:
    manager = Manager(os.environ)
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await deliver(manager, folder / str(number), is_watched=is_watched)

    await asyncio.gather(*(work() for _ in range(at_once)))
    manager.close()


def main(folder: str, count: str, at_once: str, kind: str) -> None:
    Path(folder).mkdir(exist_ok=True)
    began = time.perf_counter()
    asyncio.run(deliver_all(Path(folder), int(count), int(at_once), is_watched=kind == "python"))
    seconds = time.perf_counter() - began
    assert len(list(Path(folder).glob("*.outcome.json"))) == int(count)  # noqa: S101
    for path in Path(folder).iterdir():
        path.unlink()
    sys.stdout.write(f"{seconds:.6f}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
