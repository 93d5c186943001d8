"""Items that are no longer listed: each is requested by itself. An item without an answer has not ended."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from the_loop.core.model import clean
from the_loop.sources.base import Known, SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.identity import AnotherRepository, confirm, is_elsewhere
from the_loop.sources.github.poll import SWEEP, RepositoryPoll, Step
from the_loop.sources.github.record import Left
from the_loop.sources.github.rows import Issue, one, to_item
from the_loop.sources.github.section import GithubSection

AGAIN_S: Final = 60.0  # between two 404 of a deleted item; a server that is behind answers 404 for a moment (R6.5)


async def ask_about_missing(client: Client, section: GithubSection, poll: RepositoryPoll) -> None:
    """Find the items that ended, that lost the label, and that were not found. Raises AnotherRepository.

    An item that could not be requested is not reported: nothing changes, and a later poll requests it again.
    """
    step = Step(poll)
    gone = [number for number, known in poll.known.items() if known.is_open and number not in poll.rows]
    # items that were not found once come first: their second request is due
    for number in sorted(poll.in_any_order(gone), key=lambda number: number not in poll.old.missing):
        known = poll.known[number]
        if known.is_away:
            poll.away[number] = poll.old.away.get(number, "")
        left = poll.old.left.get(number)
        if left is None and _is_due(poll, number, known):
            left = await _ask(client, section, poll, step, number)
        if left is not None:
            poll.left[number] = replace(left, at=min(left.at, poll.now))
            poll.away.pop(number, None)


def _is_due(poll: RepositoryPoll, number: int, known: Known) -> bool:
    """True unless the item lost its label before: such items are requested every SWEEP polls only."""
    is_swept = number % SWEEP == poll.turn % SWEEP
    return not known.is_away or is_swept or number in poll.old.missing or number in poll.old.due


async def _ask(client: Client, section: GithubSection, poll: RepositoryPoll, step: Step, number: int) -> Left | None:
    """Request one item; return a record if it ended, else None."""
    if not step.may_ask():
        _put_off(poll, number)
        return None
    before = poll.before.get(number)
    is_pull, detail = before is not None and before.is_pull, ""
    step.ask()
    try:
        issue, reason = await _find(client, poll, number, is_pull=is_pull)
    except AnotherRepository:
        raise
    except SourceError as fault:
        step.fail(fault)
        _put_off(poll, number)
        return None
    if issue is not None:
        is_pull = issue.pull_request is not None
        reason, detail = _reason(issue), clean(issue.state_reason or "")
        if issue.has_label(section.label):
            poll.away.pop(number, None)  # the listing is older than this response, or cut off before this item
            is_wanted = section.monitor.pull_requests if is_pull else section.monitor.issues
            if poll.is_cut and is_wanted and not reason:
                poll.unlisted[number] = to_item(poll.ref(number), issue), is_pull
        elif not reason:
            poll.unlabelled.append(number)
    return Left(reason, poll.now, is_pull, detail) if reason else None


def _put_off(poll: RepositoryPoll, number: int) -> None:
    """Keep what is known of the item until it can be requested."""
    if number in poll.old.missing:
        poll.missing[number] = poll.old.missing[number]
    if poll.known[number].is_away:
        poll.due.append(number)


async def _find(client: Client, poll: RepositoryPoll, number: int, *, is_pull: bool) -> tuple[Issue | None, str]:
    """The present item, or the reason why it ended; (None, "") if unchanged or not known yet."""
    path = f"/repos/{poll.name}/issues/{number}"
    answer = await client.get(path, poll.away.get(number, ""))
    if answer.is_unchanged:
        return None, ""
    if await is_elsewhere(client, answer, poll.old.id, poll.name):
        return None, "transferred"
    if answer.status in (404, 410):
        repository = poll.confirmed or await confirm(client, poll)
        if not is_pull and repository.has_issues is False:
            raise SourceError(
                "its issues are disabled, so items cannot be read", "enable them, or remove it from `repos`"
            )
        return None, "deleted" if answer.status == 410 else _is_deleted(poll, number)
    issue = one(answer.value, Issue, path)
    if poll.known[number].id not in ("", issue.node_id):
        await confirm(client, poll)
        raise SourceError(f"{path} is not the item that had this number before")
    poll.away[number] = answer.etag  # unless it turns out to be listed or ended
    return issue, ""


def _reason(issue: Issue) -> str:
    if issue.state == "open":
        return ""
    return "merged" if issue.pull_request and issue.pull_request.merged_at else "closed"


def _is_deleted(poll: RepositoryPoll, number: int) -> str:
    """404 means deleted if the repository answers with the same token, and it was 404 AGAIN_S before, too."""
    first = min(poll.old.missing.get(number, poll.now), poll.now)
    if poll.now - first >= AGAIN_S:
        return "deleted"
    poll.missing[number] = first
    return ""
