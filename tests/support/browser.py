"""A headless Chromium that shows one page, asked over the pipe of its developer tools.

with Browser(tmp_path) as browser:
    browser.show(file, width=390, dark=True)
    assert browser.asks("document.title") == "…"
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S: Final = 20
_SWITCHES: Final = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-background-networking --remote-debugging-pipe"
)


class Browser:
    """`told` has every message that is not an answer: requests, entries of the console, dialogs."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium")
        assert program is not None, "no chromium: run `make test-page`, which installs it"
        self.told: list[dict[str, Any]] = []
        self._numbers = count(1)
        self._session: str | None = None
        to_read, self._to_write = os.pipe()
        from_read, to_answer = os.pipe()
        line = f"exec {program} {_SWITCHES} --user-data-dir={shlex.quote(str(folder / 'profile'))} about:blank"
        shell = f"{line} 3<&{to_read} 4>&{to_answer}"
        log = (folder / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            ["timeout", str(10 * _PATIENCE_S), "bash", "-c", shell],  # dash knows descriptors of one digit only
            pass_fds=(to_read, to_answer),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        log.close()
        os.close(to_read)
        os.close(to_answer)
        self._answers = os.fdopen(from_read, "rb", buffering=0)
        self._rest = b""

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_exception: object) -> None:
        self._process.terminate()
        self._process.wait(_PATIENCE_S)
        os.close(self._to_write)
        self._answers.close()

    def show(self, file: Path, *, width: int, dark: bool = False) -> None:
        """Load the file in a window of this width in CSS pixels, that of a phone if it is narrow."""
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.told.clear()
        self.call("Page.navigate", url=file.as_uri())
        while not any(one["method"] == "Page.loadEventFired" for one in self.told):
            self._keep(self._message())

    def asks(self, expression: str) -> Any:
        """The value of an expression on the page; its own policy does not hold for what we ask."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != number:
            self._keep(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _keep(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self.told.append(message)

    def _message(self) -> dict[str, Any]:
        """The next message. `timeout` ends a browser that says nothing, and with it the pipe."""
        while b"\0" not in self._rest:
            part = self._answers.read(1 << 16)
            assert part, "the browser ended, see chromium.log"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
