"""What the keeper gives its command, what it leaves on disk, and in which order (contract R7.1, R7.2)."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

from support.keepers import Delivery
from support.processes import command, in_private_mounts, traced, wait_until
from the_loop.deliveries import claim

SH = ("/bin/sh", "-c")


@pytest.fixture
def delivery(tmp_path: Path) -> Delivery:
    return Delivery(tmp_path)


# --- what the command gets ---


def test_command_reads_the_payload_on_stdin_and_cannot_write_it(delivery: Delivery) -> None:
    delivery.write_payload(body="日本\n\x1b[201~ $(touch pwned); '\"\\" + "x" * 200_000)
    before = delivery.file("payload.json").read_bytes()

    assert delivery.keep(*SH, "cat > got; echo x >&0 || echo read-only > mode") == 0

    assert (delivery.workdir / "got").read_bytes() == before == delivery.file("payload.json").read_bytes()
    assert delivery.said("mode") == "read-only"
    assert not (delivery.workdir / "pwned").exists()


def test_command_has_no_descriptor_but_the_three(delivery: Delivery) -> None:
    descriptors = [os.open(path, os.O_RDONLY) for path in (delivery.folder, delivery.file("lock"))]
    script = """
import os
found = [number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
open("fds", "w").write(" ".join(sorted(found)) + "\\n")
"""
    try:
        fcntl.flock(descriptors[1], fcntl.LOCK_EX)
        program = (sys.executable, "-I", "-S", "-c", script)
        assert delivery.keep(*program, run={"pass_fds": descriptors, "stdin": descriptors[1]}) == 0
    finally:
        for descriptor in descriptors:
            os.close(descriptor)

    assert delivery.said("fds") == "0 1 2"


def test_command_has_ordinary_signals_whatever_the_poller_was_started_with(delivery: Delivery) -> None:
    ignored = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE]

    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])

    assert delivery.keep(*SH, "grep -E 'Sig(Ign|Blk)' /proc/self/status > signals", run={"preexec_fn": ignore}) == 0

    assert delivery.outcome[0] == "delivered"
    masks = dict(re.findall(r"(Sig\w+):\s+(\w+)", delivery.said("signals")))
    # 32 and 33 are the C library's own: nobody can set them, and who started us may have left them ignored
    own = 1 << 31 | 1 << 32
    assert {name: int(mask, 16) & ~own for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


def test_keeper_of_a_poller_that_ignores_sigchld_still_sees_the_end(delivery: Delivery) -> None:
    began = time.monotonic()

    delivery.keep(*SH, "exit 0", run={"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}, limit_s=20)

    assert delivery.outcome[0] == "delivered"
    assert time.monotonic() - began < 10


def environment_of(delivery: Delivery) -> dict[str, str]:
    pairs = (delivery.workdir / "environment").read_bytes().decode().rstrip("\0").split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs)


def test_environment_is_from_a_list_and_tells_of_the_delivery(delivery: Delivery) -> None:
    delivery.write_payload(redelivery=True, attempt=2)
    kept = {"PATH": os.environ["PATH"], "HOME": "/home/x", "LC_TIME": "C", "TZ": "UTC"}
    secret = {
        **dict.fromkeys(("GITHUB_TOKEN", "GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "LD_X"), "secret"),
        **dict.fromkeys(("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"), "1"),
        **dict.fromkeys(("CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "THE_LOOP_CONFIG"), "1"),
        **dict.fromkeys(("THE_LOOP_STATE_ROOT", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "MAINPID"), "1"),
    }

    assert delivery.keep(*SH, "exec env -0 > environment", run={"env": {**kept, **secret}}) == 0

    found = environment_of(delivery)
    assert found.items() >= kept.items()
    assert not set(found) & set(secret)
    told = {name.removeprefix("THE_LOOP_DELIVERY_"): value for name, value in found.items() if "DELIVERY" in name}
    assert told == {
        "ID": "d:1/comment:1",
        "KIND": "comment",
        "REF": "d:1",
        "URL": "u",
        "AUTHOR": "alice",
        "ATTEMPT": "2",
        "REDELIVERY": "true",
    }


def test_values_from_outside_have_no_control_characters_and_are_capped(delivery: Delivery) -> None:
    odd = "a\n\r\t\x1b[31m\x07\x7f\x9b\u2028\u202e\ud800=b"
    delivery.write_payload(author=odd, url="x" * 1_000_000, ref=None)

    assert delivery.keep(*SH, "exec env -0 > environment") == 0

    found = environment_of(delivery)
    assert found["THE_LOOP_DELIVERY_AUTHOR"] == "a????[31m??????=b"
    assert found["THE_LOOP_DELIVERY_URL"] == "x" * 4096
    assert found["THE_LOOP_DELIVERY_REF"] == ""
    assert found["THE_LOOP_DELIVERY_REDELIVERY"] == "false"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX", "xx_YY.ISO-8859-1"])
@pytest.mark.parametrize("mode", ["utf8=0", "utf8"])
def test_values_are_utf_8_under_every_locale(delivery: Delivery, locale: str, mode: str) -> None:
    delivery.write_payload(author="日本 é 🎉")
    run = {"env": {"PATH": os.environ["PATH"], "LC_ALL": locale}}
    keeper = delivery.argv()[5]

    assert delivery.keep(*SH, "exec env -0 > environment", python=("-X", mode, keeper), run=run) == 0

    assert delivery.outcome[0] == "delivered"
    assert environment_of(delivery)["THE_LOOP_DELIVERY_AUTHOR"] == "日本 é 🎉"


# --- the disk, and the order of things ---


def test_start_mark_that_cannot_be_written_is_taken_back(delivery: Delivery) -> None:
    def fill_up() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    assert delivery.keep(*SH, "echo ran", run={"preexec_fn": fill_up}) == 1

    assert delivery.mark is None
    assert delivery.outcome == ("", "")


SMALL_DISK = """
    mount -t tmpfs -o size=64k tmpfs "$1" && cp "$2" "$1/x.payload.json" && exec 3<> "$1/x.lock" && cd "$1" || exit 9
    room=$3 log=$4
    shift 4
    { until [ -e "$room" ]; do sleep 0.02; done; rm fill; } &
    flock 3
    "$@" <&3 >> "$log" 2>&1
    echo "keeper $?"
    cat x.outcome.json
    echo
"""


@pytest.mark.parametrize("log", ["elsewhere", "on the full disk"])
def test_outcome_on_a_full_disk_is_written_when_there_is_room(delivery: Delivery, log: str) -> None:
    disk = delivery.folder / "disk"
    disk.mkdir()
    room = delivery.folder / "room"
    argv = delivery.argv(*SH, "dd if=/dev/zero of=fill bs=1k 2> /dev/null; exit 0", workdir=disk)
    argv[argv.index(str(delivery.stem))] = str(disk / "x")
    output = delivery.folder / "log" if log == "elsewhere" else disk / "log"

    small = in_private_mounts(SMALL_DISK, disk, delivery.file("payload.json"), room, output, *argv)
    with command(small) as shell:
        there = Path(f"/proc/{shell.pid}/cwd")
        wait_until((there / "x.outcome.json.tmp").exists, "the keeper tries to write its outcome")
        wait_until(lambda: log != "elsewhere" or "trying again" in output.read_text(), "the keeper says so")
        assert not (there / "x.outcome.json").exists()
        room.write_bytes(b"")

        assert shell.line() == "keeper 0"
        assert '"outcome": "delivered"' in shell.line()


def test_order_is_mark_then_command_then_outcome_each_flushed(delivery: Delivery) -> None:
    argv = delivery.argv("/bin/sh", "-c", "exit 0")
    with claim(delivery.stem) as lock:
        lines = traced(argv, delivery.folder / "log", "openat,fsync,rename,execve,unlink", stdin=lock)

    folder = re.escape(str(delivery.stem.parent))
    done = r"(?:\) *= 0| <unfinished)"  # while another thread ends, a call is shown in two parts
    steps = [
        rf'openat\(.*"{folder}/x\.started\.json", O_WRONLY\|O_CREAT\|O_EXCL\|O_NOFOLLOW.*, 0600\) = \d',
        rf"fsync\(\d+<{folder}/x\.started\.json>\) *= 0",
        rf"fsync\(\d+<{folder}>{done}",
        r'execve\("/bin/sh", \["/bin/sh", "-c", "exit 0"\], .*\) *= 0',
        rf"fsync\(\d+<{folder}/x\.outcome\.json\.tmp>{done}",
        rf'rename\("{folder}/x\.outcome\.json\.tmp", "{folder}/x\.outcome\.json"{done}',
        rf"fsync\(\d+<{folder}>{done}",
    ]
    found = [number for line in lines for number, step in enumerate(steps) if re.match(step, line)]
    directory = {2: "d", 6: "d"}  # the same call at two places
    assert [directory.get(number, number) for number in found if number != 6] == [0, 1, "d", 3, 4, 5, "d"]
