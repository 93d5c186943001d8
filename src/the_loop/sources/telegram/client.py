"""The client of the Telegram Bot API: one request, and what an answer means.

The token is a part of each URL: no error names one, and none keeps the library's error, whose request has it.
Rule: Telegram Bot API, "Making requests", getUpdates, ResponseParameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx2

from the_loop import __version__
from the_loop.sources.base import Limited, SourceError, Unanswered, Usage
from the_loop.sources.http import Http
from the_loop.sources.limits import RateLimiter, RateLimiters

KINDS: Final = ("message", "edited_message", "my_chat_member")
LONGEST_POLL_S: Final = 50  # what the server waits for news at most
REQUEST_LIMIT_S: Final = 20.0  # for one request in total, beside the wait that it asks for
BODY_LIMIT: Final = 32 << 20  # bytes; a hundred messages have far less
_CONFLICT_S: Final = 65.0  # longer than the other one's poll
_LONGEST_WAIT_S: Final = 86_400.0
_SHOWN: Final = 200


class Rejected(SourceError):
    """The token is not valid (401, 404)."""


class Client:
    """`earlier` waits for the rest of a limit that an earlier life met, and that was to last `wait_s` seconds."""

    def __init__(
        self,
        api_url: str,
        limiters: RateLimiters,
        *,
        earlier: RateLimiter | None = None,
        wait_s: float = 0.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._base = api_url.rstrip("/")
        self._limiters = limiters
        self._earlier, self._wait_s = earlier, wait_s
        self._http = Http({"User-Agent": f"the-loop/{__version__}"}, transport)
        self._requests = 0

    async def me(self, token: str) -> tuple[int, str]:
        """The bot's id and its user name. Raises SourceError and Limited."""
        value = await self.profile(token)
        number, name = value.get("id"), value.get("username")
        if type(number) is not int or not isinstance(name, str):
            raise SourceError("getMe: the answer does not name a bot")
        return number, name

    async def profile(self, token: str) -> Mapping[str, Any]:
        """What the bot's account is like. Raises SourceError and Limited."""
        value = await self._ask(token, "getMe", {})
        return value if isinstance(value, dict) else {}

    async def has_webhook(self, token: str) -> bool:
        """True if the bot's updates are sent elsewhere. Raises SourceError and Limited."""
        value = await self._ask(token, "getWebhookInfo", {})
        return bool(value.get("url")) if isinstance(value, dict) else False

    async def updates(self, token: str, offset: int | None, wait_s: int) -> Sequence[Any]:
        """What came since, after at most `wait_s` seconds. All before `offset` is gone then, for everybody.

        Raises SourceError and Limited.
        """
        asked: dict[str, Any] = {"timeout": wait_s, "limit": 100, "allowed_updates": KINDS}
        if offset is not None:
            asked["offset"] = offset
        value = await self._ask(token, "getUpdates", asked, wait_s)
        if not isinstance(value, list):
            raise SourceError("getUpdates: the answer is not a list")
        return value

    def usage(self) -> Usage:
        return Usage(self._requests)

    async def close(self) -> None:
        await self._http.close()

    async def _ask(self, token: str, method: str, parameters: Mapping[str, Any], wait_s: float = 0.0) -> Any:
        limiter = self._limiters.of(self._base, token)
        if self._earlier is not None:
            limiter.resume(self._earlier.wait_left_s, self._wait_s)
            self._earlier = None
        if limiter.wait_left_s > 0:
            raise Limited(f"{method}: the rate limit of this bot", limiter.wait_left_s)
        self._requests += 1
        try:
            response, content = await self._http.send(
                "POST",
                f"{self._base}/bot{token}/{method}",
                shown=method,
                headers={"Content-Type": "application/json"},
                body=json.dumps(parameters).encode(),
                limit_s=REQUEST_LIMIT_S + wait_s,
                size=BODY_LIMIT,
            )
        except SourceError as error:
            raise type(error)(error.problem.replace(token, "…"), error.hint) from None
        return _result(method, response.status_code, _decoded(content), limiter, token)


def _result(method: str, status: int, answer: Mapping[str, Any], limiter: RateLimiter, token: str) -> Any:
    """What was asked for. Raises SourceError and Limited."""
    if status == 200 and answer.get("ok") is True and "result" in answer:
        limiter.clear()
        return answer["result"]
    said = answer.get("description")
    said = said[:_SHOWN].replace(token, "…") if isinstance(said, str) else ""
    if status == 429:
        wait_s = _retry_after_s(answer)
        wait_s = limiter.guess_s() if wait_s is None else wait_s
        limiter.hold(wait_s)
        raise Limited(f"{method}: rate limit (429)", wait_s)
    if status == 409:
        if "webhook" in said.lower():
            problem = f"{method}: the bot has a webhook, which takes its updates (409); remove it with deleteWebhook"
            raise Limited(problem, _CONFLICT_S)
        raise Limited(f"{method}: another program polls this bot, on another machine or as another user", _CONFLICT_S)
    if status in (401, 404):
        raise Rejected(f"{method}: the token was rejected ({status}) {said}".rstrip(), "check the token of this source")
    if status >= 500:
        wait_s = _retry_after_s(answer)
        if wait_s is not None:
            limiter.hold(wait_s)
            raise Limited(f"{method}: the server asks for a pause ({status})", wait_s)
        raise Unanswered(f"{method}: status {status} {said}".rstrip())
    if status == 200:
        raise Unanswered(f"{method}: the answer is not one of the Bot API")
    raise SourceError(f"{method}: status {status} {said}".rstrip())


def _retry_after_s(answer: Mapping[str, Any]) -> float | None:
    parameters = answer.get("parameters")
    wait_s = parameters.get("retry_after") if isinstance(parameters, dict) else None
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not wait_s > 0:
        return None
    return float(min(wait_s, _LONGEST_WAIT_S))


def _decoded(content: bytes) -> Mapping[str, Any]:
    """The object that was sent, of which every part can be written again; an empty one for anything else."""
    try:
        answer = json.loads(content)
        json.dumps(answer)  # may be nested too deeply for that only
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
