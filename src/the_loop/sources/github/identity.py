"""The identity of repositories: names are changed and reused, the numeric id is stable."""

from __future__ import annotations

from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Answer, Client
from the_loop.sources.github.poll import RepositoryPoll
from the_loop.sources.github.record import Record
from the_loop.sources.github.rows import Repository, one


class AnotherRepository(SourceError):
    """Another repository has taken over the name. What was found under it says nothing about the first one."""


async def ask_repository(client: Client, name: str) -> Repository:
    """The repository with this name. Raises SourceError, also if it is not found: its items have not ended."""
    path = f"/repos/{name}"
    answer = await client.get(path)
    if answer.status != 200:
        hint = "check its name, apiUrl and the token's permissions"
        if client.is_anonymous:
            raise SourceError(
                f"cannot read '{name}': not found, and no token was sent", "set tokenFile or $GITHUB_TOKEN"
            )
        raise SourceError(f"cannot read '{name}': not found with this token", hint)
    return one(answer.value, Repository, path)


async def confirm(client: Client, poll: RepositoryPoll) -> Repository:
    """Request the repository of this poll by its name. Raises AnotherRepository and SourceError.

    Callers check `has_issues`: while issues are disabled, each of them answers as if it had been deleted.
    """
    found = await ask_repository(client, poll.name)
    if found.id != poll.old.id:
        raise AnotherRepository(f"'{poll.name}' is another repository now")
    poll.confirmed = found
    return found


async def find_again(client: Client, record: Record) -> str | None:
    """The present name of a repository whose name was taken over; None if it is gone. Raises SourceError."""
    path = f"/repositories/{record.id}"
    answer = await client.get(path)
    return one(answer.value, Repository, path).full_name if answer.status == 200 else None


async def is_elsewhere(client: Client, answer: Answer, repository: int, name: str) -> bool:
    """True if a redirect led to a repository other than the one requested. Raises SourceError."""
    parts = answer.moved.split("/")  # /repositories/<id>/…, or /repos/<owner>/<name>/…
    if len(parts) > 2 and parts[1] == "repositories":
        return parts[2] != str(repository)
    if len(parts) > 3 and parts[1] == "repos":
        there = f"{parts[2]}/{parts[3]}"
        return there.lower() != name.lower() and (await ask_repository(client, there)).id != repository
    return False
