"""What tests of whole GitHub stories share: how they begin, answers changed on their way, and what arrived."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from support.github import faults
from support.github.faults import Effect
from support.github.rows import encode
from support.github.values import Answer, Rules
from support.world import World, carried, scene, short

LISTING: Final = r"/issues\?labels"
COMMENTS: Final = r"/issues/comments\?sort"
REVIEW_COMMENTS: Final = r"/pulls/comments\?sort"
LINGER_CYCLES: Final = 4  # the one that sees it left, and three minutes
FAILURES: Final[dict[str, Effect]] = {
    "502": faults.server_error(),
    "half": faults.half_json(),
    "html": faults.html(),
    "cut": faults.cut(),
    "hang": faults.hang(),
    "limit": faults.secondary_limit(30),
    "limit in 200": faults.limit_in_200(),
    "object": faults.reply(200, {"total_count": 0, "items": []}),
    "404": faults.reply(404, {"message": "Not Found"}),
}


async def begun(
    folder: Path, rules: Rules | None = None, *, pull_request: bool = False, author: str = "octocat", **options: Any
) -> tuple[World, int]:
    """A world after its first look, and the number of its one item."""
    world = scene(folder, rules, **options)
    number = world.add_issue(pull_request=pull_request, author=author)
    await world.cycle()
    return world, number


# --- answers changed on their way ---


def edited(change: Callable[[Any], Any], *, is_lasting: bool = False) -> Effect:
    """The true answer with its JSON changed, and a validator of its own; a lasting one is unchanged from then on."""

    def effect(genuine: Callable[[], Answer]) -> Answer:
        answer = genuine()
        body = encode(change(json.loads(answer.body)))
        etag = answer.headers["ETag"] if is_lasting else f'W/"{sha256(body).hexdigest()}"'
        return replace(answer, body=body, headers={**answer.headers, "ETag": etag})

    return effect


def without(number: int) -> Effect:
    """A listing in which this item is missing."""
    return edited(lambda rows: [row for row in rows if row["number"] != number])


# --- what arrived ---


def keys(kind: str, ids: Iterable[int]) -> list[str]:
    return [f"{kind}:{id_}" for id_ in ids]


def thread_of(world: World, number: int) -> list[str]:
    """What the item's last spawn carried."""
    spawns = [got for got in world.received if got["kind"] == "spawn" and got["ref"].endswith(f"#{number}")]
    return [f"{entry['kind']}:{entry['id']}" for entry in spawns[-1]["thread"]]


def everything_of(world: World, number: int) -> list[str]:
    """All that arrived of an item, by itself or carried by a spawn, in order."""
    mine = (short(name) for name in carried(world.received))
    return [name.partition("/")[2] for name in mine if name.startswith(f"{number}/")]
