"""Sixty days of a real repository's pull requests (anonymous), laid out in a FakeGitHub for its clock to uncover."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.github.values import Kind

if TYPE_CHECKING:
    from support.github.fake import FakeGitHub

TRAFFIC = Path(__file__).parent.parent / "data" / "github-traffic-60d.json"


class TrafficEvent(NamedTuple):
    """One comment, review or review comment; times in epoch seconds, the kinds share numbers."""

    kind: Kind
    id: int
    number: int  # of its pull request
    author: str
    created: int
    visible: int
    updated: int
    body_length: int
    state: str | None  # of a review

    def is_empty(self) -> bool:
        """Whether it is a review that says nothing itself and only holds review comments."""
        return self.kind is Kind.REVIEW and self.state == "COMMENTED" and not self.body_length


class Traffic(NamedTuple):
    """What was laid out: the events in the order in which they come to light, and the window of interest.

    `changes`: every moment at which anything in the repository changes, edits and openings too, in order.
    """

    events: tuple[TrafficEvent, ...]
    start: int
    end: int
    changes: tuple[int, ...]


def load_traffic(github: FakeGitHub, repo: str = "octo/repo", label: str = "auto", path: Path = TRAFFIC) -> Traffic:
    """Fill `github` with the file's pull requests, each labelled from its opening on; the repository is made."""
    data = json.loads(path.read_text(encoding="utf-8"))
    github.add_repo(repo)
    for number, item in data["items"].items():
        github.add_issue(
            repo,
            title=f"Pull request {number}",
            body=_text(item["body_length"]),
            author=item["author"],
            labels=[label],
            pull_request=True,
            number=int(number),
            created=item["opened"],
        )
        if item["closed"] is not None:
            github.close(repo, int(number), merged=item["merged"], at=item["closed"])
    events = tuple(_event(entry) for entry in data["events"])
    for event, entry in zip(events, data["events"], strict=True):
        _add(github, repo, event, entry.get("review"))
    moments = [item[name] for item in data["items"].values() for name in ("opened", "closed")]
    moments += [moment for event in events for moment in (event.visible, max(event.updated, event.visible))]
    return Traffic(events, data["start"], data["end"], tuple(sorted({moment for moment in moments if moment})))


def _event(entry: dict[str, object]) -> TrafficEvent:
    fields = {**entry, "kind": Kind(str(entry["kind"])), "number": entry["item"], "state": entry.get("state")}
    return TrafficEvent._make(fields[name] for name in TrafficEvent._fields)


def _add(github: FakeGitHub, repo: str, event: TrafficEvent, review_id: int | None) -> None:
    body = _text(event.body_length)
    who_and_what = (repo, event.number, event.author, body)
    created, visible, updated = float(event.created), float(event.visible), float(event.updated)
    if event.kind is Kind.REVIEW:
        state = event.state or "COMMENTED"
        github.review(*who_and_what, state=state, id=event.id, created=created, visible=visible)
    elif event.kind is Kind.COMMENT:
        github.comment(*who_and_what, id=event.id, created=created, visible=visible, updated=updated)
    else:
        github.review_comment(
            *who_and_what, id=event.id, review_id=review_id, created=created, visible=visible, updated=updated
        )


def _text(length: int) -> str:
    """So many characters of prose in lines of sixty."""
    line = "This text stands for one that somebody wrote, of this length.\n"
    return (line * (length // len(line) + 1))[:length]
