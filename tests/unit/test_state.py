"""The state root: file names, modes, ownership, and writes that a power cut cannot halve (contract section 3)."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.processes import LIMIT_S, in_private_mounts, python_argv, run_python, traced
from the_loop.cli.common import Options
from the_loop.durable import read_json_object, read_regular, replace_file, to_json_bytes, write_durably
from the_loop.state import StateRoot, StateRootError, slug, unslug

NAMES = st.text(max_size=300) | st.text(alphabet=":/#,+@%.~-_aA1", max_size=12)


def foreign_directory(tmp_path: Path) -> Path:
    """A directory of another user's."""
    if os.geteuid() != 0:
        return Path("/usr")
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 12345, 12345)
    return theirs


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# --- file names ---


@settings(deadline=None)
@given(NAMES)
@example("../../etc/passwd")
@example(".")
@example("..")
@example("a" * 200)
@example("é" * 200)
@example("\ud800\udc00")
def test_slug_of_any_name_stays_in_its_folder_and_comes_back(name: str) -> None:
    made = slug(name)

    assert len(made.encode()) <= 200
    assert re.fullmatch(r"[A-Za-z0-9._,+@%~-]*", made)
    assert not made.startswith(".")
    assert unslug(made) == (None if "~" in made else name)


@settings(deadline=None)
@given(NAMES, NAMES)
@example("octo/re-po#1", "octo-re/po#1")
@example("a:b", "a,b")
@example("a/b", "a+b")
@example("a#b", "a@b")
@example(".a", "%2Ea")
@example("x" * 201, "x" * 202)
@example("\ud83d\ude00", "\U0001f600")
@example("é", "e\u0301")
def test_slug_of_two_names_differs(one: str, other: str) -> None:
    assert (slug(one) == slug(other)) == (one == other)


def test_slug_of_a_ref_is_readable() -> None:
    assert slug("github:octo/re-po#1") == "github,octo+re-po@1"


def test_slug_of_a_long_name_is_cut_and_says_so() -> None:
    made = slug("directory:inbox/" + "x" * 300)

    assert len(made) == 200
    assert made.startswith("directory,inbox+xxx")
    assert unslug(made) is None


@pytest.mark.parametrize(
    "text", ["a%2", "%zz", "a b", "é", "a:b", "%61", "%2e", "a~b", ".a", "%FF", "\udc80", "%ED%A0"]
)
def test_unslug_of_what_slug_never_makes_is_none(text: str) -> None:
    assert unslug(text) is None


@settings(deadline=None)
@given(st.text(max_size=40))
def test_unslug_of_any_text_names_nothing_that_slugs_otherwise(text: str) -> None:
    name = unslug(text)

    assert name is None or slug(name) == text


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a" * 500, "..", "."])
def test_paths_of_any_name_stay_below_the_root(tmp_path: Path, name: str) -> None:
    root = StateRoot(tmp_path)

    assert root.ledger(name).parent == tmp_path / "portable"
    assert root.cursor(name).parent == tmp_path / "local" / "sources"
    assert root.delivery(name).parent == tmp_path / "local" / "deliveries"
    assert len(f".{root.delivery(name).name}.payload.json.tmp") < 255


# --- writes ---

WRITE = """
    import sys
    from pathlib import Path
    from the_loop.durable import write_durably
    write_durably(Path(sys.argv[1]), b"content")
"""


def test_write_durably_flushes_the_data_then_renames_a_sibling_then_flushes_the_directory(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    target = folder / "x.json"
    calls = "openat,write,fsync,fdatasync,rename,renameat,renameat2"

    lines = traced(python_argv(WRITE, target), tmp_path / "log", calls, env={**os.environ, "TMPDIR": str(elsewhere)})

    told = [line for line in lines if str(folder) in line]
    steps = [
        r"openat\(.*/folder/\.x\.json\.tmp\", O_WRONLY\|O_CREAT\|.*O_NOFOLLOW.*, 0600\) = \d",
        r"write\(\d+<.*/folder/\.x\.json\.tmp>, \"content\", 7\) *= 7",
        r"fsync\(\d+<.*/folder/\.x\.json\.tmp>\) *= 0",
        r"rename\(\".*/folder/\.x\.json\.tmp\", \".*/folder/x\.json\"\) *= 0",
        r"openat\(.*/folder\", .*O_DIRECTORY.*\) = \d",
        r"fsync\(\d+<.*/folder>\) *= 0",
    ]
    assert len(told) == len(steps), told
    for step, line in zip(steps, told, strict=True):
        assert re.match(step, line), line
    assert not any(str(elsewhere) in line for line in lines)
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in folder.iterdir()] == ["x.json"]


def test_write_durably_with_tmpdir_on_another_file_system_works(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    script = 'mount -t tmpfs tmpfs "$1" && export TMPDIR="$1" && shift && exec "$@"'

    argv = in_private_mounts(script, tmp_path / "tmp", *python_argv(WRITE, tmp_path / "x.json"))
    subprocess.run(argv, check=True, timeout=LIMIT_S)

    assert (tmp_path / "x.json").read_bytes() == b"content"


def test_write_durably_when_the_disk_refuses_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_bytes(b"old")
    script = """
        import resource, sys
        from pathlib import Path
        from the_loop.durable import write_durably
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
        try:
            write_durably(Path(sys.argv[1]), b"content")
        except OSError as error:
            print(error.strerror)
    """

    said = run_python(script, target)

    assert said == "File too large\n"
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_modes_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "parent" / "root"
    root.parent.mkdir()
    script = """
        import os, sys
        from pathlib import Path
        from the_loop.state import StateRoot
        from the_loop.durable import write_durably
        os.umask(int(sys.argv[2]))
        root = StateRoot(Path(sys.argv[1]))
        root.prepare_root()
        root.prepare_folders()
        write_durably(root.ledger("a:b"), b"x")
    """

    run_python(script, root, str(umask))

    modes = {str(path.relative_to(root)): (path.is_dir(), mode_of(path)) for path in [root, *root.rglob("*")]}
    assert modes.pop("portable/a,b.json") == (False, 0o600)
    assert set(modes) == {".", "portable", "local", "local/deliveries", "local/sources", "local/sessions", "logs"}
    assert set(modes.values()) == {(True, 0o700)}


def test_modes_that_were_open_are_closed(tmp_path: Path) -> None:
    root = StateRoot(tmp_path / "root")
    for folder in (root.path, root.portable):
        folder.mkdir()
        folder.chmod(0o755)
    root.ledger("a:b").write_bytes(b"old")
    root.ledger("a:b").chmod(0o644)

    root.prepare_root()
    root.prepare_folders()
    write_durably(root.ledger("a:b"), b"new")

    assert [mode_of(path) for path in (root.path, root.portable, root.ledger("a:b"))] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("is_dangling", [False, True])
def test_write_when_the_place_beside_is_a_planted_link_follows_it_nowhere(tmp_path: Path, is_dangling: bool) -> None:
    victim = tmp_path / "victim"
    if not is_dangling:
        victim.write_bytes(b"precious")
    (tmp_path / ".x.json.tmp").symlink_to(victim)

    with pytest.raises(OSError, match="symbolic links"):
        write_durably(tmp_path / "x.json", b"content")

    assert victim.exists() is not is_dangling
    assert is_dangling or victim.read_bytes() == b"precious"


def test_write_onto_a_link_replaces_the_link_and_not_its_target(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "x.json").symlink_to(victim)

    replace_file(tmp_path / "x.json", b"content", sync=False)

    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "x.json").is_symlink()


def test_folders_when_a_write_was_cut_off_are_cleared_of_it_alone(tmp_path: Path) -> None:
    root = StateRoot(tmp_path / "root")
    root.prepare_root()
    root.prepare_folders()
    cut, kept = root.portable / ".a,b.json.tmp", root.portable / "a,b.json"
    cut.write_bytes(b"ha")
    kept.write_bytes(b"{}")

    root.prepare_folders()

    assert (cut.exists(), kept.exists()) == (False, True)


# --- reads ---


def test_read_regular_of_a_file_gives_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0\xffx")

    assert read_regular(tmp_path / "x") == b"\0\xffx"


def test_read_regular_of_nothing_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "x")


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "directory", "device", "large"])
@pytest.mark.timeout(10)
def test_read_regular_of_anything_else_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    (tmp_path / "real").write_bytes(b"12345")
    match kind:
        case "link":
            path.symlink_to(tmp_path / "real")
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            path = Path("/dev/zero")
        case "large":
            path = tmp_path / "real"

    with pytest.raises(OSError) as caught:  # noqa: PT011 (which one depends on the kind; that it is no "not found" counts)
        read_regular(path, limit=4)
    assert not isinstance(caught.value, FileNotFoundError)


@settings(deadline=None)
@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text(), max_size=4))
def test_json_of_any_object_is_ascii(value: dict[str, object]) -> None:
    assert to_json_bytes(value).isascii()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 64, b"[]", b"5", b'"x"', b'{"a": ', b"\xff\xfe{", b"[" * 100_000, b"9" * 5000]
)
def test_read_json_object_of_anything_but_an_object_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)

    with pytest.raises(ValueError):  # noqa: PT011 (its kind is the contract, its words are not)
        read_json_object(tmp_path / "x.json")


# --- the root itself ---


def test_prepare_root_makes_missing_parents(tmp_path: Path) -> None:
    root = StateRoot(tmp_path / "a" / "b" / "c")

    root.prepare_root()

    assert mode_of(root.path) == 0o700


def test_prepare_root_of_another_user_refuses_and_touches_nothing(tmp_path: Path) -> None:
    theirs = foreign_directory(tmp_path)
    before = theirs.stat()

    with pytest.raises(StateRootError, match=rf"'{theirs}': it belongs to uid {before.st_uid}"):
        StateRoot(theirs).prepare_root()

    after = theirs.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_prepare_root_through_a_link_into_another_users_directory_refuses(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(foreign_directory(tmp_path))

    with pytest.raises(StateRootError, match="belongs to uid"):
        StateRoot(tmp_path / "link").prepare_root()


def test_prepare_root_of_a_shared_directory_refuses_and_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)

    with pytest.raises(StateRootError, match="it is a shared directory"):
        StateRoot(shared).prepare_root()

    assert mode_of(shared) == 0o1777


def test_root_that_holds_other_things_is_refused_and_keeps_its_mode(tmp_path: Path) -> None:
    """`--state-root /usr/local` made it private."""
    taken = tmp_path / "it's taken"
    for name in ("bin", "etc", "lib", "lo\x1bcal"):
        (taken / name).mkdir(parents=True)
    taken.chmod(0o755)
    before = taken.stat()

    with pytest.raises(StateRootError):
        StateRoot(taken).prepare_root()
    with pytest.raises(StateRootError) as caught:
        StateRoot(taken).check_owner()

    quoted = str(tmp_path) + "/it'\"'\"'s taken"
    assert str(caught.value) == (
        f"cannot use state root '{taken}': it would become private, and it has other files in it: "
        f"'bin', 'etc', 'lib', … (use a directory of its own, as in `--state-root '{quoted}/the-loop'`, "
        f"or, if all of it is the poller's, run `chmod 700 '{quoted}'`)"
    )
    assert (taken.stat().st_mode, taken.stat().st_ctime_ns) == (before.st_mode, before.st_ctime_ns)
    assert sorted(path.name for path in taken.iterdir()) == ["bin", "etc", "lib", "lo\x1bcal"]


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("inbox",),
        ("lost+found",),
        ("poll.pid", "poll-status.json", "poll.wake", "portable", "local", "logs", "inbox", ".poll.pid.4711"),
    ],
    ids=len,
)
def test_root_that_holds_only_what_is_ours_is_made_private(tmp_path: Path, names: tuple[str, ...]) -> None:
    root = StateRoot(tmp_path / "root")
    root.path.mkdir()
    root.path.chmod(0o755)
    for name in names:
        (root.path / name).mkdir()

    root.prepare_root()

    assert mode_of(root.path) == 0o700


def test_root_that_is_private_already_may_hold_anything(tmp_path: Path) -> None:
    root = StateRoot(tmp_path / "root")
    root.path.mkdir(mode=0o700)
    (root.path / "notes.txt").touch()

    root.prepare_root()


def test_root_may_hold_what_the_configuration_puts_there(tmp_path: Path) -> None:
    path = tmp_path / "root"
    for name in ("in box", "tokens", "bin", "work"):
        (path / name).mkdir(parents=True)
    (path / "config.yaml").write_text(f"""
        polling:
          sources:
            - {{provider: directory, path: "./in box/deep"}}
            - {{provider: github, repos: [o/r], label: x, tokenFile: "{path}/tokens/one"}}
        routing: {{authorizedUsers: ["directory:root", "github:octocat"]}}
        session: {{command: ["{path}/bin/agent", notes], workdir: "{path}/work"}}
    """)
    path.chmod(0o755)
    options = Options(config_file=str(path / "config.yaml"), state_root=str(path), verbose=False)

    options.root_of(options.load()).prepare_root()

    assert mode_of(path) == 0o700
    path.chmod(0o755)
    (path / "notes").touch()
    with pytest.raises(StateRootError, match="other files in it: 'notes' "):
        options.root_of(options.load()).prepare_root()


def test_check_owner_of_the_top_directory_refuses() -> None:
    with pytest.raises(StateRootError, match="cannot use state root '/'"):
        StateRoot(Path("/")).check_owner()


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling link", "fifo"])
def test_prepare_root_of_no_directory_says_so_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "file":
            path.write_bytes(b"precious")
        case "below a file":
            path.write_bytes(b"precious")
            path = path / "root"
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case "fifo":
            os.mkfifo(path)

    with pytest.raises(StateRootError, match=rf"^cannot use state root '{path}': .*--state-root"):
        StateRoot(path).prepare_root()


def test_check_owner_of_a_missing_root_makes_nothing(tmp_path: Path) -> None:
    StateRoot(tmp_path / "missing").check_owner()

    assert list(tmp_path.iterdir()) == []
