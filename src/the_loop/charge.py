"""Being in charge of a state root: the lock is ours, and the claim is where others look for it."""

from __future__ import annotations

from collections.abc import Callable

from the_loop.core.model import Note, explain
from the_loop.lock import RunLock


class Charge:
    """`on_lost` is called once, when the root turns out to be another directory than the one that was locked."""

    def __init__(self, lock: RunLock, tell: Callable[[Note], None], on_lost: Callable[[], None]) -> None:
        self.is_lost = False
        self._lock = lock
        self._tell = tell
        self._on_lost = on_lost
        self._cannot_restore = False

    def check(self) -> bool:
        """True while the lock is ours; puts a removed pidfile back. Once false, nothing more is handed over.

        Where the path cannot be looked at, nothing is known to have changed: the lock is held until it is let go.
        """
        if self.is_lost:
            return False
        try:
            if not self._lock.is_intact():
                self._lose()
                return False
            if self._lock.restore_claim():
                self._cannot_restore = False
                self._tell(Note("poller.restored", {"path": str(self._lock.claim)}))
        except OSError as error:
            if not self._cannot_restore:
                fields = {"ref": str(self._lock.claim), "reason": f"cannot look after it: {explain(error)}"}
                self._tell(Note("item.failed", fields))
            self._cannot_restore = True
        return True

    def _lose(self) -> None:
        self.is_lost = True
        self._on_lost()
        reason = f"'{self._lock.directory}' is another directory than the one that was locked"
        self._tell(Note("poller.stopping", {"reason": reason}))
