"""A transport that asks the GitHub fake in the same process, so that a client may live in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.github.fake import FakeGitHub
    from support.github.values import Answer

_HEAD_BYTES = 600  # what an answer's head comes to, for the time it drips


class FakeTransport(httpx2.AsyncBaseTransport):
    """Answers from a FakeGitHub at its `base_url`.

    `sleep` passes time while an answer hangs or drips, until the client's read timeout; without it both time out at
    once. Requests to any other origin are kept in `foreign` and find nobody there. While `is_down`, no connection
    can be made at all.
    """

    def __init__(self, github: FakeGitHub, sleep: Callable[[float], Awaitable[object]] | None = None) -> None:
        self.foreign: list[httpx2.Request] = []
        self.is_down = False
        self._github = github
        self._sleep = sleep

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The fake's answer. Raises ConnectError, ReadTimeout or RemoteProtocolError as the network would."""
        if self.is_down or not self._is_ours(request):
            raise httpx2.ConnectError("connection refused", request=request)
        body = await request.aread()
        target = request.url.raw_path.decode("ascii")
        answer = self._github.handle(request.method, target, request.headers, body)
        await self._wait(request, answer)
        if answer.cut:
            raise httpx2.RemoteProtocolError("peer closed the connection within the body", request=request)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        return httpx2.Response(answer.status, headers=headers, content=answer.body, request=request)

    def _is_ours(self, request: httpx2.Request) -> bool:
        url, base = request.url, urlsplit(self._github.base_url)
        is_ours = (url.scheme, url.netloc.decode("ascii")) == (base.scheme, base.netloc)
        if not is_ours:
            self.foreign.append(request)
        return is_ours

    async def _wait(self, request: httpx2.Request, answer: Answer) -> None:
        if not answer.hang and not answer.drip_s:
            return
        read_s: float | None = request.extensions.get("timeout", {}).get("read")
        is_too_slow = answer.hang or (read_s is not None and answer.drip_s > read_s)
        if self._sleep is not None:
            dripping_s = answer.drip_s * (_HEAD_BYTES + len(answer.body))
            await self._sleep((read_s or float("inf")) if is_too_slow else dripping_s)
        if is_too_slow or self._sleep is None:
            raise httpx2.ReadTimeout("no byte came in time", request=request)
