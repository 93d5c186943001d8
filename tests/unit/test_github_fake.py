"""The GitHub fake answers as GitHub does: what the other tests build on."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from support.clock import NOON, Clock
from support.github import faults
from support.github.fake import FakeGitHub
from support.github.values import Kind, Rules, View
from support.http_server import FakeServer
from support.http_transport import FakeTransport
from support.traffic import load_traffic

if TYPE_CHECKING:
    from support.github.values import Answer

REPO = "octo/repo"
BASE = "/repos/octo/repo"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def github(clock: Clock) -> FakeGitHub:
    fake = FakeGitHub(clock)
    fake.add_repo(REPO, id=42)
    return fake


def ask(github: FakeGitHub, target: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return github.handle(method, target, {"User-Agent": "test", "Authorization": "Bearer t", **named}, body)


def rows(github: FakeGitHub, target: str) -> Any:
    answer = ask(github, target)
    assert answer.status == 200, answer
    return json.loads(answer.body)


def ids(github: FakeGitHub, target: str) -> list[int]:
    return [row["id"] for row in rows(github, target)]


class TestValidators:
    def test_get_when_nothing_changed_then_304_bare_and_free(self, github: FakeGitHub) -> None:
        number = github.add_issue(REPO)
        github.add_issue(REPO)
        first = ask(github, f"{BASE}/issues?per_page=1")

        again = ask(github, f"{BASE}/issues?per_page=1", If_None_Match=first.headers["ETag"])

        assert (number, again.status, again.body) == (1, 304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]
        assert first.headers["ETag"].startswith('W/"')
        assert {"Link", "Content-Type"} <= first.headers.keys()
        assert not {"Link", "Content-Type"} & again.headers.keys()
        assert [entry.points for entry in github.log] == [1, 0]
        assert again.headers["X-RateLimit-Used"] == first.headers["X-RateLimit-Used"] == "1"

    def test_get_when_changed_then_200(self, github: FakeGitHub) -> None:
        number = github.add_issue(REPO)
        etag = ask(github, f"{BASE}/issues").headers["ETag"]

        github.label(REPO, number, "auto")

        assert ask(github, f"{BASE}/issues", If_None_Match=etag).status == 200

    def test_etag_depends_on_token_media_type_and_address(self, github: FakeGitHub) -> None:
        etags = {
            ask(github, f"{BASE}/issues").headers["ETag"],
            ask(github, f"{BASE}/issues", Authorization="Bearer other").headers["ETag"],
            ask(github, f"{BASE}/issues", Accept="application/json").headers["ETag"],
            ask(github, f"{BASE}/issues?page=1").headers["ETag"],
            ask(github, "/repositories/42/issues").headers["ETag"],
        }

        assert len(etags) == 5

    def test_etag_of_full_page_when_next_page_appears_then_same(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        target = f"{BASE}/issues?sort=created&direction=asc&per_page=1"
        etag = ask(github, target).headers["ETag"]

        github.add_issue(REPO)

        assert ask(github, target, If_None_Match=etag).status == 304
        assert 'rel="next"' in ask(github, target).headers["Link"]

    def test_rate_limit_when_spent_then_403_until_reset(self, clock: Clock) -> None:
        github = FakeGitHub(clock, Rules(rate_limit=1))
        github.add_repo(REPO)
        ask(github, BASE)

        refused = ask(github, BASE)
        shown = rows(github, "/rate_limit")["rate"]
        clock.now = float(refused.headers["X-RateLimit-Reset"])

        assert (refused.status, refused.headers["X-RateLimit-Remaining"]) == (403, "0")
        assert shown["remaining"] == 0
        assert ask(github, BASE).status == 200


class TestLists:
    def test_link_points_to_numeric_address_of_this_origin(self, github: FakeGitHub) -> None:
        for _ in range(5):
            github.add_issue(REPO, labels=["auto"])
        github.base_url = "http://127.0.0.1:9"

        link = ask(github, f"{BASE}/issues?labels=auto&per_page=2&page=2").headers["Link"]

        at = "http://127.0.0.1:9/repositories/42/issues?labels=auto&per_page=2&page="
        assert link == f'<{at}1>; rel="prev", <{at}3>; rel="next", <{at}3>; rel="last", <{at}1>; rel="first"'

    def test_pages_when_row_is_deleted_between_them_then_one_slips_over_the_edge(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        for _ in range(4):
            github.comment(REPO, 1)
        github.between(1, lambda: github.delete_comment(REPO, 1001))

        walked = [ids(github, f"{BASE}/issues/comments?per_page=2&page={page}") for page in (1, 2)]

        assert walked == [[1001, 1002], [1004]]

    def test_issues_when_filtered_and_sorted(self, github: FakeGitHub, clock: Clock) -> None:
        github.add_issue(REPO, labels=["auto", "x"])
        github.add_issue(REPO, labels=["Auto"], pull_request=True)
        github.add_issue(REPO)
        clock.now += 60
        github.comment(REPO, 1)
        github.close(REPO, 2, merged=True)

        def numbers(query: str) -> list[int]:
            return [row["number"] for row in rows(github, f"{BASE}/issues?{query}")]

        assert numbers("") == [3, 1]
        assert numbers("labels=auto") == [1]
        assert numbers("labels=AUTO&state=all&direction=asc") == [1, 2]
        assert numbers("labels=auto,x&state=all") == [1]
        assert numbers("state=closed") == [2]
        assert numbers("sort=updated&direction=desc") == [1, 3]
        assert ask(github, f"{BASE}/issues?state=opened").status == 422

    @pytest.mark.parametrize(("inclusive", "found"), [(True, [1001, 1002]), (False, [1002])])
    def test_since_counts_whole_seconds(self, clock: Clock, inclusive: bool, found: list[int]) -> None:
        github = FakeGitHub(clock, Rules(since_inclusive=inclusive))
        github.add_repo(REPO)
        github.add_issue(REPO)
        github.comment(REPO, 1, created=NOON + 0.9)
        github.comment(REPO, 1, created=NOON + 1)
        clock.now += 5

        assert ids(github, f"{BASE}/issues/comments?since=2023-11-14T22:13:20Z") == found
        assert ids(github, f"{BASE}/issues/1/comments?since=2023-11-14T22:13:20Z") == found

    def test_comments_sorted_by_update_have_the_edited_one_first(self, github: FakeGitHub, clock: Clock) -> None:
        github.add_issue(REPO)
        first, second = github.comment(REPO, 1), github.comment(REPO, 1)
        clock.now += 10
        github.edit_comment(REPO, first, "Otherwise.")

        listed = rows(github, f"{BASE}/issues/comments?sort=updated&direction=desc")

        assert [row["id"] for row in listed] == [first, second]
        assert listed[0]["body"] == "Otherwise."
        assert listed[0]["updated_at"] > listed[0]["created_at"] == listed[1]["updated_at"]

    def test_streams_share_numbers_but_not_node_ids(self, github: FakeGitHub) -> None:
        github.add_issue(REPO, pull_request=True)
        written = {github.comment(REPO, 1), github.review_comment(REPO, 1), github.review(REPO, 1)}
        lists = ("issues/comments", "pulls/comments", "pulls/1/comments", "pulls/1/reviews", "issues/1/comments")

        nodes = {rows(github, f"{BASE}/{path}")[0]["node_id"] for path in lists}

        assert (len(written), len(nodes)) == (1, 3)


class TestTime:
    def test_lag_when_changed_then_shown_later(self, github: FakeGitHub, clock: Clock) -> None:
        github.add_issue(REPO)
        clock.now += 100
        github.rules = Rules(lag_s=30)
        github.close(REPO, 1)

        clock.now += 29.5
        assert rows(github, f"{BASE}/issues/1")["state"] == "open"
        clock.now += 0.5
        assert rows(github, f"{BASE}/issues/1")["state"] == "closed"

    def test_lag_when_given_by_view_then_lists_and_items_disagree(self, github: FakeGitHub, clock: Clock) -> None:
        github.add_issue(REPO)
        clock.now += 100
        github.rules = Rules(lag_s=lambda view: 60.0 if view is View.ISSUES else 0.0)
        github.close(REPO, 1)

        assert [row["number"] for row in rows(github, f"{BASE}/issues")] == [1]
        assert rows(github, f"{BASE}/issues/1")["state"] == "closed"

    def test_pending_review_comment_comes_to_light_late_with_its_old_creation(
        self, github: FakeGitHub, clock: Clock
    ) -> None:
        github.add_issue(REPO, pull_request=True)
        github.review_comment(REPO, 1, created=NOON, visible=NOON + 600)

        clock.now += 599
        assert rows(github, f"{BASE}/pulls/comments") == []
        clock.now += 1
        (row,) = rows(github, f"{BASE}/pulls/comments")
        assert (row["created_at"], row["updated_at"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:23:20Z")

    def test_update_after_coming_to_light_is_an_edit_at_that_moment(self, github: FakeGitHub, clock: Clock) -> None:
        github.add_issue(REPO)
        github.comment(REPO, 1, created=NOON, updated=NOON + 5)
        clock.now += 4
        (before,) = rows(github, f"{BASE}/issues/comments")
        clock.now += 1
        (after,) = rows(github, f"{BASE}/issues/comments")

        times = (before["updated_at"], after["updated_at"])
        assert times == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:25Z")

    @pytest.mark.parametrize(
        ("rules", "moved"),
        [
            (Rules(), True),
            (Rules(reviews_move_issue=False), False),
            (Rules(coalesce_s=11), False),
            (Rules(coalesce_s=10), True),
        ],
    )
    def test_review_moves_its_pull_request_as_the_rules_say(
        self, github: FakeGitHub, clock: Clock, rules: Rules, moved: bool
    ) -> None:
        github.rules = rules
        github.add_issue(REPO, pull_request=True)
        etag = ask(github, f"{BASE}/issues").headers["ETag"]
        clock.now += 10
        github.review(REPO, 1)

        assert (ask(github, f"{BASE}/issues", If_None_Match=etag).status == 200) is moved

    def test_dates_come_from_the_clock(self, github: FakeGitHub) -> None:
        assert ask(github, BASE).headers["Date"] == "Tue, 14 Nov 2023 22:13:20 GMT"


class TestIdentity:
    def test_renamed_repository_answers_301_by_its_id(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        github.rename_repo(REPO, "octo/new")

        old = ask(github, f"{BASE}/issues?labels=a&page=1")

        assert old.status == 301
        assert old.headers["Location"] == "https://api.github.com/repositories/42/issues?labels=a&page=1"
        assert rows(github, "/repos/OCTO/New")["full_name"] == "octo/new"
        assert rows(github, "/repositories/42/issues/1")["url"].endswith("/repos/octo/new/issues/1")

    def test_name_when_taken_again_then_belongs_to_the_new_repository(self, github: FakeGitHub) -> None:
        github.rename_repo(REPO, "octo/new")
        github.add_repo(REPO)

        assert rows(github, BASE)["id"] != 42

    def test_removed_repository_answers_404_until_restored(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        github.remove_repo(REPO)
        assert {ask(github, f"{BASE}{rest}").status for rest in ("", "/issues", "/issues/1")} == {404}
        assert ask(github, "/repositories/42").status == 404

        github.restore_repo(REPO)
        assert ask(github, f"{BASE}/issues/1").status == 200

    def test_deleted_issue_answers_410_and_takes_its_comments_along(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        github.comment(REPO, 1)
        github.delete_issue(REPO, 1)

        assert [ask(github, f"{BASE}/issues/1{rest}").status for rest in ("", "/comments")] == [410, 410]
        assert rows(github, f"{BASE}/issues/comments") == rows(github, f"{BASE}/issues?state=all") == []
        assert github.add_issue(REPO) == 2

    def test_transferred_issue_answers_301_and_lives_on_elsewhere(self, github: FakeGitHub) -> None:
        github.add_repo("octo/other", id=43)
        github.add_issue(REPO, pull_request=True)
        github.comment(REPO, 1, body="Along.")
        github.add_issue("octo/other")
        number = github.transfer_issue(REPO, 1, "octo/other")

        at = "https://api.github.com/repositories/43"
        assert ask(github, f"{BASE}/issues/1").headers["Location"] == f"{at}/issues/{number}"
        assert ask(github, f"{BASE}/pulls/1/reviews").headers["Location"] == f"{at}/pulls/{number}/reviews"
        assert rows(github, f"{BASE}/issues") == []
        assert rows(github, f"/repositories/43/issues/{number}/comments")[0]["body"] == "Along."

    def test_reviews_of_plain_issue_and_unknown_addresses_are_404(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        targets = (f"{BASE}/pulls/1/reviews", f"{BASE}/issues/9", f"{BASE}/forks", "/repos/octo/none", "/orgs/octo")

        assert [ask(github, target).status for target in targets] == [404] * 5

    def test_reopened_issue_shows_its_states(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        github.add_issue(REPO, pull_request=True)

        def shown(number: int) -> tuple[str, str | None]:
            row = rows(github, f"{BASE}/issues/{number}")
            return row["state"], row["state_reason"]

        github.close(REPO, 1, reason="not_planned")
        github.close(REPO, 2, merged=True)
        assert (shown(1), shown(2)) == (("closed", "not_planned"), ("closed", None))
        assert rows(github, f"{BASE}/issues/2")["pull_request"]["merged_at"] is not None
        github.reopen(REPO, 1)
        assert shown(1) == ("open", "reopened")

    def test_deleted_account_and_empty_body_are_null(self, github: FakeGitHub) -> None:
        github.add_issue(REPO, author=None, body=None)
        github.comment(REPO, 1, None, None)

        for path in ("issues", "issues/comments"):
            (row,) = rows(github, f"{BASE}/{path}")
            assert (row["user"], row["body"]) == (None, None)

    def test_bot_and_labels_have_addresses_that_are_addresses(self, github: FakeGitHub) -> None:
        github.add_issue(REPO, author="helper[bot]", labels=["good first issue", "a/b"])

        (row,) = rows(github, f"{BASE}/issues")

        assert (row["user"]["login"], row["user"]["type"]) == ("helper[bot]", "Bot")
        assert row["user"]["url"] == "https://api.github.com/users/helper%5Bbot%5D"
        assert row["user"]["repos_url"] == "https://api.github.com/users/helper%5Bbot%5D/repos"
        assert row["user"]["html_url"] == "https://github.com/apps/helper"
        assert [label["name"] for label in row["labels"]] == ["good first issue", "a/b"]
        endings = [label["url"].partition("/labels/")[2] for label in row["labels"]]
        assert endings == ["good%20first%20issue", "a%2Fb"]

    def test_review_comment_when_its_line_is_gone_then_null_but_for_where_it_was(self, github: FakeGitHub) -> None:
        github.add_issue(REPO, pull_request=True)
        github.review_comment(REPO, 1, line=None)

        (row,) = rows(github, f"{BASE}/pulls/comments")

        assert (row["line"], row["position"]) == (None, None)
        assert (row["original_line"], row["original_position"]) == (1, 1)

    def test_accounts_are_known_by_login_unless_they_are_unknown(self, github: FakeGitHub) -> None:
        github.unknown_logins.add("nobody-at-all")
        github.tokens["t"] = "octo-bot"
        github.scopes["t"] = "public_repo, read:org"

        own = ask(github, "/user")

        assert json.loads(own.body)["login"] == "octo-bot"
        assert own.headers["X-OAuth-Scopes"] == "public_repo, read:org"
        assert rows(github, "/users/octocat#77")["id"] == 77
        assert rows(github, "/users/renovate%5Bbot%5D")["type"] == "Bot"
        assert ask(github, "/users/Nobody-At-All").status == 404
        assert ask(github, "/user", Authorization="").status == 401
        assert ask(github, "/users/octocat/repos").status == 404

    def test_tokens_when_set_then_others_get_401_and_writers_have_names(self, clock: Clock) -> None:
        github = FakeGitHub(clock, tokens={"t": "loop-bot"})
        github.add_repo(REPO)
        github.add_issue(REPO)
        posted = ask(github, f"{BASE}/issues/1/comments", "POST", b'{"body": "Hello"}')

        assert ask(github, BASE, Authorization="Bearer wrong").status == 401
        assert posted.status == 201
        assert rows(github, f"{BASE}/issues/1/comments")[0]["user"]["login"] == "loop-bot"
        assert rows(github, f"{BASE}/issues/1")["comments"] == 1
        assert ask(github, f"{BASE}/issues/1/comments", "POST", b"{").status == 422
        assert github.handle("GET", BASE, {"Authorization": "token t"}).status == 403  # no User-Agent


class TestFaults:
    @pytest.mark.parametrize(
        ("effect", "status", "inside"),
        [
            (faults.server_error(), 502, b"Server Error"),
            (faults.secondary_limit(), 403, b"secondary rate limit"),
            (faults.too_many_requests(5), 429, b"secondary rate limit"),
            (faults.primary_limit(NOON + 60), 403, b"rate limit exceeded"),
            (faults.limit_in_200(), 200, b'"errors"'),
            (faults.permission_denied(), 403, b"not accessible"),
            (faults.bad_credentials(), 401, b"Bad credentials"),
            (faults.html(), 200, b"<html>"),
            (faults.redirect("https://elsewhere.example/"), 301, b"elsewhere.example"),
            (faults.reply(500, b"x"), 500, b"x"),
        ],
    )
    def test_effect_hits_once_and_costs_a_point(
        self, github: FakeGitHub, effect: faults.Effect, status: int, inside: bytes
    ) -> None:
        github.fail(r"^GET /repos/octo/repo/issues", effect)
        etag = ask(github, BASE).headers["ETag"]

        hit, after = ask(github, f"{BASE}/issues", If_None_Match=etag), ask(github, f"{BASE}/issues")

        assert (hit.status, inside in hit.body, after.status, github.points) == (status, True, 200, 3)
        assert hit.headers["Date"]

    def test_secondary_limit_is_bare_unless_told(self, github: FakeGitHub) -> None:
        github.fail("issues", faults.secondary_limit())
        github.fail("issues", faults.secondary_limit(retry_after_s=90), bare=False)

        bare, full = ask(github, f"{BASE}/issues"), ask(github, f"{BASE}/issues")

        assert not {"Retry-After", "X-RateLimit-Remaining"} & bare.headers.keys()
        assert (full.headers["Retry-After"], full.headers["X-RateLimit-Remaining"]) == ("90", "4998")

    def test_after_and_times_choose_the_requests(self, github: FakeGitHub) -> None:
        fault = github.fail("issues", faults.server_error(500), after=1, times=2)

        assert [ask(github, f"{BASE}/issues").status for _ in range(4)] == [200, 500, 500, 200]
        assert fault.hits == 2

    def test_half_json_when_validator_matches_then_still_half(self, github: FakeGitHub) -> None:
        github.add_issue(REPO)
        whole = ask(github, f"{BASE}/issues")
        github.fail("issues", faults.half_json())

        half = ask(github, f"{BASE}/issues", If_None_Match=whole.headers["ETag"])

        assert (half.status, half.body) == (200, whole.body[: len(whole.body) // 2])

    def test_hook_may_change_the_world_and_script_faults(self, github: FakeGitHub) -> None:
        seen = []

        def hook(number: int, target: str) -> None:
            seen.append((number, target))
            github.add_issue(REPO)

        github.hook(hook)

        assert [len(rows(github, f"{BASE}/issues")) for _ in range(2)] == [1, 2]
        assert seen == [(1, f"{BASE}/issues"), (2, f"{BASE}/issues")]

    def test_log_tells_what_was_asked(self, github: FakeGitHub) -> None:
        ask(github, BASE)
        ask(github, f"{BASE}/issues", Accept="x")

        (entry,) = github.requests_matching(r"/issues$")

        assert (entry.number, entry.time, entry.status, entry.headers["accept"]) == (2, NOON, 200, "x")


class TestServer:
    def test_real_client_follows_links_over_one_connection(self, github: FakeGitHub) -> None:
        for _ in range(3):
            github.add_issue(REPO)
        with FakeServer(github) as server, httpx2.Client(timeout=5) as client:
            first = client.get(f"{server.url}{BASE}/issues", params={"per_page": 2})
            second = client.get(first.links["next"]["url"])
            again = client.get(first.request.url, headers={"If-None-Match": first.headers["ETag"]})
            posted = client.post(f"{server.url}{BASE}/issues/1/comments", json={"body": "ü" * 5000})

        assert [len(answer.json()) for answer in (first, second)] == [2, 1]
        assert (again.status_code, again.content, posted.status_code) == (304, b"", 201)
        assert first.http_version == "HTTP/1.1"

    def test_path_of_base_url_is_kept(self, clock: Clock) -> None:
        github = FakeGitHub(clock, base_url="https://ghe.example/api/v3")
        github.add_repo(REPO)
        with FakeServer(github) as server, httpx2.Client() as client:
            assert client.get(f"{server.url}{BASE}").json()["url"] == f"{server.url}{BASE}"
            assert client.get(server.url.removesuffix("/api/v3") + BASE).status_code == 404

    def test_hang_ends_by_the_clients_limit_and_holds_no_exit(self, github: FakeGitHub) -> None:
        github.fail("issues", faults.hang())
        with FakeServer(github) as server, httpx2.Client(timeout=0.2) as client:
            with pytest.raises(httpx2.ReadTimeout):
                client.get(f"{server.url}{BASE}/issues")
            assert client.get(f"{server.url}{BASE}/issues").status_code == 200
        assert github.log[0].status == 0

    def test_drip_outlasts_a_read_timeout_but_no_total_limit(self, github: FakeGitHub) -> None:
        github.fail("issues", faults.drip(0.02))

        async def get(url: str) -> None:
            async with httpx2.AsyncClient(timeout=5) as client, asyncio.timeout(0.3):
                await client.get(url)

        with FakeServer(github) as server, pytest.raises(TimeoutError):
            asyncio.run(get(f"{server.url}{BASE}/issues"))

    def test_cut_breaks_the_body(self, github: FakeGitHub) -> None:
        github.fail("/repo$", faults.cut())
        with (
            FakeServer(github) as server,
            httpx2.Client() as client,
            pytest.raises(httpx2.RemoteProtocolError),
        ):
            client.get(f"{server.url}{BASE}")

    def test_port_serves_again_after_a_stop(self, github: FakeGitHub) -> None:
        with FakeServer(github) as server:
            port = server.port
        with FakeServer(github, port=port) as again, httpx2.Client() as client:
            assert client.get(f"{again.url}{BASE}").status_code == 200

    def test_failing_hook_fails_the_test(self, github: FakeGitHub) -> None:
        github.hook(lambda number, _target: 1 // (number - 1))
        with (
            pytest.raises(ZeroDivisionError),
            FakeServer(github) as server,
            httpx2.Client() as client,
            pytest.raises(httpx2.RemoteProtocolError),
        ):
            client.get(f"{server.url}{BASE}")


class TestTransport:
    def test_answers_in_process(self, github: FakeGitHub) -> None:
        async def get() -> httpx2.Response:
            async with httpx2.AsyncClient(transport=FakeTransport(github)) as client:
                return await client.get(f"{github.base_url}{BASE}")

        assert asyncio.run(get()).json()["id"] == 42

    def test_hang_passes_the_read_timeout_and_strangers_are_kept(self, github: FakeGitHub) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        transport = FakeTransport(github, sleep)
        github.fail("issues", faults.hang())

        async def get(url: str) -> None:
            async with httpx2.AsyncClient(transport=transport, timeout=30) as client:
                await client.get(url)

        with pytest.raises(httpx2.ReadTimeout):
            asyncio.run(get(f"{github.base_url}{BASE}/issues"))
        with pytest.raises(httpx2.ConnectError):
            asyncio.run(get(f"https://elsewhere.example{BASE}"))
        assert slept == [30]
        assert [str(request.url) for request in transport.foreign] == [f"https://elsewhere.example{BASE}"]


def test_traffic_is_uncovered_by_the_clock(clock: Clock) -> None:
    github = FakeGitHub(clock)
    traffic = load_traffic(github)
    late = next(
        event
        for event in traffic.events
        if event.kind is Kind.REVIEW_COMMENT and event.visible > event.created and event.updated == event.visible
    )

    def is_shown() -> bool:
        return late.id in ids(github, f"{BASE}/pulls/{late.number}/comments?per_page=100")

    clock.now = late.visible - 1
    assert not is_shown()
    clock.now = late.visible
    assert is_shown()
    clock.now = traffic.end
    assert len(rows(github, f"{BASE}/issues?labels=auto&per_page=100")) == 46
    assert len(traffic.events) == 2429
