"""Prism as a validating proxy: what is asked and answered through it has to be as a description says."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from support.github.fake import FakeGitHub
    from support.github.values import Answer

_START_S: Final = 60.0
_STOP_S: Final = 10.0
_HIDDEN: Final = {"Location": "X-Location"}
_UP: Final = re.compile(r"Prism is listening on (http://127\.0\.0\.1:\d+)")


class Prism:
    """`prism proxy --errors` in front of `upstream`; `url` holds from the entry of the context on.

    It answers with a problem (`violations`) in place of whatever breaks the description, be it request or answer.
    """

    def __init__(self, program: Path, description: Path, upstream: str, log: Path) -> None:
        self.url = ""
        self._argv = ["node", str(program), "proxy", "--errors", "--host", "127.0.0.1", "--port", "0"]
        self._argv += [str(description), upstream]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.url = self._wait_until_up(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            text = self._log.read_text("utf-8", "replace")
            if found := _UP.search(text):
                return found[1]
            if process.poll() is not None:
                raise RuntimeError(f"Prism ended with {process.returncode}: {text}")
            time.sleep(0.05)
        raise RuntimeError(f"Prism did not begin to listen: {self._log.read_text('utf-8', 'replace')}")


class Described:
    """Prism at `url`, and behind it, at `upstream`, the fake of the test that runs."""

    def __init__(self) -> None:
        self.url = self.upstream = ""
        self.github: FakeGitHub | None = None

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The fake's answer, a redirect's `Location` as `X-Location`: else Prism would follow it, and not look."""
        assert self.github is not None
        answer = self.github.handle(method, target, headers, body)
        if not 300 <= answer.status < 400:
            return answer
        return replace(answer, headers={_HIDDEN.get(name, name): value for name, value in answer.headers.items()})


def violations(answer: httpx2.Response) -> list[str]:
    """How request and answer break the description, in Prism's words; its warnings count as well."""
    if answer.headers.get("content-type", "").startswith("application/problem+json"):
        problem: dict[str, Any] = answer.json()
        return [problem["title"], *(_sentence(one) for one in problem.get("validation", ()))]
    told = answer.headers.get("sl-violations")
    return [] if told is None else [_sentence(one) for one in json.loads(told)]


def _sentence(violation: dict[str, Any]) -> str:
    return f"{'.'.join(violation.get('location', ()))}: {violation['message']}"


class Inspecting(httpx2.AsyncHTTPTransport):
    """A client's transport that notes what Prism finds; the client itself may take it for an answer of GitHub's."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await super().handle_async_request(request)
        await answer.aread()
        self.violations += [f"{request.method} {request.url}: {one}" for one in violations(answer)]
        return answer
