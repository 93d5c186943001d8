"""The configuration file: whatever lies there, never a traceback (contract section 5)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from support.configs import WORK, config_of, faults_of, tree
from support.processes import run_python
from the_loop.cli.common import Options
from the_loop.config import ConfigError
from the_loop.config_file import find_file, load, parse, peek_root

# --- what is no configuration ---


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"# nothing but words\n",
        b"---\n",
        b"5",
        b"[]",
        b"just text",
        b"\xff\xfe",
        b"\xff\xff\xff",
        b"a\0b: 1",
        b"polling: [",
        b"polling:\n  sources:\n   - provider: git",
        b"polling:\n  interv",
        b"polling:\n\tsources: []",
        b"--- {}\n--- {}",
        b"? [a]\n: b",
        b"? {a: b}\n: c",
        b"*nowhere",
        b"!!python/object/apply:os.system ['true']",
        b'polling: !!int ""',
        b'polling: !!float ""',
        b'polling: !!timestamp "x"',
        b'polling: !!bool "x"',
        b"polling: 2024-13-45",
        b"polling: {intervalSeconds: " + b"9" * 5000 + b"}",
        b"polling: {intervalSeconds: 0x" + b"F" * 6000 + b"}",
        b"[" * 1200,
        b"{a: " * 1200,
        b"polling: &p {sources: *p}",
        b"polling: &p [*p]",
    ],
    ids=range(29),
)
def test_garbage_is_one_error_and_never_a_traceback(text: bytes) -> None:
    faults = faults_of(text)

    assert all(faults.values())
    assert max(map(len, faults.values())) < 1000


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet="abc:-[]{}&*!'\"|>#%@,? \n\t0x.~", max_size=60).map(str.encode))
def test_any_bytes_are_a_configuration_or_an_error(text: bytes) -> None:
    with suppress(ConfigError):
        parse(text, "config.yaml")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.dates()
KEYS = st.sampled_from(["state", "polling", "routing", "session", "sources", "provider", "repos", "command", "control"])
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_any_tree_is_a_configuration_or_an_error(content: dict[str, Any]) -> None:
    with suppress(ConfigError):
        parse(yaml.safe_dump(content).encode(), "config.yaml")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "place",
    [
        "polling: *i",
        "session: {command: *i}",
        "polling: {sources: [{provider: *i}]}",
        "state: {root: *i}",
        "j: {*i : 1}",
    ],
)
def test_bomb_of_aliases_is_an_error_at_once_and_takes_no_memory(place: str) -> None:
    script = """
        import resource, sys
        from the_loop.config import ConfigError
        from the_loop.config_file import parse
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
        try:
            parse(sys.argv[1].encode(), "config.yaml")
        except ConfigError as error:
            print(len(str(error)) < 10_000)
    """

    assert run_python(script, BOMB + place) == "True\n"


# --- which file ---


def test_load_of_a_file_keeps_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree(WORK)))

    loaded = load(tmp_path / "c.yaml")

    assert (loaded.config, loaded.file) == (config_of(tree(WORK)), tmp_path / "c.yaml")


@pytest.mark.parametrize(("kind", "cause"), [("missing", "No such file"), ("directory", "Is a directory")])
def test_load_of_what_cannot_be_read_names_the_file_and_the_cause(tmp_path: Path, kind: str, cause: str) -> None:
    file = tmp_path / "missing" if kind == "missing" else tmp_path

    with pytest.raises(ConfigError, match=f"'{file}':\n  cannot read it: {cause}"):
        load(file)


def test_find_file_takes_option_then_variable_then_the_users_own(tmp_path: Path) -> None:
    own = tmp_path / "the-loop" / "config.yaml"
    own.parent.mkdir()
    own.write_text("")
    environ = {"THE_LOOP_CONFIG": "/named", "XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nowhere"}

    assert find_file("/option", environ) == Path("/option")
    assert find_file(None, environ) == Path("/named")
    assert find_file(None, {**environ, "THE_LOOP_CONFIG": ""}) == own


def test_find_file_without_config_home_looks_below_home(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "the-loop" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.symlink_to(tmp_path / "nowhere")

    # a link into nothing is a broken configuration, not "no configuration"
    assert find_file(None, {"HOME": str(tmp_path)}) == own


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("state: {root: /srv/x}", "/srv/x"),
        ("state: {root: /srv/x, rot: 5}\npolling: {intervalSeconds: soon}\nunknown: 5", "/srv/x"),
        ("state: {root: 5}", None),
        ("state: {}", None),
        ("state: []", None),
        ("state: text", None),
        ("[]", None),
        ("", None),
        ("state: {root: /srv/x", "/srv/x"),
        ('state: {root: "a\\0b"}', None),
        ('a: !!int ""', None),
        ('a: !!timestamp "x"', None),
        (BOMB + "state: {root: /srv/x}", "/srv/x"),
    ],
    ids=range(13),
)
def test_peek_root_of_a_file_that_may_be_wrong(tmp_path: Path, text: str, root: str | None) -> None:
    (tmp_path / "c.yaml").write_text(text)

    assert peek_root(tmp_path / "c.yaml") == root


@pytest.mark.parametrize("text", ["a\0b", "[" * 1200, "polling: {sources: [\nstate: {root: /srv/x}"], ids=range(3))
def test_peek_root_of_a_file_that_breaks_off_before_it_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)

    with pytest.raises(ConfigError, match=r"state\.root: cannot find out"):
        peek_root(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    "state",
    [
        "state: {root: /srv/x}",
        "state:\n  root: /srv/x  # a comment",
        "'state':\n  'root': '/srv/x'",
        'state: {root: "/srv/\\u0078"}',
        "state: {root: !!str /srv/x}",
        "state: {root: !!str 5}",
        "? state\n: ? root\n  : /srv/x",
        "state: {root: &r /srv/x}",
        "state: {root: *w}",
        "state: {<<: {root: /srv/x}}",
        "state: {root: ~}",
        "state: {root: ~/x}",
        "state: {}",
        "",
    ],
    ids=range(14),
)
def test_peek_root_of_a_valid_file_is_what_the_file_says(tmp_path: Path, state: str) -> None:
    whole = "polling: {sources: [{provider: directory, path: inbox}]}\nsession: {command: [x], workdir: &w /srv/x}\n"
    (tmp_path / "c.yaml").write_text(f"{whole}{state}\n")

    config = load(tmp_path / "c.yaml").config

    assert peek_root(tmp_path / "c.yaml") == config.state.root


def test_peek_root_of_no_file_is_none(tmp_path: Path) -> None:
    assert peek_root(None) is None
    assert peek_root(tmp_path / "missing") is None
    assert peek_root(tmp_path) is None


def test_reload_when_the_file_vanished_names_it_and_takes_no_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "the-loop" / "config.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(tree(WORK)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("THE_LOOP_CONFIG", raising=False)
    options = Options(None, None, verbose=False)
    loaded = options.load()
    file.unlink()

    with pytest.raises(ConfigError, match="cannot read it: No such file") as caught:
        options.reload(loaded)

    assert caught.value.file == str(file)


def test_load_in_a_unit_takes_no_built_in_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("THE_LOOP_CONFIG", raising=False)
    options = Options(None, None, verbose=False)
    monkeypatch.setenv("SYSTEMD_EXEC_PID", "1")
    assert options.load().file is None

    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    with pytest.raises(ConfigError, match="a unit does not run on the built-in default") as caught:
        options.load()

    assert caught.value.exit_code == 78


def test_load_when_it_is_a_folder_then_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Is a directory; name the file in it, as in 'config\.yaml'"):
        load(tmp_path)


def test_find_when_the_file_has_the_other_suffix_then_it_is_the_one_that_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "the-loop" / "config.yaml"
    file.parent.mkdir()
    file.with_suffix(".yml").touch()

    found = find_file(None, {"XDG_CONFIG_HOME": str(tmp_path)})

    assert found == file
    with pytest.raises(ConfigError, match=r"'config\.yml' is there, rename it to 'config\.yaml'"):
        load(found)
