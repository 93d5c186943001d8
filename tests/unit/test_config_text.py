"""The text of the configuration: lines, keys written twice, escapes, names that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from the_loop.config import ConfigError
from the_loop.config_file import parse
from the_loop.runners.exec_provider import at_home
from the_loop.sources.github.provider import name_fault

GOOD = """\
polling:
  sources: [{provider: github, repos: [octo/repo], label: auto}]
routing: {authorizedUsers: [octocat]}
session: {command: [agent]}
"""


def faults_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "config.yaml")
    return list(map(str, caught.value.faults))


def test_good_text_is_taken() -> None:
    assert parse(GOOD.encode(), "config.yaml").session.runner == "exec"
    assert parse(b"\xef\xbb\xbf" + GOOD.encode(), "config.yaml").session.runner == "exec"


@pytest.mark.parametrize(
    ("text", "path", "first", "second"),
    [
        (GOOD + "session: {command: [other]}\n", "session", 4, 5),
        (GOOD + "'session': {command: [other]}\n", "session", 4, 5),
        (GOOD.replace("[octocat]", "[octocat], authorizedUsers: [me]"), "routing.authorizedUsers", 3, 3),
        (GOOD.replace("github,", "github,\n    provider: directory,"), "polling.sources[0].provider", 2, 3),
        ("x: &x {}\n<<: *x\n<<: *x\n" + GOOD, "<<", 2, 3),
        ('{"session": {},\n "session": {}}', "session", 1, 2),
    ],
)
def test_a_key_written_twice_is_a_fault_with_both_lines(text: str, path: str, first: int, second: int) -> None:
    assert f"line {second}: {path}: is written twice, first in line {first}" in faults_of(text)


def test_a_merged_key_may_be_overridden_and_a_node_repeated() -> None:
    text = GOOD.replace(
        "[{provider: github, repos: [octo/repo], label: auto}]",
        "\n  - &a {provider: github, repos: [octo/repo], label: auto}",
    )

    config = parse(text.replace("routing", "  - {<<: *a, repos: [octo/x], name: b}\nrouting").encode(), "c.yaml")

    assert len(config.polling.sources) == 2


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (GOOD + "polling_: 1\n", "line 5: polling_: unknown key"),
        (GOOD.replace("[agent]", "\n  agent"), "line 4: session.command: "),
        (GOOD.replace("octo/repo", "octo"), "line 2: polling.sources[0].repos"),
        (GOOD.replace("  sources", "\tsources"), "line 2: it is not YAML: indented with a tab"),
        (GOOD + "---\na: 1\n", "line 5: it is not YAML: a second document"),
    ],
)
def test_every_fault_has_its_line(text: str, start: str) -> None:
    assert any(fault.startswith(start) for fault in faults_of(text)), faults_of(text)


def test_json_has_emoji_as_two_escapes_and_tabs() -> None:
    tree = {
        "polling": {"sources": [{"provider": "github", "repos": ["octo/repo"], "label": "auto"}]},
        "routing": {"authorizedUsers": ["octocat"], "control": {"start": "go \U0001f916"}},
        "session": {"command": ["agent"]},
    }
    text = json.dumps(tree, indent="\t")
    assert "\\ud83e\\udd16" in text

    assert parse(text.encode(), "config.json").routing.control.start == "go \U0001f916"


def test_half_a_pair_is_refused_with_its_line() -> None:
    text = '{"routing": {"control":\n {"start": "go \\ud83e"}}}'

    assert any(fault.startswith("line 2: routing.control.start: has a character") for fault in faults_of(text))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("app/renovate", "'renovate[bot]'"),
        ("https://github.com/apps/renovate", "'renovate[bot]'"),
        ("@octocat", "'octocat'?"),
        (" octocat", "'octocat'?"),
        ("octocat.", "'octocat'?"),
        ("https://github.com/octocat/", "'octocat'?"),
        ("octo/team", "logins of its members"),
        ("@octo/team", "logins of its members"),
        ("me@example.org", "e-mail address"),
        ("octo cat", "as in 'octocat'"),
    ],
)
def test_a_login_that_cannot_exist_is_told_with_what_would_be_right(name: str, meant: str) -> None:
    assert meant in name_fault(name)
    [fault] = faults_of(GOOD.replace("[octocat]", f"['{name}']"))
    assert fault.startswith("line 3: routing.authorizedUsers[0]: ")


@pytest.mark.parametrize("name", ["octocat", "renovate[bot]", "octocat#583231", "a-b-", "mona_corp", "github:octocat"])
def test_a_login_that_can_exist_is_taken(name: str) -> None:
    config = parse(GOOD.replace("[octocat]", f"['{name}']").encode(), "config.yaml")

    assert config.routing.authorized_users == (name,)


def test_a_home_in_a_command_is_what_a_shell_takes_for_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    words = [at_home(word) for word in ("~/bin/agent", "~", "a~/b", "~~", "--x=~/y")]

    assert words == [f"{tmp_path}/bin/agent", "~", "a~/b", "~~", "--x=~/y"]
