"""What a person may call an item or an event by, as far as the text alone tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from the_loop.addresses import Address, read_address

PAGE = "https://github.com/octo/repo"
REF = "github:octo/repo#15"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{PAGE}/issues/15", ""),
        (f"{PAGE}/pull/15", ""),
        (f"{PAGE}/pull/15/files", ""),
        (f"{PAGE}/pull/15/commits/0a1b2c", ""),
        (f"{PAGE}/issues/15#issue-4711", ""),
        (f"{PAGE}/issues/15?notification_referrer_id=NT_x#issuecomment-123", "comment:123"),
        (f"{PAGE}/pull/15#issuecomment-123", "comment:123"),
        (f"{PAGE}/pull/15#discussion_r9", "review_comment:9"),
        (f"{PAGE}/pull/15/files#r9", "review_comment:9"),
        (f"{PAGE}/pull/15#pullrequestreview-7", "review:7"),
        (f"  {PAGE}/issues/15#issuecomment-123\n", "comment:123"),
        ("https://GitHub.com/Octo/Repo/issues/15", ""),
        ("http://www.github.com/octo/repo/issues/15", ""),
        ("github.com/octo/repo/issues/15#issuecomment-123", "comment:123"),
        ("octo/repo#15", ""),
        ("Octo/Repo#15", ""),
        (REF, ""),
        ("GitHub:Octo/Repo#15", ""),
        (f"{REF}/comment:123", "comment:123"),
        (f"{REF}/spawn:2", "spawn:2"),
        (f"{REF}/review_comment:9", "review_comment:9"),
        (f"{REF}/body", "body"),
    ],
)
def test_address_when_of_github_then_is_its_item_and_event(text: str, key: str) -> None:
    assert read_address(text) == Address((REF,), key)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://ghe.example/octo/repo/issues/15#issuecomment-1", "ghe.example"),
        ("https://ghe.example:8443/octo/repo/pull/15#issuecomment-1", "ghe.example"),
        ("https://tenant.ghe.com/octo/repo/issues/15#issuecomment-1", "tenant.ghe.com"),
    ],
)
def test_address_when_of_another_host_then_its_api_may_be_a_host_of_its_own(url: str, host: str) -> None:
    refs = (f"github:{host}/octo/repo#15", f"github:api.{host}/octo/repo#15")

    assert read_address(url) == Address(refs, "comment:1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("directory:inbox/squeaky-door", Address(("directory:inbox/squeaky-door",))),
        ("directory:inbox/Door/comment:02 hinges.md", Address(("directory:inbox/Door",), "comment:02 hinges.md")),
        ("directory:inbox/comment:3", Address(("directory:inbox/comment:3",))),
        ("directory:inbox/body", Address(("directory:inbox/body",))),
        ("telegram:bot/-100123/comment:5", Address(("telegram:bot/-100123",), "comment:5")),
        ("/srv/inbox/door", Address(path="/srv/inbox/door")),
        ("inbox/door/02.md", Address(path="inbox/door/02.md")),
        ("~/inbox/door", Address(path="~/inbox/door")),
        ("./door", Address(path="./door")),
        ("file:///srv/in%20box/door", Address(path="/srv/in box/door")),
    ],
)
def test_address_when_of_another_source_then_is_left_as_written(text: str, expected: Address) -> None:
    assert read_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "hello", "15", "#15", "https://github.com/octo/repo", "https://[::1/octo/repo/issues/1", "https://x"]
)
def test_address_when_it_has_none_of_the_forms_then_is_none(text: str) -> None:
    assert read_address(text) is None


@given(st.text())
def test_address_when_any_text_then_does_not_raise(text: str) -> None:
    read_address(text)
    read_address(f"https://{text}")
    read_address(f"file://{text}")
