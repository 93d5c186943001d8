"""The source `telegram` keeps what is asked of every source, over HTTP with the fake."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from contract.source_suite import Bench, SourceSuite
from support.github import faults
from support.telegram.fake import ALICE, GROUP, FakeTelegram, TelegramServer
from the_loop.lock import RunLock
from the_loop.sources.telegram import claim

CHATS = (ALICE, GROUP)
DAMAGES = {
    "server error": faults.server_error(),
    "half of the JSON": faults.half_json(),
    "a web page": faults.html(),
    "cut off": faults.cut(),
    "not found": faults.reply(404, {"ok": False, "error_code": 404, "description": "Not Found"}),
    "unauthorized": faults.reply(401, {"ok": False, "error_code": 401, "description": "Unauthorized"}),
    "something else": faults.reply(200, {"ok": True, "result": {}}),
}


class _Free:
    """A lock that everybody holds: here one process has many sources of one token, as one after the other."""

    def __init__(self, directory: Path, _name: str) -> None:
        self.directory, self.claim, self.identity = directory, directory / "claim.pid", "1:1"

    def is_intact(self) -> bool:
        return True

    def restore_claim(self) -> bool:
        return False

    def close(self) -> None: ...


class Chats(Bench):
    """A chat is a part."""

    provider = "telegram"
    author = str(ALICE)
    breaks = tuple(DAMAGES)
    endings: ClassVar = ("left", "kicked")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.telegram = FakeTelegram(time.time, longest_poll_s=0.0)
        self._server = TelegramServer(self.telegram)
        self._server.__enter__()
        (folder / "token").write_text(self.telegram.token)
        (folder / "token").chmod(0o600)
        self._patches: list[Any] = [
            mock.patch.object(claim, "claims_folder", return_value=folder / "claims"),
            mock.patch.object(RunLock, "attempt", _Free),
        ]
        for patch in self._patches:
            patch.start()
        self._count = 0
        self._aside: Path | None = None

    def section(self, name: str) -> dict[str, Any]:
        return {"token_file": str(self.folder / "token"), "api_url": self.telegram.base_url}

    def add_item(self, part: int = 0) -> str:
        chat = CHATS[part] if self._count < len(CHATS) else ALICE + 100 + self._count
        self._count += 1
        self.telegram.say(chat, "please", by=ALICE)
        return f"telegram:mine/{chat}"

    def write(self, ref: str, text: str) -> str:
        return f"comment:{self.telegram.say(_chat(ref), text, by=ALICE)}"

    def end(self, ref: str, how: str) -> None:
        self.telegram.set_member(_chat(ref), how)

    def lose(self, ref: str) -> None:
        self._aside = self._transcript(ref)
        self._aside.rename(self.folder / "aside")

    def break_all(self, how: str) -> None:
        self.telegram.fail(".", DAMAGES[how], times=None)

    def break_part(self, ref: str) -> None:
        self.lose(ref)
        self._transcript(ref).mkdir()

    def mend(self) -> None:
        self.telegram.faults.clear()
        if self._aside is not None:
            if self._aside.is_dir():
                self._aside.rmdir()
            (self.folder / "aside").rename(self._aside)
            self._aside = None

    def pass_time(self) -> None:
        """Nothing here depends on it."""

    def close(self) -> None:
        for patch in self._patches:
            patch.stop()
        self._server.__exit__(None, None, None)

    def _transcript(self, ref: str) -> Path:
        place = self.folder / "root" / "local" / "sources" / "mine.d" / "chats"
        return place / f"telegram,mine+{_chat(ref)}.json"


def _chat(ref: str) -> int:
    return int(ref.rpartition("/")[2])


class TestTelegram(SourceSuite):
    bench_type = Chats
