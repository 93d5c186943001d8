"""What the GitHub fake answers is what GitHub's published description says.

Left out is what no description has and a client has to live with: web pages, half a body, a limit told in a 200.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from published.example import (
    BARE,
    DELETED,
    EVERY,
    FORMER,
    LISTS,
    NAMED,
    NUMERIC,
    PULL,
    REPO,
    SINGLES,
    TRANSFERRED,
    make,
)
from published.prism import violations
from support.github import faults
from support.github.values import Rules

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from published.prism import Described
    from support.github.fake import FakeGitHub
    from support.github.faults import Effect
    from support.github.values import Answer

both = pytest.mark.parametrize("base", [NAMED, NUMERIC], ids=["named", "numeric"])
COMMENT = {"body": "The loop gave up."}
RESET = 1_700_003_600.0


def ask(http: httpx2.Client, target: str, method: str = "GET", **more: Any) -> httpx2.Response:
    """What is answered, if it and the question are as described."""
    answer = http.request(method, target, **more)
    found = violations(answer)
    assert not found, f"{method} {target}: {found}"
    return answer


def refusal(http: httpx2.Client, target: str, status: int, method: str = "GET", **more: Any) -> httpx2.Response:
    """The same for an answer that is one of GitHub's errors; their description asks for less than all of them have."""
    answer = ask(http, target, method, **more)
    assert answer.status_code == status, f"{method} {target}"
    assert {"message", "documentation_url"} <= answer.json().keys(), f"{method} {target}"
    return answer


class TestFound:
    @both
    @pytest.mark.parametrize("what", EVERY)
    def test_answer_when_there_is_something_then_as_described(self, http: httpx2.Client, base: str, what: str) -> None:
        answer = ask(http, base + EVERY[what])

        assert answer.status_code == 200
        assert answer.json()

    @both
    def test_lists_when_empty_then_as_described(self, http: httpx2.Client, base: str) -> None:
        targets = [f"{base}/issues?labels=none", f"{base}/issues?page=9", f"{base}/issues/{BARE}/comments"]

        assert [ask(http, target).json() for target in targets] == [[], [], []]

    @both
    @pytest.mark.parametrize("what", LISTS)
    def test_links_when_followed_then_every_page_as_described(self, http: httpx2.Client, base: str, what: str) -> None:
        whole = ask(http, base + LISTS[what]).json()
        answer = ask(http, base + LISTS[what].replace("per_page=100", "per_page=1"))
        pages = [answer.json()]
        while "next" in answer.links:
            answer = ask(http, answer.links["next"]["url"])
            pages.append(answer.json())

        assert [row for page in pages for row in page] == whole
        assert len(pages) == len(whole) > 1
        assert answer.request.url.path.startswith("/repositories/42/")

    def test_rate_limit_then_as_described(self, http: httpx2.Client) -> None:
        assert ask(http, "/rate_limit").json()["rate"]["limit"] == 5000

    @both
    @pytest.mark.parametrize("what", EVERY)
    def test_answer_when_unchanged_then_304_without_content_type(
        self, http: httpx2.Client, github: FakeGitHub, base: str, what: str
    ) -> None:
        etag = ask(http, base + EVERY[what]).headers["ETag"]

        answer = ask(http, base + EVERY[what], headers={"If-None-Match": etag})
        asked = github.log[-1]
        bare = github.handle(asked.method, asked.target, asked.headers)  # Prism may have put something on

        assert (answer.status_code, answer.content, bare.status, bare.body) == (304, b"", 304, b"")
        assert "content-type" not in answer.headers
        assert not {"content-type", "content-length", "link"} & {name.lower() for name in bare.headers}


class TestMoved:
    """Prism is shown `X-Location` for `Location`: it would follow that, and we would not see the answer itself."""

    @pytest.mark.parametrize("what", EVERY)
    def test_renamed_repository_then_301_to_its_numeric_address(
        self, http: httpx2.Client, described: Described, what: str
    ) -> None:
        answer = refusal(http, f"/repos/{FORMER}{EVERY[what]}", 301)

        assert answer.headers["X-Location"] == answer.json()["url"]
        assert answer.headers["X-Location"].startswith(f"{described.url}{NUMERIC}")
        assert ask(http, answer.headers["X-Location"]).json() == ask(http, f"{NAMED}{EVERY[what]}").json()

    @both
    @pytest.mark.parametrize("rest", ["", "/comments"])
    def test_transferred_issue_then_301_to_the_other_repository(
        self, http: httpx2.Client, base: str, rest: str
    ) -> None:
        answer = refusal(http, f"{base}/issues/{TRANSFERRED}{rest}", 301)

        assert "/repositories/43/issues/" in answer.headers["X-Location"]
        assert ask(http, answer.headers["X-Location"]).status_code == 200

    @pytest.mark.parametrize("target", [f"/repos/{FORMER}/issues/1/comments", f"{NAMED}/issues/{TRANSFERRED}/comments"])
    def test_comment_when_written_to_a_former_address_then_307(self, http: httpx2.Client, target: str) -> None:
        answer = refusal(http, target, 307, "POST", json=COMMENT)

        assert ask(http, answer.headers["X-Location"], "POST", json=COMMENT).status_code == 201


REFUSALS: dict[str, tuple[int, Effect]] = {
    "bad credentials": (401, faults.bad_credentials()),
    "permission": (403, faults.permission_denied()),
    "secondary limit": (403, faults.secondary_limit()),
    "secondary limit with a time": (403, faults.secondary_limit(60)),
    "primary limit": (403, faults.primary_limit(RESET)),
    "too many requests": (429, faults.too_many_requests()),
    "too many requests with a time": (429, faults.too_many_requests(60)),
    "primary limit as 429": (429, faults.primary_limit(RESET, status=429)),
    **{f"server error {status}": (status, faults.server_error(status)) for status in (500, 502, 503, 504)},
}


class TestRefused:
    @both
    @pytest.mark.parametrize("name", REFUSALS)
    def test_scripted_refusal_then_as_described_at_every_address(
        self, http: httpx2.Client, github: FakeGitHub, base: str, name: str
    ) -> None:
        status, effect = REFUSALS[name]
        github.fail(".", effect, times=None)

        for rest in EVERY.values():
            refusal(http, base + rest, status)
        refusal(http, f"{base}/issues/1/comments", status, "POST", json=COMMENT)

    @both
    def test_token_when_unknown_or_missing_then_401(self, http: httpx2.Client, base: str) -> None:
        for authorization in ("Bearer unknown", ""):
            refusal(http, base, 401, headers={"Authorization": authorization})
            refusal(http, f"{base}/issues", 401, headers={"Authorization": authorization})

    @both
    def test_points_when_spent_then_403(self, http: httpx2.Client, described: Described, base: str) -> None:
        described.github = make(described.url, Rules(rate_limit=1))
        ask(http, base)

        assert refusal(http, f"{base}/issues", 403).headers["X-RateLimit-Remaining"] == "0"

    @both
    def test_repository_when_removed_then_404_for_all_of_it(
        self, http: httpx2.Client, github: FakeGitHub, base: str
    ) -> None:
        github.remove_repo(REPO)

        for rest in EVERY.values():
            refusal(http, base + rest, 404)
        refusal(http, f"{base}/issues/1/comments", 404, "POST", json=COMMENT)

    @both
    @pytest.mark.parametrize("rest", ["/issues/99", "/issues/99/comments", "/pulls/1/reviews", "/pulls/1/comments"])
    def test_item_when_absent_then_404(self, http: httpx2.Client, base: str, rest: str) -> None:
        refusal(http, base + rest, 404)

    @both
    @pytest.mark.parametrize("rest", ["", "/comments"])
    def test_issue_when_deleted_then_410(self, http: httpx2.Client, base: str, rest: str) -> None:
        refusal(http, f"{base}/issues/{DELETED}{rest}", 410)


class TestWritten:
    @both
    @pytest.mark.parametrize("number", [1, PULL])
    def test_comment_when_written_then_201_and_listed(self, http: httpx2.Client, base: str, number: int) -> None:
        answer = ask(http, f"{base}/issues/{number}/comments", "POST", json=COMMENT)

        assert (answer.status_code, answer.json()["user"]["login"]) == (201, "loop-bot")
        assert answer.headers["Location"] == answer.json()["url"]
        assert ask(http, f"{base}/issues/{number}/comments").json()[-1] == answer.json()

    @both
    @pytest.mark.parametrize(("number", "body", "status"), [(99, "Text.", 404), (DELETED, "Text.", 410), (1, "", 422)])
    def test_comment_when_refused_then_as_described(
        self, http: httpx2.Client, base: str, number: int, body: str, status: int
    ) -> None:
        refusal(http, f"{base}/issues/{number}/comments", status, "POST", json={"body": body})


def changed(change: Callable[[dict[str, Any]], object]) -> Effect:
    """The true answer, but for what `change` does to it, or to the first row of it."""

    def effect(genuine: Callable[[], Answer]) -> Answer:
        answer = genuine()
        value = json.loads(answer.body)
        change(value[0] if isinstance(value, list) else value)
        return replace(answer, body=json.dumps(value).encode())

    return effect


def as_html(genuine: Callable[[], Answer]) -> Answer:
    answer = genuine()
    return replace(answer, headers={**answer.headers, "Content-Type": "text/html; charset=utf-8"})


WRONGS: dict[str, Effect] = {
    "a key is missing": changed(lambda row: row.pop("id")),
    "a value is of another type": changed(lambda row: row.update(id="1001")),
    "a value is null": changed(lambda row: row.update(node_id=None)),
    "a key is made up": changed(lambda row: row.update(is_urgent=True)),
    "the media type is another": as_html,
}


class TestWatch:
    """Prism notices what is wrong. It lets all pass, and says nothing, where it cannot compile a schema."""

    @both
    @pytest.mark.parametrize("what", EVERY)
    def test_answer_when_wrong_then_noticed(
        self, http: httpx2.Client, github: FakeGitHub, base: str, what: str
    ) -> None:
        missed = []
        for wrong, effect in WRONGS.items():
            github.fail(".", effect)
            answer = http.get(base + EVERY[what])
            missed += [] if violations(answer) else [wrong]

        assert missed == []

    @both
    @pytest.mark.parametrize("name", REFUSALS)
    def test_refusal_when_wrong_then_noticed(
        self, http: httpx2.Client, github: FakeGitHub, base: str, name: str
    ) -> None:
        status, _ = REFUSALS[name]
        github.fail(".", faults.reply(status, {"message": 5}), times=None)

        assert [rest for rest in SINGLES.values() if not violations(http.get(base + rest))] == []

    @both
    def test_written_comment_when_wrong_then_noticed(self, http: httpx2.Client, github: FakeGitHub, base: str) -> None:
        github.fail("POST", WRONGS["a key is missing"])

        assert violations(http.post(f"{base}/issues/1/comments", json=COMMENT))

    def test_status_when_not_described_then_noticed(self, http: httpx2.Client, github: FakeGitHub) -> None:
        github.fail(".", faults.reply(418, {"message": "I'm a teapot"}))

        assert violations(http.get(NAMED))
