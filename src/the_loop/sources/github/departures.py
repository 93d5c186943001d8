"""What became of the items that are not listed any more: each is asked about by itself, and "no answer" ends nobody."""

from __future__ import annotations

from msgspec.structs import replace

from the_loop.config import GithubSection
from the_loop.model import clean
from the_loop.sources.base import Known, SourceError
from the_loop.sources.github.client import Client
from the_loop.sources.github.identity import AnotherRepository, confirm, is_elsewhere
from the_loop.sources.github.look import SWEEP, Look
from the_loop.sources.github.record import Left
from the_loop.sources.github.rows import Issue, one


async def ask_about_missing(client: Client, section: GithubSection, look: Look) -> None:
    """Fill in who left, who lost the label, and who could not be found. Raises AnotherRepository.

    Whoever could not be asked about is not told of: nothing changes, and the next look asks again.
    """
    for number in look.in_turn(
        number for number, item in look.known.items() if item.is_open and number not in look.rows
    ):
        known = look.known[number]
        if known.is_away:
            look.away[number] = look.old.away.get(number, "")
        left = look.old.left.get(number)
        if left is None and _is_due(look, number, known):
            left = await _ask(client, section, look, number)
        if left is not None:
            look.left[number] = replace(left, at=min(left.at, look.now))
            look.away.pop(number, None)


def _is_due(look: Look, number: int, known: Known) -> bool:
    """An item without its label is asked about now and then; any other, and one that was not found, at once."""
    is_swept = number % SWEEP == look.turn % SWEEP
    return look.may_ask and (not known.is_away or is_swept or number in look.old.missing)


async def _ask(client: Client, section: GithubSection, look: Look, number: int) -> Left | None:
    """A record if the item ended; None for anything else."""
    before = look.before.get(number)
    is_pull, detail = before is not None and before.is_pull, ""
    look.questions += 1
    try:
        issue, reason = await _find(client, look, number, is_pull=is_pull)
    except AnotherRepository:
        raise
    except SourceError as fault:
        look.faults.append(fault)  # could not find out: nothing changes, and it is shown
        return None
    if issue is not None:
        is_pull = issue.pull_request is not None
        reason, detail = _reason(issue), clean(issue.state_reason or "")
        if not reason and not issue.has_label(section.label):
            look.unlabelled.append(number)
    return Left(reason, look.now, is_pull, detail) if reason else None


async def _find(client: Client, look: Look, number: int, *, is_pull: bool) -> tuple[Issue | None, str]:
    """The item as it is, or why there is none; neither where nobody can tell yet."""
    path = f"/repos/{look.name}/issues/{number}"
    answer = await client.get(path, look.away.get(number, ""))
    if answer.is_unchanged:
        return None, ""
    if await is_elsewhere(client, answer, look.old.id, look.name):
        return None, "transferred"
    if answer.status in (404, 410):
        repository = await confirm(client, look)
        if not is_pull and repository.has_issues is False:
            raise SourceError("its issues are turned off", "nothing ends; turn them on, or take it out of `repos`")
        return None, "deleted" if answer.status == 410 else _is_deleted(look, number)
    issue = one(answer.value, Issue, path)
    look.away[number] = answer.etag
    if look.known[number].id not in ("", issue.node_id):
        await confirm(client, look)
        raise SourceError(f"{path} is another item than the one known by this number")
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
