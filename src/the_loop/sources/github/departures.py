"""What became of the items that are not listed any more: each is asked about by itself, and "no answer" ends nobody."""

from __future__ import annotations

from msgspec.structs import replace

from the_loop.config import GithubSection
from the_loop.model import clean
from the_loop.sources.base import Known, SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.identity import AnotherRepository, confirm, is_elsewhere
from the_loop.sources.github.look import SWEEP, Look, Step
from the_loop.sources.github.record import Left
from the_loop.sources.github.rows import Issue, one


async def ask_about_missing(client: Client, section: GithubSection, look: Look) -> None:
    """Fill in who left, who lost the label, and who could not be found. Raises AnotherRepository.

    Whoever could not be asked about is not told of: nothing changes, and a later look asks again.
    """
    step = Step(look)
    gone = [number for number, known in look.known.items() if known.is_open and number not in look.rows]
    # who was not found once is asked first: a second time has to follow
    for number in sorted(look.in_any_order(gone), key=lambda number: number not in look.old.missing):
        known = look.known[number]
        if known.is_away:
            look.away[number] = look.old.away.get(number, "")
        left = look.old.left.get(number)
        if left is None and _is_due(look, number, known):
            left = await _ask(client, section, look, step, number)
        if left is not None:
            look.left[number] = replace(left, at=min(left.at, look.now))
            look.away.pop(number, None)


def _is_due(look: Look, number: int, known: Known) -> bool:
    """An item without its label is asked about now and then; any other, and one that was not found, at once."""
    is_swept = number % SWEEP == look.turn % SWEEP
    return not known.is_away or is_swept or number in look.old.missing or number in look.old.due


async def _ask(client: Client, section: GithubSection, look: Look, step: Step, number: int) -> Left | None:
    """A record if the item ended; None for anything else."""
    if not step.may_ask():
        _put_off(look, number)
        return None
    before = look.before.get(number)
    is_pull, detail = before is not None and before.is_pull, ""
    step.ask()
    try:
        issue, reason = await _find(client, look, number, is_pull=is_pull)
    except AnotherRepository:
        raise
    except SourceError as fault:
        step.fail(fault)
        _put_off(look, number)
        return None
    if issue is not None:
        is_pull = issue.pull_request is not None
        reason, detail = _reason(issue), clean(issue.state_reason or "")
        if issue.has_label(section.label):
            look.away.pop(number, None)  # the listing lags behind
        elif not reason:
            look.unlabelled.append(number)
    return Left(reason, look.now, is_pull, detail) if reason else None


def _put_off(look: Look, number: int) -> None:
    """What is known of it so far holds until it can be asked."""
    if number in look.old.missing:
        look.missing.append(number)
    if look.known[number].is_away:
        look.due.append(number)


async def _find(client: Client, look: Look, number: int, *, is_pull: bool) -> tuple[Issue | None, str]:
    """The item as it is, or why there is none; neither where nobody can tell yet."""
    path = f"/repos/{look.name}/issues/{number}"
    answer = await client.get(path, look.away.get(number, ""))
    if answer.is_unchanged:
        return None, ""
    if await is_elsewhere(client, answer, look.old.id, look.name):
        return None, "transferred"
    if answer.status in (404, 410):
        repository = look.confirmed or await confirm(client, look)
        if not is_pull and repository.has_issues is False:
            raise SourceError("its issues are turned off", "nothing ends; turn them on, or take it out of `repos`")
        return None, "deleted" if answer.status == 410 else _is_deleted(look, number)
    issue = one(answer.value, Issue, path)
    if look.known[number].id not in ("", issue.node_id):
        await confirm(client, look)
        raise SourceError(f"{path} is another item than the one known by this number")
    look.away[number] = answer.etag  # as long as nothing else is found of it
    return issue, ""


def _reason(issue: Issue) -> str:
    if issue.state == "open":
        return ""
    return "merged" if issue.pull_request and issue.pull_request.merged_at else "closed"


def _is_deleted(look: Look, number: int) -> str:
    """404 means deleted when its repository answers with the same token, and two looks in a row said so."""
    if number in look.old.missing:
        return "deleted"
    look.missing.append(number)
    return ""
