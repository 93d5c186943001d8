"""The configuration: every fault in one pass: its path, what is wrong, what would be right (contract section 5)."""

from __future__ import annotations

import os
import pwd
import re
from typing import Any

import pytest

from support.configs import INBOX, WORK, config_of, faults_of, tree
from the_loop.config import authorized_users, source_name
from the_loop.config_file import embedded_default, load, parse
from the_loop.runners.exec_provider import CommandSession
from the_loop.sources.directory_provider import DirectorySection
from the_loop.sources.github.section import GithubSection

EXAMPLE = """\
state: {root: ~/.local/state/the-loop}
polling:
  intervalSeconds: 60                 # 1 to 86400
  maxRetries: 3
  lingerSeconds: 180
  reportGiveUps: false
  sources:
    - provider: github
      name: work                      # unique; default: the provider, or the last part of its path
      repos: [octo/repo]
      label: auto
      monitor: {issues: true, pullRequests: true}
      apiUrl: https://api.github.com
      credential: github-token        # name below $CREDENTIALS_DIRECTORY; else tokenFile:, else $GITHUB_TOKEN
    - provider: directory
      path: inbox                     # relative to the state root
      settleSeconds: 2
      authorizedUsers: [alice]        # replaces the list below for this source
routing:
  authorizedUsers: [octocat]
  dispatchTimeoutSeconds: 1800
  maxConcurrentDispatches: 4
  requireStartCommand: false
session:
  runner: exec                        # or tmux
  command: [my-agent, --from-stdin]
  workdir: ~/work
  onUncertain: redeliver
"""


# --- what is right ---


def test_the_documented_example_is_valid_and_means_what_it_says() -> None:
    config = parse(EXAMPLE.encode(), "config.yaml")

    github, directory = config.polling.sources
    assert isinstance(github, GithubSection)
    assert isinstance(directory, DirectorySection)
    assert (source_name(github), source_name(directory)) == ("work", "inbox")
    assert (github.repos, github.label, github.credential) == (("octo/repo",), "auto", "github-token")
    assert directory.settle_seconds == 2
    assert config.state.root == "~/.local/state/the-loop"
    assert isinstance(config.session, CommandSession)
    assert config.session.command == ("my-agent", "--from-stdin")
    assert authorized_users(config, github) == {"octocat"}
    assert authorized_users(config, directory) == {"alice"}


def test_defaults_are_the_documented_ones() -> None:
    config = config_of(tree(WORK))

    example = parse(EXAMPLE.encode(), "config.yaml")
    for name in ("interval_seconds", "max_retries", "linger_seconds", "report_give_ups"):
        assert getattr(config.polling, name) == getattr(example.polling, name)
    for name in ("dispatch_timeout_seconds", "max_concurrent_dispatches", "require_start_command"):
        assert getattr(config.routing, name) == getattr(example.routing, name)
    section = config.polling.sources[0]
    assert isinstance(section, GithubSection)
    assert section.monitor.issues
    assert section.monitor.pull_requests
    assert section.api_url == "https://api.github.com"
    assert source_name(section) == "github"
    assert (config.session.runner, config.session.on_uncertain) == ("exec", "redeliver")


def test_embedded_default_is_a_private_inbox_for_the_invoking_user() -> None:
    config = load(None).config

    (source,) = config.polling.sources
    assert isinstance(source, DirectorySection)
    assert source.path == "inbox"
    assert authorized_users(config, source) == {my_name()}
    assert config.session.runner == "print"
    assert config == embedded_default()


def my_name() -> str:
    """Who runs this; a number where the system has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


@pytest.mark.parametrize(("path", "name"), [("inbox", "inbox"), ("/srv/a/b/", "b"), ("~/in", "in"), ("/", "root")])
def test_default_name_of_a_directory_is_the_last_part_of_its_path(path: str, name: str) -> None:
    assert source_name(config_of(tree({**INBOX, "path": path})).polling.sources[0]) == name


def test_own_list_of_a_source_replaces_the_shared_one_also_when_empty() -> None:
    config = config_of(tree({**INBOX, "authorizedUsers": []}))

    assert authorized_users(config, config.polling.sources[0]) == frozenset()


def test_names_with_a_provider_count_for_that_provider_alone() -> None:
    config = config_of(tree(WORK, INBOX, routing={"authorizedUsers": ["github:octocat", "directory:alice"]}))

    github, directory = config.polling.sources
    assert authorized_users(config, github) == {"octocat"}
    assert authorized_users(config, directory) == {"alice"}


@pytest.mark.parametrize("key", ["intervalSeconds", "maxRetries", "lingerSeconds"])
@pytest.mark.parametrize("edge", ["low", "high"])
def test_numbers_at_their_edges_are_right(key: str, edge: str) -> None:
    edges = {"intervalSeconds": (1, 86_400), "maxRetries": (1, 100), "lingerSeconds": (0, 86_400)}

    config_of(tree(polling={"sources": [INBOX], key: edges[key][edge == "high"]}))


# --- what is wrong, field by field ---


@pytest.mark.parametrize(
    ("content", "path", "words"),
    [
        ({"polling": {"intervalSeconds": -5}}, "polling.intervalSeconds", "-5|1 to 86400"),
        ({"polling": {"intervalSeconds": 0}}, "polling.intervalSeconds", "got 0|1 to 86400"),
        ({"polling": {"intervalSeconds": 86_401}}, "polling.intervalSeconds", "1 to 86400"),
        ({"polling": {"intervalSeconds": "soon"}}, "polling.intervalSeconds", "'soon'|1 to 86400"),
        ({"polling": {"intervalSeconds": True}}, "polling.intervalSeconds", "got true|a whole number from 1 to 86400"),
        ({"polling": {"intervalSeconds": None}}, "polling.intervalSeconds", "got nothing|1 to 86400"),
        ({"polling": {"intervalSeconds": [60]}}, "polling.intervalSeconds", "1 to 86400"),
        ({"polling": {"maxRetries": 0}}, "polling.maxRetries", "1 to 100"),
        ({"polling": {"maxRetries": 101}}, "polling.maxRetries", "1 to 100"),
        ({"polling": {"reportGiveUps": "yes please"}}, "polling.reportGiveUps", "true or false"),
        ({"polling": {"sources": {}}}, "polling.sources", "list"),
        ({"routing": {"authorizedUsers": "octocat"}}, "routing.authorizedUsers", "got 'octocat'"),
        ({"routing": {"authorizedUsers": [""]}}, "routing.authorizedUsers[0]", "''"),
        ({"routing": {"authorizedUsers": [5]}}, "routing.authorizedUsers[0]", "expected text, got 5; put it in quotes"),
        ({"routing": {"dispatchTimeoutSeconds": 0}}, "routing.dispatchTimeoutSeconds", "1 to 604800"),
        ({"routing": {"maxConcurrentDispatches": 0}}, "routing.maxConcurrentDispatches", "1 to 256"),
        ({"routing": {"control": {"stop": ""}}}, "routing.control.stop", "''"),
        ({"session": {"runner": "exek"}}, "session.runner", "'exek'|exec"),
        ({"session": {"onUncertain": "maybe"}}, "session.onUncertain", "redeliver, hold"),
        ({"session": {"command": "my-agent --from-stdin"}}, "session.command", "expected a list, as in "),
        ({"session": {"command": ["a", 5]}}, "session.command[1]", "expected text, got 5"),
        ({"session": {"command": []}}, "session.command", "missing|my-agent"),
        ({"session": {"command": ["a\0b"]}}, "session.command[0]", "NUL"),
        ({"session": {"workdir": "a\0b"}}, "session.workdir", "NUL"),
        ({"session": {"workdir": "~nobody-of-this-name/x"}}, "session.workdir", "home"),
        ({"polling": {"intervalSeconds": "60"}}, "polling.intervalSeconds", "got '60'; write it without quotes"),
        ({"polling": {"intervalSeconds": 1.5}}, "polling.intervalSeconds", "a whole number from 1 to 86400, got 1.5"),
        ({"polling": {"reportGiveUps": "on"}}, "polling.reportGiveUps", "got 'on'; write true, without quotes"),
        ({"session": {"onUncertain": True}}, "session.onUncertain", "expected one of: redeliver, hold, got true"),
        ({"routing": {"control": {"stop": False}}}, "routing.control.stop", "put the text in quotes"),
        ({"polling": {"sources": None}}, "polling.sources", "expected a list, each as in"),
        ({"state": {"root": 5}}, "state.root", "expected text, got 5; put it in quotes"),
        ({"state": {"root": "a\0b"}}, "state.root", "NUL"),
        ({"state": {"root": "~nobody-of-this-name/x"}}, "state.root", "home"),
    ],
)  # fmt: skip
def test_wrong_value_is_named_with_what_would_be_right(content: dict[str, Any], path: str, words: str) -> None:
    faults = faults_of(tree(**content))

    assert path in faults, faults
    for word in words.split("|")[:1]:
        assert word in faults[path]
    assert re.search(words, faults[path])


@pytest.mark.parametrize(
    ("source", "field", "words"),
    [
        ({"provider": "githb"}, "provider", "'githb'.*github.*did you mean 'github'"),
        ({"path": "inbox"}, "provider", "missing.*directory, github"),
        ({"provider": ["github"]}, "provider", "one of: directory, github"),
        ({"provider": "github", "label": "auto"}, "repos", "is missing"),
        ({"provider": "github", "repos": ["octo/repo"]}, "label", "is missing"),
        ({**WORK, "repos": []}, "repos", r"a list, as in \[octo/repo\], got \[\]"),
        ({**WORK, "repos": ["octo"]}, "repos[0]", "owner/name"),
        ({**WORK, "repos": ["octo/repo", "https://github.com/octo/repo"]}, "repos[1]", "owner/name"),
        ({**WORK, "repos": ["octo/../x"]}, "repos[0]", "owner/name"),
        ({**WORK, "repos": ["octo/re po"]}, "repos[0]", "owner/name"),
        ({**WORK, "repos": "octo/repo"}, "repos", r"a list, as in \[octo/repo\]"),
        ({**WORK, "label": ""}, "label", "''.*without commas"),
        ({**WORK, "label": " auto"}, "label", "without commas and blanks"),
        ({**WORK, "apiUrl": "ftp://host"}, "apiUrl", "'ftp://host'"),
        ({**WORK, "apiUrl": "https://host/?a=b"}, "apiUrl", "host"),
        ({**WORK, "apiUrl": "https://me:hush@host/"}, "apiUrl", "//…@host"),
        ({**WORK, "apiVersion": "latest"}, "apiVersion", "'latest'.*2022-11-28"),
        ({**WORK, "credential": "../../etc/passwd"}, "credential", "passwd"),
        ({**WORK, "tokenFile": "a\0b"}, "tokenFile", "NUL"),
        (
            {**WORK, "monitor": {"issues": "no"}},
            "monitor.issues",
            "expected true or false, got 'no'; write false, without quotes",
        ),
        ({**INBOX, "settleSeconds": -1}, "settleSeconds", "0 to 3600"),
        ({**INBOX, "settleSeconds": float("nan")}, "settleSeconds", "0 to 3600"),
        ({**INBOX, "settleSeconds": float("inf")}, "settleSeconds", "0 to 3600"),
        ({**INBOX, "path": ""}, "path", "''"),
        ({**INBOX, "path": "in\0box"}, "path", "NUL"),
        ({**INBOX, "name": ""}, "name", "''"),
        ({**INBOX, "name": "a/b"}, "name", "'a/b'"),
        ({**INBOX, "name": "a\nb"}, "name", "a.nb"),
        ({**INBOX, "authorizedUsers": "alice"}, "authorizedUsers", r"a list, as in \[octocat\]"),
    ],
)
def test_wrong_source_is_named_with_its_place(source: Any, field: str, words: str) -> None:
    faults = faults_of(tree({**INBOX, "name": "first"}, source))

    assert list(faults) == [f"polling.sources[1].{field}"]
    assert re.search(words, faults[f"polling.sources[1].{field}"])


@pytest.mark.parametrize(
    ("content", "path", "meant"),
    [
        ({"poling": {}}, "poling", "polling"),
        ({"polling": {"intervalSecond": 5}}, "polling.intervalSecond", "intervalSeconds"),
        ({"polling": {"interval_seconds": 5}}, "polling.interval_seconds", "intervalSeconds"),
        ({"polling": {"max-retries": 5}}, "polling.max-retries", "maxRetries"),
        ({"routing": {"authorizedusers": []}}, "routing.authorizedusers", "authorizedUsers"),
        ({"routing": {"control": {"resum": "x"}}}, "routing.control.resum", "resume"),
        ({"session": {"comand": []}}, "session.comand", "command"),
        ({"polling": {"sources": [{**WORK, "lable": "x"}]}}, "polling.sources[0].lable", "label"),
        (
            {"polling": {"sources": [{**WORK, "monitor": {"issue": True}}]}},
            "polling.sources[0].monitor.issue",
            "issues",
        ),
    ],
)
def test_misspelt_key_is_an_error_with_a_suggestion(content: dict[str, Any], path: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in faults_of(tree(**content))[path]


@pytest.mark.parametrize("key", [5, None, True, 1.5, "x" * 100_000, "\0", "a\nb"])
def test_odd_key_is_an_error_and_no_crash(key: Any) -> None:
    assert "unknown key" in "".join(faults_of({**tree(), key: 1}).values())


def test_all_faults_are_found_in_one_pass() -> None:
    content = {
        "stat": {},
        "polling": {
            "intervalSeconds": "soon",
            "maxRetries": 0,
            "sources": [{"provider": "githb"}, {"provider": "github", "repos": ["octo"], "lable": "x"}, INBOX],
        },
        "routing": {"authorizedUsers": "octocat"},
        "session": {"command": "x", "onUncertain": 5},
    }

    assert set(faults_of(content)) == {
        "stat",
        "polling.intervalSeconds",
        "polling.maxRetries",
        "polling.sources[0].provider",
        "polling.sources[1].repos[0]",
        "polling.sources[1].lable",
        "polling.sources[1].label",
        "routing.authorizedUsers",
        "session.command",
        "session.onUncertain",
    }


# --- what is wrong between fields ---


def test_section_that_is_no_mapping_is_an_error() -> None:
    assert "expected a mapping, got []" in faults_of({"polling": []})["polling"]


def test_no_source_at_all_is_an_error() -> None:
    assert "at least one source" in faults_of(tree(polling={"sources": []}))["polling.sources"]
    assert "at least one source" in faults_of({"session": {"command": ["x"]}})["polling.sources"]


@pytest.mark.parametrize(
    "second",
    [INBOX, {**INBOX, "path": "/srv/inbox"}, {**WORK, "name": "inbox"}, {**INBOX, "path": "x", "name": "inbox"}],
)
def test_two_sources_of_one_name_are_an_error(second: dict[str, Any]) -> None:
    content = tree(INBOX, second, routing={"authorizedUsers": ["directory:alice"]})

    assert "'inbox' is taken" in faults_of(content)["polling.sources[1].name"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, {"repos": ["OCTO/Repo"]}),
        ({"apiUrl": "https://ghe.example/api/v3"}, {"apiUrl": "https://ghe.example/api/v3/"}),
        ({"apiUrl": "https://ghe.example/api/v3"}, {"apiUrl": "https://GHE.example/api/v3"}),
        ({"apiUrl": "https://ghe.example/api/v3"}, {"apiUrl": "https://ghe.example:443/api/v3"}),
    ],
)
def test_one_repository_in_two_sources_is_an_error(first: dict[str, Any], second: dict[str, Any]) -> None:
    content = tree({**WORK, **first, "name": "a"}, {**WORK, **second, "name": "b"})

    assert "belongs to polling.sources[0]" in faults_of(content)["polling.sources[1].repos[0]"]


def test_one_repository_twice_in_a_source_is_an_error() -> None:
    assert "polling.sources[0].repos[1]" in faults_of(tree({**WORK, "repos": ["octo/repo", "octo/REPO"]}))


def test_source_that_watches_neither_kind_is_an_error() -> None:
    faults = faults_of(tree({**WORK, "monitor": {"issues": False, "pullRequests": False}}))

    assert "nothing to watch" in faults["polling.sources[0].monitor"]


def test_address_with_a_password_when_refused_then_is_not_shown() -> None:
    faults = faults_of(tree({**WORK, "apiUrl": "https://me:hush@host/"}))

    assert "hush" not in str(faults)


def test_what_looks_like_a_date_is_the_text_that_was_written() -> None:
    """Who copies a version of the API writes it without quotes."""
    text = b"""
        polling: {sources: [{provider: github, repos: [octo/repo], label: 2026-01-31, apiVersion: 2026-03-10}]}
        routing: {authorizedUsers: [octocat]}
        session: {command: [agent]}
    """
    (section,) = parse(text, "config.yaml").polling.sources

    assert isinstance(section, GithubSection)
    assert (section.label, section.api_version) == ("2026-01-31", "2026-03-10")


def test_same_repository_on_two_ports_of_a_host_is_told_from_being_listed_twice() -> None:
    here, there, again = (
        {**WORK, "name": name, "apiUrl": f"https://ghe.example{port}/api/v3"}
        for name, port in (("a", ""), ("b", ":8443"), ("c", ":443"))
    )

    [other_port] = faults_of(tree(here, there)).values()
    [same_port] = faults_of(tree(here, again)).values()

    assert "on another port of 'ghe.example'" in other_port
    assert "another state root" in other_port
    assert same_port.endswith("belongs to polling.sources[0] already")


def test_same_name_of_a_repository_on_two_hosts_is_right() -> None:
    config_of(tree({**WORK, "name": "a"}, {**WORK, "name": "b", "apiUrl": "https://ghe.example/api/v3"}))


def test_bare_name_with_several_providers_is_an_error_that_shows_how_to_write_it() -> None:
    problem = faults_of(tree(WORK, INBOX))["routing.authorizedUsers"]

    assert "'alice' could be meant for any of directory, github" in problem
    assert "directory:alice" in problem


@pytest.mark.parametrize(
    "sources", [(INBOX,), (WORK, {**INBOX, "authorizedUsers": ["bob"]}), (INBOX, {**INBOX, "path": "other"})]
)
def test_bare_name_where_it_means_one_provider_is_right(sources: tuple[dict[str, Any], ...]) -> None:
    config_of(tree(*sources))


def test_two_control_words_that_are_the_same_are_an_error() -> None:
    content = tree(routing={"control": {"start": "Go", "stop": "go"}})

    assert "routing.control" in faults_of(content)


def test_section_that_is_empty_says_what_to_do() -> None:
    for name in ("polling", "routing", "session", "state"):
        assert "is empty: write its keys below it" in faults_of({**tree(), name: None})[name]


def test_source_that_is_no_mapping_is_named() -> None:
    assert "expected a mapping (as in provider: github), got 5" in faults_of(tree(WORK, 5))["polling.sources[1]"]  # type: ignore[arg-type]
