"""What GitHub answered when octokit recorded a scenario, served again on loopback, exactly and to nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from support.github.values import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HOST: Final = "https://api.github.com"
_FRAMING: Final = {"connection", "content-length"}  # of the connection it was recorded on
_NOT_RECORDED: Final = Answer(599, {}, b"")


class Recording:
    """Answers in the order of the recording; each is kept for whoever asks again, until a later one takes its place.

    `base_url` takes the place of the recorded host. `asked` is every request, `strange` those that were not recorded;
    What lies below the path `empty`, which the scenario leaves out, is answered with an empty list.
    """

    def __init__(self, file: Path, *, empty: str | None = None) -> None:
        self.base_url = _HOST
        self.asked: list[str] = []
        self.strange: list[str] = []
        self._empty = empty
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        for one in json.loads(file.read_bytes()):
            if one["scope"] != f"{_HOST}:443":
                raise ValueError(f"{file}: recorded at {one['scope']}")
            self._waiting.setdefault(f"{one['method'].upper()} {one['path']}", []).append(one)
        self.calls = list(self._waiting)

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        call = f"{method} {target}"
        self.asked.append(call)
        if self._empty is not None and call.startswith(f"GET {self._empty}/"):
            return Answer(200, {"Content-Type": "application/json"}, b"[]")
        recorded = self._waiting.get(call, [])
        if not recorded or (json.loads(body) if body else "") != recorded[0]["body"]:
            self.strange.append(call)
            return _NOT_RECORDED
        return self._answer(recorded.pop(0) if len(recorded) > 1 else recorded[0], headers)

    def _answer(self, one: Mapping[str, Any], asked: Mapping[str, str]) -> Answer:
        answered = {name: self._here(str(value)) for name, value in one["headers"].items() if name not in _FRAMING}
        if "etag" in answered and asked.get("if-none-match") == answered["etag"]:
            # No scenario asks twice. What an unchanged answer is like, HTTP itself says.
            return Answer(304, {name: answered[name] for name in ("etag", "date")})
        return Answer(one["status"], answered, self._here(json.dumps(one["response"])).encode())

    def _here(self, text: str) -> str:
        return text.replace(_HOST, self.base_url)
