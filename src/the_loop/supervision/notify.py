"""The service manager's notify protocol: `READY`, `STATUS`, `WATCHDOG`, `STOPPING`, `RELOADING`.

Without `NOTIFY_SOCKET` every call does nothing. A broken socket is reported once and otherwise ignored. The variables
are removed from the environment, so that no child inherits them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping

import sdnotify


class Notifier:
    """Sends to the socket that the environment names. `complain` is called once with the reason if that fails."""

    def __init__(self, environ: MutableMapping[str, str], complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._is_broken = False
        self.watchdog_s = _watchdog_period_s(environ)
        self._notifier = self._connect(environ)
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            environ.pop(name, None)

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, status: str) -> None:
        self._send(f"STATUS={_line(status)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def reloading(self) -> None:
        self._send("RELOADING=1")

    def extend_timeout(self, seconds: float) -> None:
        """Extend the manager's timeout of the current start or stop by `seconds` from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def _connect(self, environ: MutableMapping[str, str]) -> sdnotify.SystemdNotifier | None:
        if not environ.get("NOTIFY_SOCKET"):
            return None
        try:
            notifier = sdnotify.SystemdNotifier(debug=True)  # debug: it raises instead of ignoring errors
            notifier.socket.setblocking(False)  # a full queue must not stop the poller
        except (OSError, TypeError, AttributeError) as error:
            self._broken(error)
            return None
        return notifier

    def _send(self, state: str) -> None:
        if self._notifier is None:
            return
        try:
            self._notifier.notify(state)
        except OSError as error:
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        if not self._is_broken:
            self._complain(f"cannot notify the service manager: {error}, ignoring")
        self._is_broken = True


def _watchdog_period_s(environ: MutableMapping[str, str]) -> float | None:
    """Half the manager's watchdog period in seconds; None if it is for another process or not a positive number."""
    pid = environ.get("WATCHDOG_PID", "")
    usec = environ.get("WATCHDOG_USEC", "")
    if (
        (pid and pid != str(os.getpid()))
        or not (usec.isascii() and usec.isdigit() and len(usec) < 20)
        or int(usec) == 0
    ):
        return None
    return int(usec) / 2e6


def _line(text: str) -> str:
    text = "".join(char if char.isprintable() else " " for char in text)
    return text.encode("ascii", "backslashreplace").decode()  # the library sends Latin-1
