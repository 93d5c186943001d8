"""GitHub's published description of its API, cut to what the poller asks: Prism reads the whole of it for ten seconds.

What is kept stays word for word, but for what the constants and functions below say: `ADDED` and `numeric` tell what
GitHub does at every endpoint and the description lists here and there only, `NULLABLE` where it is wrong, and `exact`
where it is read more strictly than it asks for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Json = dict[str, Any]

NAMED: Final = "/repos/{owner}/{repo}"
NUMERIC: Final = "/repositories/{repository_id}"
PATHS: Final = (
    "",
    "/issues",
    "/issues/comments",
    "/issues/{issue_number}",
    "/issues/{issue_number}/comments",
    "/labels",
    "/labels/{name}",
    "/pulls/comments",
    "/pulls/{pull_number}/comments",
    "/pulls/{pull_number}/reviews",
)
OTHERS: Final = ("/rate_limit",)
METHODS: Final = {"get", "post"}

# Which shared answer says what a status looks like, for the operations that do not list it: conditional requests,
# renamed repositories, credentials, limits and outages meet every operation alike. There is no shared answer for 429,
# which GitHub's page on rate limits names in one breath with 403, nor for 502 and 504.
ADDED: Final = {
    "301": "moved_permanently",
    "304": "not_modified",
    "307": "temporary_redirect",
    "401": "requires_authentication",
    "403": "forbidden",
    "404": "not_found",
    "410": "gone",
    "422": "validation_failed",
    "429": "forbidden",
    "500": "internal_error",
    "502": "internal_error",
    "503": "service_unavailable",
    "504": "internal_error",
}
# Where the real GitHub sends null against its own description: a review comment whose line is gone from the diff has no
# place in it any more (github/rest-api-description, issue 5568, open, for `position`; its successor `line` likewise).
NULLABLE: Final = {"pull-request-review-comment": ("line", "position")}


def cut(file: Path) -> Json:
    """The description in `file`, without whatever the paths above do not lead to."""
    whole = json.loads(file.read_bytes())
    paths = {NAMED + rest: whole["paths"][NAMED + rest] for rest in PATHS}
    paths |= {NUMERIC + rest: numeric(paths[NAMED + rest]) for rest in PATHS}
    paths |= {path: whole["paths"][path] for path in OTHERS}
    paths = {
        path: {method: completed(item[method]) for method in item.keys() & METHODS} for path, item in paths.items()
    }
    components = _components(whole, paths)
    for name, properties in NULLABLE.items():
        for key in properties:
            components["schemas"][name]["properties"][key]["nullable"] = True
    kept = {key: whole[key] for key in ("openapi", "info", "servers")}
    return cast("Json", exact({**kept, "paths": paths, "components": components}))


def completed(operation: Json) -> Json:
    """With the answers that every operation may give; those that it lists itself stay as they are."""
    added = {status: {"$ref": f"#/components/responses/{name}"} for status, name in ADDED.items()}
    return {**operation, "responses": {**added, **operation["responses"]}}


def numeric(item: Json) -> Json:
    """The same path for a repository's lasting id, as in every `Link` and `Location` that GitHub sends.

    The description does not have it. The answers are those of the path with the name.
    """
    id_ = {"$ref": "#/components/parameters/repository-id"}
    names = [{"$ref": f"#/components/parameters/{name}"} for name in ("owner", "repo")]
    return {
        method: {
            **operation,
            "operationId": f"{operation['operationId']}-by-id",
            "parameters": [id_, *(one for one in operation["parameters"] if one not in names)],
        }
        for method, operation in item.items()
    }


def exact(value: object) -> object:
    """The same with every object closed: a key that the fake made up is one that a client could come to lean on.

    And without `nullable` where no `type` stands beside it, which OpenAPI 3.0.3 gives no meaning. NB: the validator in
    Prism does not compile a schema that has one, and Prism then lets every answer pass.
    """
    if isinstance(value, list):
        return [exact(one) for one in value]
    if not isinstance(value, dict):
        return value
    is_void = "type" not in value and isinstance(value.get("nullable"), bool)
    inner = {key: exact(one) for key, one in value.items() if not (is_void and key == "nullable")}
    is_object = value.get("type") == "object" and "properties" in value
    return {"additionalProperties": False, **inner} if is_object else inner


def _components(whole: Json, paths: Json) -> Json:
    """Those that the paths refer to, and those that these refer to."""
    found: Json = {}
    waiting = list(_references(paths))
    while waiting:
        _, _, kind, name = waiting.pop().split("/")
        if name not in found.setdefault(kind, {}):
            found[kind][name] = whole["components"][kind][name]
            waiting += _references(found[kind][name])
    return found


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
