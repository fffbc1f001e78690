"""Logs at a Redis or Valkey server: one script for each exchange, whose keys share a hash tag, as a cluster needs."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.shared_file import VERSION
from tidegate.shared_log.carrier import MAX_MEMBERS, CorruptLog
from tidegate.shared_log.store_carrier import (
    EXPIRY_SECONDS,
    GONE_AFTER_SECONDS,
    SERVER_TIMEOUT_SECONDS,
    StoreCarrier,
    shown,
)
from tidegate.shared_log.store_log import KEPT_ENTRIES, Answer, Ask, Stored

PROTOCOL = f"v{VERSION}"
"""Version of the script, the keys and the payloads; any change of these raises the version of all shared files."""

TRIMMED_ENTRIES = 256
"""Entries by which a log exceeds its bound before it is trimmed. Chosen: a sixteenth."""

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Bytes of an answer. Derived: fifty of the largest states beside a log whose records have 220 bytes each."""

LARGE_COLLECTION = re.compile(rb"\r\n[*~>%|]\d{6}")
"""Announcement of 100,000 elements or more, which a log never has. Hiredis allocates them before they come."""

ANNOUNCEMENT_BYTES = 9
"""Bytes that `LARGE_COLLECTION` matches."""

SCRIPT = """
local log, meta, members, heads = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = redis.call('TIME')
local now = string.format('%.6f', tonumber(time[1]) + tonumber(time[2]) / 1e6)
local member, cursor = tonumber(ARGV[1]), tonumber(ARGV[3])
local epoch = redis.call('HGET', meta, 'epoch')
if epoch and epoch == ARGV[2] and cursor > tonumber(redis.call('HGET', meta, 'base')) + redis.call('LLEN', log) then
  epoch = false -- the server has evicted entries that this member has read
end
if not epoch then
  epoch = ARGV[7]
  redis.call('DEL', log, members, heads)
  redis.call('HSET', meta, 'epoch', epoch, 'base', 0, 'next', 0)
end
local function leave(one)
  redis.call('HDEL', members, one)
  redis.call('HDEL', heads, one)
  redis.call('RPUSH', log, one .. ' ' .. now .. ' ')
end
local live = redis.call('HGETALL', members)
for i = 1, #live, 2 do
  if tonumber(now) - tonumber(string.match(live[i + 1], '^%S+')) > tonumber(ARGV[8]) then leave(live[i]) end
end
local known = member > 0 and epoch == ARGV[2] and redis.call('HGET', members, member)
if ARGV[6] == '1' then
  if known then leave(member) end
  return {now}
end
local base = tonumber(redis.call('HGET', meta, 'base'))
if known then
  local stored = tonumber(string.match(known, '%S+$'))
  local first = tonumber(ARGV[4])
  for i = 13, #ARGV do
    if first + i - 13 > stored then redis.call('RPUSH', log, member .. ' ' .. ARGV[i]) end
  end
  stored = math.max(stored, first + #ARGV - 13)
  redis.call('HSET', members, member, now .. ' ' .. stored)
  if ARGV[5] == '' then redis.call('HDEL', heads, member) else redis.call('HSET', heads, member, ARGV[5]) end
else
  if redis.call('HLEN', members) >= tonumber(ARGV[9]) then return {now, 'full'} end
  member = redis.call('HINCRBY', meta, 'next', 1)
  redis.call('HSET', members, member, now .. ' 0')
  cursor = base + redis.call('LLEN', log)
end
local tail = base + redis.call('LLEN', log)
local over = tail - base - tonumber(ARGV[10])
if over > tonumber(ARGV[11]) then
  redis.call('LTRIM', log, over, -1)
  base = base + over
  redis.call('HSET', meta, 'base', base)
end
cursor = math.max(cursor, base)
local entries = redis.call('LRANGE', log, cursor - base, -1)
for i = 1, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[12]) end
return {now, epoch, member, tail, cursor, entries, redis.call('HGETALL', heads), redis.call('HKEYS', members)}
"""


class BoundedSocket:
    """The socket of a connection: what answers one request is limited in bytes, in time and in announced elements."""

    def __init__(self, connected: Any) -> None:
        self._socket = connected
        # The client asks both before each request.
        self.fileno, self.pending = connected.fileno, getattr(connected, "pending", int)
        self._begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def sendall(self, data: Any) -> None:
        self._begin()
        self._socket.sendall(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data: bytes = self._socket.recv(size, flags)
        # By a flag the client only looks whether an idle connection has ended.
        if not flags:
            self._check(data)
        return data

    def recv_into(self, buffer: bytearray) -> int:
        size: int = self._socket.recv_into(buffer)
        self._check(buffer[:size])
        return size

    def _begin(self) -> None:
        self._left, self._until, self._tail = MAX_ANSWER_BYTES, time.monotonic() + GONE_AFTER_SECONDS, b"\r\n"

    def _check(self, part: bytes | bytearray) -> None:
        """Raise `ValueError` for an answer that no log gives, before the client reads it; the end is none."""
        if not part:
            return
        self._left -= len(part)
        if self._left < 0:
            raise ValueError(f"its answer is larger than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > self._until:
            raise ValueError(f"its answer takes longer than {GONE_AFTER_SECONDS:g} seconds")
        data = self._tail + part
        if LARGE_COLLECTION.search(data) is not None:
            raise ValueError("its answer announces 100,000 elements or more")
        self._tail = data[1 - ANNOUNCEMENT_BYTES :]


def _connected(connection: Any) -> None:
    """Begin a connection of the client, which reads and writes through a `BoundedSocket`."""
    connection._sock = BoundedSocket(connection._sock)
    connection.on_connect()


class RedisStore:
    """One connection to a server. Valkey has the same protocol, and a cluster finds all keys of a log in one slot."""

    def __init__(self, url: str) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.exceptions import ResponseError
        from redis.retry import Retry

        # The carrier has the only retry: one of the client's would send the records once more, and later.
        self._client: Any = redis.Redis.from_url(
            url,
            socket_timeout=SERVER_TIMEOUT_SECONDS,
            socket_connect_timeout=SERVER_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            redis_connect_func=_connected,
            decode_responses=False,
        )
        self._script = self._client.register_script(SCRIPT)
        self._refused = ResponseError

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        tag = f"{{tidegate:{PROTOCOL}:{name.hex()}}}"
        records = [b"%.6f " % at + payload for at, payload in ask.records]
        try:
            found = self._script(
                keys=[f"{tag}:{each}" for each in ("log", "meta", "members", "heads")],
                args=[
                    ask.member, ask.epoch, ask.cursor, ask.sequence, ask.head, int(ask.leaves), secrets.token_hex(8),
                    GONE_AFTER_SECONDS, MAX_MEMBERS, KEPT_ENTRIES, TRIMMED_ENTRIES, EXPIRY_SECONDS, *records,
                ],
            )  # fmt: skip
        except self._refused as error:
            if type(error) is self._refused and is_about_content(str(error)):
                raise CorruptLog(f"the server cannot use its content ({error})") from None
            raise
        return _answer(found) if len(found) > 2 else None

    def close(self) -> None:
        self._client.close()


def is_about_content(error: str) -> bool:
    """Return whether an error of the server is about the keys of one log, and not about the server.

    A server's error begins with a code in capital letters (`OOM`, `READONLY`, `MISCONF`). A script's error has none, as
    the client takes `ERR` away.
    """
    code = error.partition(" ")[0]
    return code == "WRONGTYPE" or ("user_script" in error and not code.isupper())


def _answer(found: list[Any]) -> Answer:
    """Return the server's words as an answer; raise `CorruptLog` where they are none of this script."""
    try:
        now, epoch, member, tail, first, entries, heads, members = found
        stored = [_entry(first + place, each) for place, each in enumerate(entries)]
        queued = {int(each): bytes(value) for each, value in zip(heads[::2], heads[1::2], strict=True)}
        return Answer(float(now), epoch.decode(), member, tail, stored, queued, [*map(int, members)])
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise CorruptLog(f"its content is not that of a log ({error})") from None


def _entry(place: int, content: bytes) -> Stored:
    member, at, payload = content.split(b" ", 2)
    return Stored(place, int(member), float(at), payload)


def redis_carrier(url: str) -> StoreCarrier:
    """Return the carrier at a server `redis://…` or `rediss://…`; raise `ConfigurationError` for a URL that is none."""
    try:
        import redis
    except ImportError:
        raise ConfigurationError(
            "share", shown(url), "sharing at a Redis server needs redis-py: pip install 'tidegate[redis]'"
        ) from None
    try:
        redis.connection.parse_url(url)
    except ValueError:
        raise ConfigurationError("share", shown(url), "a URL that redis-py reads") from None
    return StoreCarrier(lambda: RedisStore(url), "redis", url)
