"""`doctor` asks GitHub: token and rights, repositories, label, people, limits, clock."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.github import faults
from support.github.fake import FakeGitHub
from support.http_server import FakeServer
from the_loop.findings import Finding, Site, State
from the_loop.sources.github import provider
from the_loop.sources.github.client import Answer
from the_loop.sources.github.section import Monitor
from the_loop.sources.github.verdicts import of_clock, of_person, of_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPO = "octo/repo"
TOKEN = "ghp_never_to_be_seen"
NOW = 1_770_000_000.0


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    github = FakeGitHub(time.time, tokens={TOKEN: "octo-bot"})
    github.add_repo(REPO)
    github.add_issue(REPO, labels=["auto"])
    with FakeServer(github) as server:
        github.base_url = server.url
        yield github


def examine(github: FakeGitHub, tmp_path: Path, *, limit_s: float = 8.0, **more: Any) -> list[Finding]:
    """The findings; no token is in any of them, and nothing was written."""
    section = {"repos": (REPO,), "label": "auto", "api_url": github.base_url, **more.pop("section", {})}
    given: dict[str, Any] = {
        "root": tmp_path,
        "environ": {"GITHUB_TOKEN": TOKEN},
        "shell": {},
        "user": "alice",
        "limit_s": limit_s,
        "authorized": frozenset({"octocat"}),
    }
    found = list(provider.examine(provider.Section(provider="github", **section), Site(**given | more)))
    assert TOKEN not in repr(found)
    assert {request.method for request in github.log} <= {"GET"}
    assert list(tmp_path.iterdir()) == [path for path in tmp_path.iterdir() if path.name == "portable"]
    return found


def named(found: list[Finding]) -> dict[str, Finding]:
    by_name = {finding.name: finding for finding in found}
    assert len(by_name) == len(found), found
    return by_name


def test_source_when_all_is_good_then_every_line_is_and_few_requests_are_made(
    github: FakeGitHub, tmp_path: Path
) -> None:
    found = named(examine(github, tmp_path))

    assert {finding.state for finding in found.values()} == {State.OK}
    assert list(found) == ["token", REPO, f"{REPO}, label 'auto'", "user octocat", "rate limit", "clock"]
    assert found["token"].detail == "of octo-bot, from $GITHUB_TOKEN, fine-grained"
    assert found[f"{REPO}, label 'auto'"].detail == "on 1 open item"
    assert len(github.log) == 4


def test_items_when_there_are_many_then_are_counted_without_being_read(github: FakeGitHub, tmp_path: Path) -> None:
    for _ in range(40):
        github.add_issue(REPO, labels=["auto"])

    assert named(examine(github, tmp_path))[f"{REPO}, label 'auto'"].detail == "on 41 open items"


# --- the token ---


def test_token_when_there_is_none_then_says_anonymous_and_where_one_is(github: FakeGitHub, tmp_path: Path) -> None:
    github.tokens.clear()

    found = named(examine(github, tmp_path, environ={}, shell={"GH_TOKEN": "x"}, config=tmp_path / "config.yaml"))

    token = found["token"]
    assert (token.state, token.command) == (State.WARN, f"install -m 0600 /dev/stdin {tmp_path}/token")
    assert "$GH_TOKEN is set in this shell, not for the poller" in token.detail
    assert found[REPO].state is State.OK
    assert found["clock"].state is State.OK


def test_token_when_it_is_rejected_then_nothing_else_is_asked(github: FakeGitHub, tmp_path: Path) -> None:
    github.tokens.clear()
    github.tokens["another"] = "octo-bot"

    (found,) = examine(github, tmp_path)

    assert (found.name, found.state) == ("token", State.FAIL)
    assert "rejects the one from $GITHUB_TOKEN (401)" in found.detail
    assert len(github.log) == 1


def test_token_when_its_file_is_missing_then_fails_with_the_path(github: FakeGitHub, tmp_path: Path) -> None:
    (found,) = examine(github, tmp_path, section={"token_file": "/none/token"})

    (hidden,) = examine(github, tmp_path, section={"token_file": "/home/a/token"}, hides=lambda _path: True)

    assert (found.state, "'/none/token': No such file" in found.detail) == (State.FAIL, True)
    assert (hidden.state, "the service does not see '/home/a/token'" in hidden.detail) == (State.FAIL, True)
    assert github.log == []


def test_token_when_it_is_a_credential_of_a_unit_that_is_down_then_is_unknown(
    github: FakeGitHub, tmp_path: Path
) -> None:
    section = {"credential": "github-token"}

    (of_unit,) = examine(github, tmp_path, section=section, edit="systemctl edit x")
    (of_process,) = examine(github, tmp_path, section=section)

    assert (of_unit.state, of_unit.command) == (State.UNKNOWN, "systemctl edit x")
    assert (of_process.state, "$CREDENTIALS_DIRECTORY is not set" in of_process.detail) == (State.FAIL, True)


def test_token_when_others_may_read_its_file_then_warns(
    github: FakeGitHub, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("tokens") / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)

    first, second, *_ = examine(github, tmp_path, section={"token_file": str(file)})

    assert (first.state, first.command) == (State.WARN, f"chmod 600 {file}")
    assert second.detail.startswith(f"of octo-bot, from '{file}'")


@pytest.mark.parametrize(
    ("command", "state", "words"),
    [
        (("echo", TOKEN), State.OK, "of octo-bot, from"),
        (("false",), State.FAIL, "exit status 1"),
        (("/none/gh", "auth", "token"), State.FAIL, "No such file"),
    ],
)
def test_token_when_a_command_prints_it_then_that_is_run(
    github: FakeGitHub, tmp_path: Path, command: tuple[str, ...], state: State, words: str
) -> None:
    section = provider.Section(
        provider="github", repos=(REPO,), label="auto", token_command=command, api_url=github.base_url
    )
    site = Site(root=tmp_path, environ={"PATH": "/usr/bin:/bin"}, shell={}, user="alice", limit_s=8.0)

    found = next(iter(provider.examine(section, site)))

    assert (found.name, found.state) == ("token", state)
    assert words in found.detail


def test_token_when_it_is_of_an_app_then_is_unknown_and_the_rest_is_asked(github: FakeGitHub, tmp_path: Path) -> None:
    github.fail(r"/user$", faults.permission_denied())

    found = named(examine(github, tmp_path))

    assert (found["token"].state, found["token"].is_good) == (State.UNKNOWN, True)
    assert found[REPO].state is State.OK


def test_token_when_it_expires_soon_then_warns() -> None:
    def told(day: int) -> Finding:
        ends = {"github-authentication-token-expiration": f"2026-02-{day:02} 12:00:00 UTC"}
        return of_token(Answer(200, {"login": "octo-bot"}, headers=ends), "'x'", NOW)

    assert told(28).state is State.OK  # NOW is the 2nd
    assert (told(10).state, told(10).detail) == (
        State.WARN,
        "of octo-bot, from 'x', fine-grained; it expires in 8 d",
    )


def test_address_when_it_is_no_api_then_says_so() -> None:
    assert "check `apiUrl`" in of_token(Answer(404), "'x'", NOW).detail


# --- repositories ---


def test_repository_when_it_is_not_there_then_says_name_or_token(github: FakeGitHub, tmp_path: Path) -> None:
    found = named(examine(github, tmp_path, section={"repos": (REPO, "octo/none")}))

    assert found["octo/none"].state is State.FAIL
    assert "the name is wrong, or the token has no access to it" in found["octo/none"].detail
    assert found[REPO].state is State.OK


def test_repository_when_no_token_was_sent_then_says_that(github: FakeGitHub, tmp_path: Path) -> None:
    github.tokens.clear()

    found = named(examine(github, tmp_path, environ={}, section={"repos": ("octo/none",)}))

    assert "or it is private and no token was sent" in found["octo/none"].detail


def test_repository_when_its_issues_may_not_be_read_then_names_the_right(github: FakeGitHub, tmp_path: Path) -> None:
    github.fail(r"/issues\?", faults.reply(404, {"message": "Not Found"}))

    assert "'Issues: read'" in named(examine(github, tmp_path))[REPO].detail


def test_repository_when_its_pull_requests_may_not_be_read_then_names_the_right(
    github: FakeGitHub, tmp_path: Path
) -> None:
    github.fail(r"/pulls/", faults.permission_denied(), times=None)

    found = [one for one in examine(github, tmp_path) if one.state is State.FAIL]

    assert len(found) == 1
    assert "'Pull requests: read'" in found[0].detail
    only_issues = {"monitor": Monitor(pull_requests=False)}
    assert named(examine(github, tmp_path, section=only_issues))[REPO].state is State.OK


def test_repository_when_single_sign_on_is_missing_then_shows_the_address(github: FakeGitHub, tmp_path: Path) -> None:
    address = "https://github.com/orgs/octo/sso?authorization_request=A1"
    headers = {"X-GitHub-SSO": f"required; url={address}"}
    github.fail(r"/issues\?", faults.reply(403, {"message": "Resource protected"}, headers))

    assert address in named(examine(github, tmp_path))[REPO].detail


def test_repository_when_it_was_renamed_then_warns(github: FakeGitHub, tmp_path: Path) -> None:
    github.rename_repo(REPO, "octo/new")

    found = examine(github, tmp_path)

    assert [one.state for one in found if one.name == REPO] == [State.WARN]


def test_repository_when_it_is_given_up_after_the_time_then_the_others_count(
    github: FakeGitHub, tmp_path: Path
) -> None:
    github.fail(r"/repos/octo/slow/", faults.hang(), times=None)

    began = time.monotonic()
    found = named(examine(github, tmp_path, limit_s=2.0, section={"repos": (REPO, "octo/slow")}))

    assert time.monotonic() - began < 4
    assert found[REPO].state is State.OK
    assert (found["repositories"].state, found["repositories"].is_good) == (State.UNKNOWN, False)


def test_server_when_it_cannot_be_reached_then_nothing_more_is_asked(github: FakeGitHub, tmp_path: Path) -> None:
    (found,) = examine(github, tmp_path, section={"api_url": "http://127.0.0.1:9"})

    assert (found.name, found.state) == ("server", State.FAIL)
    assert found.command.startswith("curl ")


# --- label ---


def test_label_when_it_is_misspelt_then_says_which_one_was_meant(github: FakeGitHub, tmp_path: Path) -> None:
    found = named(examine(github, tmp_path, section={"label": "atuo"}))[f"{REPO}, label 'atuo'"]

    assert found.state is State.FAIL
    assert "there is no such label; did you mean 'auto'?" in found.detail
    assert f"{github.base_url}/{REPO}/labels" in found.detail


def test_label_when_no_item_has_it_then_is_good(github: FakeGitHub, tmp_path: Path) -> None:
    github.close(REPO, 1)

    found = named(examine(github, tmp_path))[f"{REPO}, label 'auto'"]

    assert (found.state, found.detail) == (State.OK, "exists, on no open item")


# --- writing ---


@pytest.mark.parametrize(
    ("scopes", "state", "is_good"),
    [
        ("repo", State.OK, True),
        ("public_repo, read:org", State.OK, True),
        ("read:org", State.FAIL, False),
        (None, State.UNKNOWN, True),
    ],
)
def test_comments_when_give_ups_are_reported_then_the_right_is_judged_without_writing(
    github: FakeGitHub, tmp_path: Path, scopes: str | None, state: State, *, is_good: bool
) -> None:
    if scopes is not None:
        github.scopes[TOKEN] = scopes

    found = named(examine(github, tmp_path, is_written_to=True))[f"{REPO}, comments"]

    assert (found.state, found.is_good) == (state, is_good)


# --- people ---


def test_user_when_there_is_no_such_account_then_fails(github: FakeGitHub, tmp_path: Path) -> None:
    github.unknown_logins.add("octocta")

    found = named(examine(github, tmp_path, authorized=frozenset({"octocta", "renovate[bot]"})))

    assert found["user octocta"].state is State.FAIL
    assert found["user renovate[bot]"].state is State.OK


def test_user_when_the_login_changed_hands_then_says_how_to_decide(github: FakeGitHub, tmp_path: Path) -> None:
    login = {"id": 5, "since": "2026-01-01T00:00:00Z", "sources": ["work"]}
    tree = {"schema": 1, "hosts": {"127.0.0.1": {"logins": {"octocat": login}}}}
    (tmp_path / "portable").mkdir()
    (tmp_path / "portable" / "authors.json").write_text(json.dumps(tree))

    found = named(examine(github, tmp_path))["user octocat"]

    assert (found.state, found.command) == (State.FAIL, "the-loop authors accept octocat")


def test_user_when_the_configuration_pins_another_account_then_says_so() -> None:
    found = of_person("octocat", 77, 5, is_by_hand=True)

    assert (found.state, found.command) == (State.FAIL, "")
    assert "'octocat#5'" in found.detail
    assert of_person("octocat", 77, 77, is_by_hand=True).state is State.OK


# --- limits and clock ---


def test_limit_when_it_is_used_up_then_is_unknown_and_nothing_more_is_asked(github: FakeGitHub, tmp_path: Path) -> None:
    github.fail(r"/user$", faults.primary_limit(time.time() + 600))

    (found,) = examine(github, tmp_path)

    assert (found.name, found.state) == ("rate limit", State.UNKNOWN)
    assert len(github.log) == 1


def test_limit_when_few_requests_are_left_then_warns(github: FakeGitHub, tmp_path: Path) -> None:
    few = {"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "7"}
    github.fail(r"/users/", faults.reply(200, {"id": 1}, few))

    found = named(examine(github, tmp_path))["rate limit"]

    assert (found.state, found.detail) == (
        State.WARN,
        "only 7 of 5000 requests left in this hour; new items wait",
    )


@pytest.mark.parametrize(
    ("ahead_s", "state", "detail"),
    [
        (0.0, State.OK, "as the server's"),
        (-29.0, State.OK, "as the server's"),
        (45.0, State.WARN, "45 s ahead of the server's"),
        (-90.0, State.WARN, "90 s behind the server's"),
    ],
)
def test_clock_when_it_is_off_then_warns(ahead_s: float, state: State, detail: str) -> None:
    answer = Answer(200, date=NOW, headers={"date": "x"})

    found = of_clock(answer, NOW + ahead_s - 1, NOW + ahead_s + 1)

    assert (found.state, found.detail) == (state, detail)


def test_clock_when_the_server_tells_no_time_then_is_unknown() -> None:
    assert of_clock(Answer(200, date=NOW), NOW, NOW).state is State.UNKNOWN
