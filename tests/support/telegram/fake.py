"""A Telegram Bot API in memory: chats in which tests write, and `handle`, which answers the requests of one bot.

It plays the rules that a poller has to live with: an update is gone once a higher offset was asked for, whatever
became of it; of two that ask at once the older one gets a 409; updates are kept for 24 hours; after a week without any
the next id is random. It counts what must not happen: conflicts, and requests for updates at the same time.

    telegram = FakeTelegram(clock)
    telegram.say(ALICE, "please")
    with TelegramServer(telegram) as server:
        ...  # a client at server.url
    assert telegram.conflicts == 0

Rule: Telegram Bot API, "Getting updates", getUpdates, Message, ChatMemberUpdated, ResponseParameters.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from support.github.faults import Fault
from support.github.values import Answer
from support.http_server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from support.github.faults import Effect

ALICE: Final = 1001  # a person; also the chat with her
BOB: Final = 1002
GROUP: Final = -42
FORUM: Final = -1001000000042  # a supergroup with topics
KEPT_S: Final = 86_400.0
QUIET_S: Final = 7 * 86_400.0
LONGEST_POLL_S: Final = 50
_DEFAULT_KINDS: Final = frozenset({"message", "edited_message", "my_chat_member", "channel_post"})
_NAMES: Final = {ALICE: "Alice", BOB: "Bob"}


@dataclass(eq=False)
class _Poll:
    """A request for updates that is in flight."""

    news: asyncio.Event | None = None  # of the server's loop
    loop: asyncio.AbstractEventLoop | None = None
    is_ousted: bool = False

    def notify(self) -> None:
        if self.news is not None and self.loop is not None:
            self.loop.call_soon_threadsafe(self.news.set)


@dataclass(frozen=True)
class Asked:
    """One entry of the log."""

    method: str
    parameters: Mapping[str, Any]
    status: int


@dataclass(frozen=True)
class _Kept:
    at: float
    update: Mapping[str, Any]


@dataclass
class FakeTelegram:
    """The chats of one bot, and what goes wrong. `clock`: epoch seconds.

    `longest_poll_s` bounds the wait that a client asks for.
    `latency_s`: how long each request for updates takes at least, over HTTP.
    """

    clock: Callable[[], float]
    token: str = "123456:a-Secret_token"
    username: str = "loop_bot"
    longest_poll_s: float = LONGEST_POLL_S
    latency_s: float = 0.0
    seed: int = 7
    base_url: str = "https://api.telegram.org"

    conflicts: int = 0
    most_in_flight: int = 0
    webhook: str = ""
    sees_groups: bool = True
    log: list[Asked] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    titles: dict[int, str] = field(default_factory=lambda: {GROUP: "The group", FORUM: "The forum"})

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self._random = random.Random(self.seed)
        self._next_id = 700_000_000
        self._last_at: float | None = None
        self._kept: list[_Kept] = []
        self._in_flight: list[_Poll] = []
        self._kinds = _DEFAULT_KINDS
        self._message_ids: dict[int, int] = {}
        self._messages: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def bot_id(self) -> int:
        return int(self.token.partition(":")[0])

    # --- what people do ---

    def say(self, chat: int, text: str | None = None, *, by: int | None = None, **fields: Any) -> int:
        """Somebody writes in a chat (with a person: that person); the message's id. `fields`: more of `Message`."""
        user = by if by is not None else (chat if chat > 0 else ALICE)
        sender = {"id": user, "is_bot": False, "first_name": _NAMES.get(user, f"User {user}")}
        message: dict[str, Any] = {"from": sender, **fields}
        if text is not None:
            message["text"] = text
        return self._post(chat, message)

    def service(self, chat: int, **fields: Any) -> int:
        """A message that Telegram itself writes."""
        return self._post(chat, fields)

    def edit(self, chat: int, message_id: int, text: str) -> None:
        with self.lock:
            message = self._messages[chat, message_id]
            message |= {"text": text, "edit_date": int(self.clock())}
            self._add("edited_message", dict(message))

    def set_member(self, chat: int, status: str, *, by: int = ALICE) -> None:
        """The bot's own standing in a chat becomes this: `member`, `left`, `kicked`."""
        sender = {"id": by, "is_bot": False, "first_name": _NAMES.get(by, "X")}
        bot = {"id": self.bot_id, "is_bot": True, "first_name": "Loop", "username": self.username}
        change = {
            "chat": self._chat(chat),
            "from": sender,
            "date": int(self.clock()),
            "old_chat_member": {"user": bot, "status": "member"},
            "new_chat_member": {"user": bot, "status": status},
        }
        with self.lock:
            self._add("my_chat_member", change)

    def migrate(self, chat: int, *, to: int = -1001000000077, new_first: bool = False) -> int:
        """A group becomes a supergroup; its new id. Both chats get their message about it."""
        with self.lock:
            self.titles[to] = self.titles.get(chat, "A group")
            said: list[tuple[int, dict[str, Any]]] = [
                (chat, {"migrate_to_chat_id": to}),
                (to, {"migrate_from_chat_id": chat}),
            ]
            for place, fields in reversed(said) if new_first else said:
                self.service(place, **fields)
        return to

    def add_topic(self, chat: int, name: str) -> int:
        """The `message_thread_id` of a new topic."""
        number = self._message_ids.get(chat, 0) + 1
        return self.service(
            chat, is_topic_message=True, message_thread_id=number, forum_topic_created={"name": name, "icon_color": 1}
        )

    def add_raw(self, update: Mapping[str, Any]) -> None:
        """An update of any shape; it gets an id if it has none."""
        with self.lock:
            self._keep({"update_id": self._take_id(), **update})

    def fail(self, pattern: str, effect: Effect, *, times: int | None = 1, after: int = 0) -> Fault:
        """Hit requests whose method matches with `effect`."""
        fault = Fault(re.compile(pattern), effect, times, after, True)
        self.faults.append(fault)
        return fault

    # --- what tests read ---

    @property
    def waiting(self) -> list[int]:
        """The ids of updates that were not confirmed, in order."""
        with self.lock:
            self._drop_old()
            return [kept.update["update_id"] for kept in self._kept if "update_id" in kept.update]

    def asked(self, method: str = "getUpdates") -> list[Mapping[str, Any]]:
        with self.lock:
            return [one.parameters for one in self.log if one.method == method]

    @property
    def in_flight(self) -> int:
        with self.lock:
            return len(self._in_flight)

    # --- what clients ask ---

    def handle(self, verb: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """The answer to one request, at once: whoever waits for news finds none."""
        with self.lock:
            method, parameters = self._read(target, body)
            early = self._early(method, target, parameters)
            if early is not None:
                return self._noted(method, parameters, early)
            poll = self._begin()
            self._in_flight.remove(poll)
            return self._noted(method, parameters, self._updates(parameters))

    def serve(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer | Coroutine[Any, Any, Answer]:
        """The same over HTTP, where a request may wait; it is over when its client is gone."""
        with self.lock:
            method, parameters = self._read(target, body)
            early = self._early(method, target, parameters)
            return self._noted(method, parameters, early) if early is not None else self._wait(parameters)

    async def _wait(self, parameters: Mapping[str, Any]) -> Answer:
        with self.lock:
            poll = self._begin()
            poll.news, poll.loop = asyncio.Event(), asyncio.get_running_loop()
            self._confirm(parameters)
        try:
            await asyncio.sleep(self.latency_s)
            limit_s = min(float(parameters.get("timeout", 0)), self.longest_poll_s)
            if not self.waiting and limit_s > 0 and not poll.is_ousted:
                poll.news.clear()
                try:
                    async with asyncio.timeout(limit_s):
                        while not self.waiting and not poll.is_ousted:
                            await poll.news.wait()
                            poll.news.clear()
                except TimeoutError:
                    pass
            with self.lock:
                answer = _CONFLICT if poll.is_ousted else self._updates(parameters)
                return self._noted("getUpdates", parameters, answer)
        finally:
            with self.lock:
                if poll in self._in_flight:
                    self._in_flight.remove(poll)

    def _begin(self) -> _Poll:
        """A request for updates begins: one that is in flight ends with a 409."""
        poll = _Poll()
        self._in_flight.append(poll)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        for older in self._in_flight[:-1]:
            if not older.is_ousted:
                self.conflicts += 1
                older.is_ousted = True
                older.notify()
        return poll

    def _read(self, target: str, body: bytes) -> tuple[str, dict[str, Any]]:
        method = target.partition("?")[0].rpartition("/")[2]
        return method, json.loads(body) if body else {}

    def _early(self, method: str, target: str, parameters: Mapping[str, Any]) -> Answer | None:
        """The answer to all that cannot wait; None for a request for updates that is right."""
        fault = next((fault for fault in self.faults if fault.takes(method)), None)
        if fault is not None:
            return fault.effect(lambda: self._updates(parameters))
        if f"/bot{self.token}/" not in target:
            return _error(401, "Unauthorized")
        if method == "getMe":
            me = {"id": self.bot_id, "is_bot": True, "first_name": "Loop", "username": self.username}
            return _ok({**me, "can_read_all_group_messages": self.sees_groups})
        if method == "getWebhookInfo":
            return _ok({"url": self.webhook, "pending_update_count": len(self._kept)})
        if method == "deleteWebhook":
            self.webhook = ""
            return _ok(True)
        if method != "getUpdates":
            return _error(404, "Not Found: method not found")
        if self.webhook:
            problem = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete it"
            return _error(409, problem)
        return None

    def _updates(self, parameters: Mapping[str, Any]) -> Answer:
        self._confirm(parameters)
        limit = min(max(int(parameters.get("limit", 100)), 1), 100)
        return _ok([kept.update for kept in self._kept[:limit]])

    def _confirm(self, parameters: Mapping[str, Any]) -> None:
        if "allowed_updates" in parameters:
            self._kinds = frozenset(parameters["allowed_updates"]) or _DEFAULT_KINDS
        self._drop_old()
        offset = int(parameters.get("offset", 0))
        if offset > 0:
            self._kept = [kept for kept in self._kept if (kept.update.get("update_id") or 0) >= offset]
        elif offset < 0:
            self._kept = self._kept[offset:]

    def _noted(self, method: str, parameters: Mapping[str, Any], answer: Answer) -> Answer:
        self.log.append(Asked(method, parameters, answer.status))
        return answer

    # --- the world ---

    def _post(self, chat: int, fields: Mapping[str, Any]) -> int:
        with self.lock:
            number = self._message_ids[chat] = self._message_ids.get(chat, 0) + 1
            message = {"message_id": number, "date": int(self.clock()), "chat": self._chat(chat), **fields}
            self._messages[chat, number] = message
            self._add("message", dict(message))
        return number

    def _chat(self, chat: int) -> dict[str, Any]:
        if chat > 0:
            return {"id": chat, "type": "private", "first_name": _NAMES.get(chat, f"User {chat}")}
        kind = "supergroup" if chat < -1_000_000_000_000 else "group"
        return {"id": chat, "type": kind, "title": self.titles.get(chat, f"Group {chat}")}

    def _add(self, kind: str, value: Mapping[str, Any]) -> None:
        if kind in self._kinds:
            self._keep({"update_id": self._take_id(), kind: value})

    def _take_id(self) -> int:
        now = self.clock()
        if self._last_at is not None and now - self._last_at >= QUIET_S:
            self._next_id = self._random.randrange(1, self._next_id)  # lower than all before: the worst case
        self._last_at = now
        self._next_id += 1
        return self._next_id - 1

    def _keep(self, update: Mapping[str, Any]) -> None:
        self._drop_old()
        self._kept.append(_Kept(self.clock(), update))
        for poll in self._in_flight:
            poll.notify()

    def _drop_old(self) -> None:
        now = self.clock()
        self._kept = [kept for kept in self._kept if now - kept.at < KEPT_S]


class TelegramServer(HttpServer):
    """Serves a FakeTelegram and tells it where it is."""

    def __init__(self, telegram: FakeTelegram, *, port: int = 0) -> None:
        super().__init__(telegram.serve, port=port)
        self._telegram = telegram

    def __enter__(self) -> Self:
        super().__enter__()
        self._telegram.base_url = self.url
        return self


def throttled(retry_after_s: int) -> Effect:
    """A 429, for `fail`."""
    problem = f"Too Many Requests: retry after {retry_after_s}"
    return lambda _genuine: _error(429, problem, parameters={"retry_after": retry_after_s})


def conflict() -> Effect:
    """A 409, as of another poller somewhere, for `fail`."""
    return lambda _genuine: _CONFLICT


def _ok(result: Any) -> Answer:
    return Answer(200, {"Content-Type": "application/json"}, json.dumps({"ok": True, "result": result}).encode())


def _error(status: int, description: str, **more: Any) -> Answer:
    body = {"ok": False, "error_code": status, "description": description, **more}
    return Answer(status, {"Content-Type": "application/json"}, json.dumps(body).encode())


_CONFLICT: Final = _error(
    409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
)
