"""A third party's source and runner, installed and found by their entry points, with the real command."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.example_plugin import EXAMPLE, install_example
from support.poller import COMMAND, ME, Box

if TYPE_CHECKING:
    from pathlib import Path

AT = "2026-01-31T12:00:00Z"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example(tmp_path_factory.mktemp("example"))


@pytest.fixture
def plugged(box: Box, site: Path) -> Box:
    """A poller whose only source and runner are the example's."""
    box.environ["PYTHONPATH"] = str(site)
    (box.folder / "items").mkdir()
    (box.folder / "spool").mkdir()
    source = {"provider": "jsonl", "name": "lines", "path": str(box.folder / "items")}
    tree = box.settings(sources=[source])
    box.write_config(json.dumps({**tree, "session": {"runner": "spool", "path": "~/spool"}}))
    return box


def say(box: Box, item: str, **line: str) -> None:
    append(box, item, json.dumps({"at": AT, **line} if "text" in line else line))


def append(box: Box, item: str, line: str) -> None:
    file = box.folder / "items" / f"{item}.jsonl"
    with file.open("a") as opened:
        opened.write(f"{line}\n")
    file.chmod(0o644)


def spooled(box: Box) -> list[str]:
    """The delivery ids of what lies in the spool."""
    files = (box.folder / "spool").iterdir()
    return sorted(json.loads(file.read_bytes())["deliveryId"] for file in files)


def test_example_when_installed_then_each_event_goes_through_it_once_over_restarts(plugged: Box) -> None:
    box, ref = plugged, "jsonl:lines/door"
    say(box, "door", title="Door", text="It squeaks.")
    assert box.once().code == 0
    say(box, "door", text="The one upstairs.")
    assert box.once().code == 0
    assert box.once().code == 0
    say(box, "door", closed="done")
    assert box.once().code == 0

    ids = spooled(box)
    assert [id_ for id_ in ids if "/comment:" not in id_] == [f"{ref}/close:1", f"{ref}/spawn:1"]
    assert [id_.partition("-")[0] for id_ in ids if "/comment:" in id_] == [f"{ref}/comment:2"]
    assert box.pending() == {}
    assert box.attempts() == {}
    assert list((box.root / "local" / "deliveries").iterdir()) == []


def test_example_when_its_spool_is_missing_then_nothing_is_lost_and_no_attempt_is_spent(plugged: Box) -> None:
    box = plugged
    (box.folder / "spool").rmdir()
    say(box, "door", text="It squeaks.")

    done = box.once()

    assert "No such file" in done.err
    assert box.attempts() == {}
    (box.folder / "spool").mkdir()
    assert box.once().code == 0
    assert spooled(box) == ["jsonl:lines/door/spawn:1"]


def test_example_when_a_line_is_broken_then_that_item_alone_waits_and_is_named(plugged: Box) -> None:
    box = plugged
    say(box, "door", text="It squeaks.")
    say(box, "fence", text="Paint it.")
    assert box.once().code == 0
    append(box, "door", "{nonsense")
    say(box, "fence", text="Green.")

    done = box.once()

    assert done.code == 1
    assert "door.jsonl" in done.err
    assert [id_.rpartition("/")[0] for id_ in spooled(box) if "/comment:" in id_] == ["jsonl:lines/fence"]


def test_example_when_its_section_is_wrong_then_it_says_what(plugged: Box) -> None:
    box = plugged
    tree = box.settings(sources=[{"provider": "jsonl", "pth": "items"}])
    box.write_config(json.dumps({**tree, "session": {"runner": "spool", "path": "spool"}}))

    done = box.run("config", "check")

    assert done.code == 78
    assert "polling.sources[0].pth: unknown key, did you mean 'path'?" in done.err
    schema = box.run("config", "schema").json()
    assert [choice["$ref"] for choice in schema["$defs"]["Session"]["anyOf"]] == [
        "#/$defs/exec.ExecSession",
        "#/$defs/print.CommandSession",
        "#/$defs/spool.Section",
        "#/$defs/tmux.TmuxSession",
    ]
    assert {"$ref": "#/$defs/jsonl.Section"} in schema["$defs"]["SourceSection"]["anyOf"]


def test_readme_of_the_example_when_its_commands_are_run_then_they_show_what_it_says(
    tmp_path: Path, site: Path
) -> None:
    text = (EXAMPLE / "README.md").read_text()
    (console,) = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    _, configured = console.split("$ cat loop.yaml\n")
    sample, _, rest = configured.partition("$ ")
    (tmp_path / "loop.yaml").write_text(sample.replace("alice", ME))
    lines = f"$ {rest}".splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    environ = {"HOME": str(tmp_path), "PATH": f"{COMMAND.parent}:/usr/bin:/bin", "PYTHONPATH": str(site)}

    done = subprocess.run(
        ["sh", "-euc", "umask 022\n" + "\n".join(commands)],
        cwd=tmp_path,
        env={**environ, "THE_LOOP_STATE_ROOT": str(tmp_path / "root")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout.splitlines()) == (0, [line for line in lines if not line.startswith("$ ")]), (
        done.stderr
    )
