"""What became of the items that are not listed any more: each is asked about by itself, and "no answer" ends nobody."""

from __future__ import annotations

from msgspec.structs import replace

from the_loop.config import GithubSection
from the_loop.core.model import clean
from the_loop.sources.base import Known, SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.identity import AnotherRepository, confirm, is_elsewhere
from the_loop.sources.github.poll import SWEEP, RepositoryPoll, Step
from the_loop.sources.github.record import Left
from the_loop.sources.github.rows import Issue, one


async def ask_about_missing(client: Client, section: GithubSection, poll: RepositoryPoll) -> None:
    """Fill in who left, who lost the label, and who could not be found. Raises AnotherRepository.

    Whoever could not be asked about is not told of: nothing changes, and a later look asks again.
    """
    step = Step(poll)
    gone = [number for number, known in poll.known.items() if known.is_open and number not in poll.rows]
    # who was not found once is asked first: a second time has to follow
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
    """An item without its label is asked about now and then; any other, and one that was not found, at once."""
    is_swept = number % SWEEP == poll.turn % SWEEP
    return not known.is_away or is_swept or number in poll.old.missing or number in poll.old.due


async def _ask(client: Client, section: GithubSection, poll: RepositoryPoll, step: Step, number: int) -> Left | None:
    """A record if the item ended; None for anything else."""
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
            poll.away.pop(number, None)  # the listing lags behind
        elif not reason:
            poll.unlabelled.append(number)
    return Left(reason, poll.now, is_pull, detail) if reason else None


def _put_off(poll: RepositoryPoll, number: int) -> None:
    """What is known of it so far holds until it can be asked."""
    if number in poll.old.missing:
        poll.missing.append(number)
    if poll.known[number].is_away:
        poll.due.append(number)


async def _find(client: Client, poll: RepositoryPoll, number: int, *, is_pull: bool) -> tuple[Issue | None, str]:
    """The item as it is, or why there is none; neither where nobody can tell yet."""
    path = f"/repos/{poll.name}/issues/{number}"
    answer = await client.get(path, poll.away.get(number, ""))
    if answer.is_unchanged:
        return None, ""
    if await is_elsewhere(client, answer, poll.old.id, poll.name):
        return None, "transferred"
    if answer.status in (404, 410):
        repository = poll.confirmed or await confirm(client, poll)
        if not is_pull and repository.has_issues is False:
            raise SourceError("its issues are turned off", "nothing ends; turn them on, or take it out of `repos`")
        return None, "deleted" if answer.status == 410 else _is_deleted(poll, number)
    issue = one(answer.value, Issue, path)
    if poll.known[number].id not in ("", issue.node_id):
        await confirm(client, poll)
        raise SourceError(f"{path} is another item than the one known by this number")
    poll.away[number] = answer.etag  # as long as nothing else is found of it
    return issue, ""


def _reason(issue: Issue) -> str:
    if issue.state == "open":
        return ""
    return "merged" if issue.pull_request and issue.pull_request.merged_at else "closed"


def _is_deleted(poll: RepositoryPoll, number: int) -> str:
    """404 means deleted when its repository answers with the same token, and two looks in a row said so."""
    if number in poll.old.missing:
        return "deleted"
    poll.missing.append(number)
    return ""
