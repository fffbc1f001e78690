"""Carrier of several hosts: the logs of this process at a server, and the one thread that exchanges with it."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tidegate.shared_log.carrier import MAX_MEMBERS, Carrier, NoConnection, Unshared
from tidegate.shared_log.store_log import PROMPT, Answer, Ask, Limits, StoreLog, checked

logger = logging.getLogger("tidegate")

SERVER_TIMEOUT_SECONDS = 0.25
"""Seconds after which the server counts as away. Source: keygate 0.1.11."""

GONE_AFTER_SECONDS = 6.0
"""Seconds without a beat after which a member counts as dead. Chosen: three beats."""

EXPIRY_SECONDS = 600
"""Seconds after which an unused log is removed by the server. Chosen: ten minutes, longer than a window of a minute."""

LEAST_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
"""Seconds between two attempts to reach a server that is away. Chosen: a restart takes seconds."""

RETRY_ABSENCE_SHARE = 0.1
"""Share of the time since the server went away after which it is tried again. Derived: one second late after ten
seconds, as the members' return takes another one on a busy machine."""

EXCHANGE_DRIFT_FACTOR = 1.01
"""Factor on the quickest exchange with each later one, so that about a hundred renew it."""


class LogServer(Protocol):
    """A server, used by one thread."""

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        """Append, beat and read in one round trip;

        None where this member left, or where the log has too many members. The answer has all entries since
        `ask.cursor`, or since the oldest one that is kept.
        Any error of the client may leave it; `Unshared` means that this log alone cannot be shared.
        """

    def close(self) -> None: ...


class StoreCarrier(Carrier):
    """The logs of this process at one server, of the given kind. `place` is its URL without a password, or given.

    `secret` is a digest of the whole URL: all hosts must name a credential alike, and they have that in common. `error`
    is the last failure of the server, empty while it answers.
    """

    def __init__(
        self, connect: Callable[[], LogServer], kind: str, url: str, place: str = "", limits: Limits = PROMPT
    ) -> None:
        self._connect, self._limits = connect, limits
        self.kind, self.place, self.secret = kind, place or shown(url), secret_of(url)
        self.is_chosen, self.reason = True, ""
        self._start()
        super().__init__()

    def _start(self) -> None:
        self.error = ""
        self._changed = threading.Condition()
        self._logs: list[StoreLog] = []
        self._leaving: list[StoreLog] = []
        self._thread: threading.Thread | None = None
        self._woken = self._closed = False
        self._store: LogServer | None = None
        self._told: set[str] = set()
        self._quickest, self._offset = math.inf, 0.0
        self._away_since, self._retry_at = math.inf, -math.inf

    def join(self, name: bytes, now: float) -> StoreLog | None:
        log = StoreLog(name, now, self._wake, self._forget, self._limits)
        with self._changed:
            if self._closed:
                return None
            self._logs.append(log)
        self._wake()
        return log

    def after_fork(self) -> None:
        if self._closed:
            return
        logs = self._logs
        self._start()
        self._logs = logs
        for log in logs:
            log.restart(time.monotonic(), self._wake, self._forget)

    def close(self) -> None:
        """Leave all logs; wait for the server no longer than one exchange may take."""
        for log in list(self._logs):
            log.close()
        with self._changed:
            self._closed = self._woken = True
            self.reason = "it was closed"
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * SERVER_TIMEOUT_SECONDS)

    def _wake(self) -> None:
        with self._changed:
            self._woken = True
            if self._thread is None and not self._closed:
                # Daemonic: a program that ends waits for no server.
                self._thread = threading.Thread(target=self._run, name="tidegate-shared-log", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _forget(self, log: StoreLog) -> None:
        with self._changed:
            if log in self._logs:
                self._logs.remove(log)
                self._leaving.append(log)
        self._wake()

    def _run(self) -> None:
        while True:
            with self._changed:
                logs, leaving = list(self._logs), list(self._leaving)
                self._leaving.clear()
                closed = self._closed
            now = time.monotonic()
            if now >= self._retry_at:
                for log in leaving:
                    self._exchange(log, True)
                for log in logs:
                    if log.due_at() <= now:
                        self._exchange(log, False)
            if closed:
                self._disconnect()
                return
            due = min((log.due_at() for log in logs), default=math.inf)
            with self._changed:
                rest = max(due, self._retry_at) - time.monotonic()
                if not self._woken and rest > 0:
                    self._changed.wait(None if rest == math.inf else rest)
                elif rest > 0:
                    # A step that is not due yet wakes the thread in vain: it sleeps until then at least once.
                    self._woken = False
                self._woken = self._woken and rest <= 0

    def _exchange(self, log: StoreLog, leaves: bool) -> None:
        if self._away_since != math.inf and time.monotonic() < self._retry_at:
            log.failed()
            return
        error = self._attempt(log, leaves)
        if error is not None and self._away_since == math.inf:
            # A connection may have ended alone; what was sent is numbered, so it is stored once.
            error = self._attempt(log, leaves)
        if error is not None:
            self._fail(error)

    def _attempt(self, log: StoreLog, leaves: bool) -> Exception | None:
        """Exchange with the server once; return the error of its client, after which nothing is connected."""
        try:
            if self._store is None:
                self._store = self._connect()
            # A connection takes long, and would make the difference of the two clocks inexact.
            begun = time.monotonic()
            ask = log.ask(begun, leaves)
            found = self._store.exchange(log.name, ask)
            if found is None and not leaves:
                raise Unshared(f"it has {MAX_MEMBERS} members already")
            answer = None if found is None else checked(found)
        except Unshared as error:
            self._end(log, str(error))
            return None
        except Exception as error:  # Whatever the client of the server raises, and an answer that is none.
            self._quickest = math.inf
            self._disconnect()
            return error
        ended = time.monotonic()
        if answer is None:
            return None
        self._quickest *= EXCHANGE_DRIFT_FACTOR
        if ended - begun <= self._quickest:
            self._quickest, self._offset = ended - begun, answer.now - (begun + ended) / 2
        if self._away_since != math.inf:
            self._away_since, self._retry_at, self.error = math.inf, -math.inf, ""
            logger.warning("limits shared again: %s at %s is back", self.kind, self.place)
        log.answered(ask, answer, self._offset)
        return None

    def _end(self, log: StoreLog, reason: str) -> None:
        """End the sharing of one log, not of the others. A reason that many logs have is logged once."""
        if log.ended:
            # It has ended before, and this process leaves it now.
            return
        log.end(reason)
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("limits of a key not shared: its log at %s ended: %s", self.place, reason)

    def _fail(self, error: Exception) -> None:
        now = time.monotonic()
        self.error = str(error).strip() or type(error).__name__
        if self._away_since == math.inf:
            logger.warning(
                "limits not shared: %s at %s is away: %s; each process uses its part of them until it is back",
                self.kind,
                self.place,
                self.error,
            )
        self._away_since = min(self._away_since, now)
        later = (
            RETRY_ABSENCE_SHARE * (now - self._away_since)
            if not isinstance(error, NoConnection)
            else LEAST_RETRY_SECONDS
        )
        self._retry_at = now + min(MAX_RETRY_SECONDS, max(LEAST_RETRY_SECONDS, later))
        for log in self._logs:
            log.failed()

    def _disconnect(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except Exception as error:
                self.error = str(error)


def secret_of(url: str) -> bytes:
    """Return the digest key of all processes that share at the server with this URL."""
    return hashlib.blake2b(url.encode(), digest_size=32, person=b"tidegate share").digest()


def shown(url: str) -> str:
    """Return the URL without user, query and fragment; only the scheme where a password makes it unreadable."""
    scheme, _, rest = url.partition("://")
    authority, *after = re.split("[/?#]", rest, maxsplit=1)
    if "@" in "".join(after):
        return f"{scheme}://…"
    return f"{scheme}://{re.split('[?#]', rest[authority.rfind('@') + 1 :])[0]}"
