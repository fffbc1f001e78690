"""A table of logs in this process as a server, for members that are processes to each other."""

from __future__ import annotations

import threading
import time

from tidegate.shared_log.ray_log import LogTable
from tidegate.shared_log.store_carrier import StoreCarrier
from tidegate.shared_log.store_log import Answer, Ask, Limits


class TableServer:
    """It loses its content when it is stopped, as an actor does."""

    url = "table"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: LogTable | None = None

    def start(self) -> None:
        self._table = LogTable()

    def stop(self) -> None:
        self._table = None

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        with self._lock:
            if self._table is None:
                raise ConnectionError("stopped")
            return self._table.exchange(name, ask, time.time())

    def close(self) -> None: ...

    def carrier(self, limits: Limits) -> StoreCarrier:
        return StoreCarrier(lambda: self, "table", self.url, "this process", limits)
