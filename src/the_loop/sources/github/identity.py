"""Which repository answers under a name: names move and are taken again, the numeric id stays."""

from __future__ import annotations

from the_loop.sources.base import SourceError
from the_loop.sources.github.client import Answer, Client
from the_loop.sources.github.poll import RepositoryPoll
from the_loop.sources.github.record import Record
from the_loop.sources.github.rows import Repository, one


class AnotherRepository(SourceError):
    """The name that a repository had is another one's now. Nothing found under it says anything of the first."""


async def ask_repository(client: Client, name: str) -> Repository:
    """What answers under this name. Raises SourceError, also where nothing does: nobody in it is gone for that."""
    path = f"/repos/{name}"
    answer = await client.get(path)
    if answer.status != 200:
        raise SourceError(
            f"'{name}' is not found with this token", "check the name, apiUrl, and what the token may read"
        )
    return one(answer.value, Repository, path)


async def confirm(client: Client, poll: RepositoryPoll) -> Repository:
    """The repository of this look, asked by its name. Raises AnotherRepository and SourceError.

    While its issues are turned off, each of them answers as if it was deleted; nothing in it is.
    """
    found = await ask_repository(client, poll.name)
    if found.id != poll.old.id:
        raise AnotherRepository(f"'{poll.name}' is another repository now")
    poll.confirmed = found
    return found


async def find_again(client: Client, record: Record) -> str | None:
    """The present name of a repository whose name was taken; None if it is gone. Raises SourceError."""
    path = f"/repositories/{record.id}"
    answer = await client.get(path)
    return one(answer.value, Repository, path).full_name if answer.status == 200 else None


async def is_elsewhere(client: Client, answer: Answer, repository: int, name: str) -> bool:
    """True if a redirect led to another repository than the one asked. Raises SourceError."""
    parts = answer.moved.split("/")  # /repositories/<id>/…, or /repos/<owner>/<name>/…
    if len(parts) > 2 and parts[1] == "repositories":
        return parts[2] != str(repository)
    if len(parts) > 3 and parts[1] == "repos":
        there = f"{parts[2]}/{parts[3]}"
        return there.lower() != name.lower() and (await ask_repository(client, there)).id != repository
    return False
