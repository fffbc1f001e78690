"""Logs in a PostgreSQL database: one function for each exchange, in unlogged tables.

A row lock on the end of each log puts the exchanges in order.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.shared_file import VERSION
from tidegate.shared_log.carrier import MAX_MEMBERS, CorruptLog, Unshared
from tidegate.shared_log.redis_log import TRIMMED_ENTRIES
from tidegate.shared_log.store_carrier import EXPIRY_SECONDS, GONE_AFTER_SECONDS, SERVER_TIMEOUT_SECONDS, StoreCarrier
from tidegate.shared_log.store_log import KEPT_ENTRIES, Answer, Ask, Stored

CONNECT_SECONDS = 2
"""Seconds for a connection. Derived: libpq knows no less."""

UNACKNOWLEDGED_MILLISECONDS = 2000
"""Milliseconds after which sent data that no host acknowledges ends a connection. Derived: `CONNECT_SECONDS`."""

CREATION_LOCK = 0x7469_6465_6C6F_6701
"""Key of the advisory lock of those who create the tables. Any number does that no other program uses."""

FUNCTION = f"tidegate_log_exchange_v{VERSION}"
"""Name of the function; a change of the function, the tables or the payloads raises the version of all shared files."""

TABLES = tuple(f"tidegate_log_{each}_v{VERSION}" for each in ("ends", "entries", "members"))
"""Names of the tables that the function uses."""

SCHEMA = """
create unlogged table if not exists tidegate_log_ends_{version} (
  name bytea primary key, epoch text not null, base bigint not null, tail bigint not null, next int not null,
  used double precision not null);
create unlogged table if not exists tidegate_log_entries_{version} (
  name bytea, place bigint, member int not null, at double precision not null, payload bytea not null,
  primary key (name, place));
create unlogged table if not exists tidegate_log_members_{version} (
  name bytea, member int, beat double precision not null, sequence bigint not null, head bytea,
  primary key (name, member));
create or replace function tidegate_log_exchange_{version}(
  its_name bytea, asker int, its_epoch text, cursor_ bigint, first bigint, ats double precision[],
  payloads bytea[], its_head bytea, leaves boolean, new_epoch text, gone_after double precision, most_members int,
  most_entries int, trimmed int, expiry double precision,
  out now_ double precision, out epoch_ text, out member_ int, out tail_ bigint, out places bigint[],
  out entry_members int[], out entry_ats double precision[], out entries bytea[], out live int[], out heads bytea[])
language plpgsql as $$
declare
  log tidegate_log_ends_{version}; known tidegate_log_members_{version}; one int; total int; start bigint := cursor_;
begin
  perform set_config('synchronous_commit', 'off', true);
  now_ := extract(epoch from clock_timestamp());
  insert into tidegate_log_ends_{version} values (its_name, new_epoch, 0, 0, 0, now_) on conflict do nothing;
  if found then
    -- the end of this log was removed, but not the rest
    delete from tidegate_log_entries_{version} e where e.name = its_name;
    delete from tidegate_log_members_{version} m where m.name = its_name;
  end if;
  select * into log from tidegate_log_ends_{version} e where e.name = its_name for update;
  now_ := extract(epoch from clock_timestamp());
  if log.used < now_ - expiry then
    delete from tidegate_log_entries_{version} e where e.name = its_name;
    delete from tidegate_log_members_{version} m where m.name = its_name;
    log := row(its_name, new_epoch, 0, 0, 0, now_);
  end if;
  select * into known from tidegate_log_members_{version} m
    where m.name = its_name and m.member = asker and its_epoch = log.epoch and m.beat >= now_ - gone_after;
  for one in delete from tidegate_log_members_{version} m where m.name = its_name
      and (m.beat < now_ - gone_after or (leaves and m.member = known.member)) returning m.member loop
    insert into tidegate_log_entries_{version} values (its_name, log.tail, one, now_, '');
    log.tail := log.tail + 1;
  end loop;
  epoch_ := log.epoch;
  if not leaves then
    select count(*) into total from tidegate_log_members_{version} m where m.name = its_name;
    if known.member is not null then
      member_ := asker;
      for i in 1 .. coalesce(array_length(payloads, 1), 0) loop
        if first + i - 1 > known.sequence then
          insert into tidegate_log_entries_{version} values (its_name, log.tail, asker, ats[i], payloads[i]);
          log.tail := log.tail + 1;
        end if;
      end loop;
      update tidegate_log_members_{version} m set beat = now_, head = its_head,
        sequence = greatest(known.sequence, first - 1 + coalesce(array_length(payloads, 1), 0))
        where m.name = its_name and m.member = asker;
    elsif total < most_members then
      log.next := log.next + 1;
      member_ := log.next;
      start := log.tail;
      insert into tidegate_log_members_{version} values (its_name, member_, now_, 0, null);
    end if;
    if log.tail - log.base > most_entries + trimmed then
      log.base := log.tail - most_entries;
      delete from tidegate_log_entries_{version} e where e.name = its_name and e.place < log.base;
    end if;
    select array_agg(e.place order by e.place), array_agg(e.member order by e.place), array_agg(e.at order by e.place),
      array_agg(e.payload order by e.place) into places, entry_members, entry_ats, entries
      from tidegate_log_entries_{version} e where e.name = its_name and e.place >= start;
    select array_agg(m.member order by m.member), array_agg(coalesce(m.head, '') order by m.member) into live, heads
      from tidegate_log_members_{version} m where m.name = its_name;
  end if;
  update tidegate_log_ends_{version} e set epoch = log.epoch, base = log.base, tail = log.tail, next = log.next,
    used = now_ where e.name = its_name;
  tail_ := log.tail;
end $$;
""".replace("{version}", f"v{VERSION}")


class PostgresStore:
    """One connection to a database, which needs no more rights than to create tables in its schema."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._psycopg = psycopg
        self._connection: Any = _timed(psycopg.Connection).connect(
            url, autocommit=True, connect_timeout=CONNECT_SECONDS, tcp_user_timeout=UNACKNOWLEDGED_MILLISECONDS
        )
        try:
            self._create()
            self._connection.execute(f"set statement_timeout = {int(1000 * SERVER_TIMEOUT_SECONDS)}")
        except BaseException:
            self._connection.close()
            raise

    def _create(self) -> None:
        # As calls find them: an object of the same name in a schema that is not searched is another one.
        looks = ", ".join(["to_regproc(%s)", *["to_regclass(%s)"] * len(TABLES)])
        found = _row(self._connection.execute(f"select {looks}", (FUNCTION, *TABLES)))
        if None not in found:
            return
        try:
            with self._connection.transaction():
                self._connection.execute("select pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
                self._connection.execute(SCHEMA)
        except self._psycopg.errors.InsufficientPrivilege as error:
            raise Unshared(f"its tables cannot be created: {error}") from None

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        given = (
            name, ask.member, ask.epoch, ask.cursor, ask.sequence, [each[0] for each in ask.records],
            [each[1] for each in ask.records], ask.head or None, ask.leaves, secrets.token_hex(8), GONE_AFTER_SECONDS,
            MAX_MEMBERS, KEPT_ENTRIES, TRIMMED_ENTRIES, float(EXPIRY_SECONDS),
        )  # fmt: skip
        types = (
            "bytea, int, text, bigint, bigint, double precision[], bytea[], bytea, boolean, text, double precision, "
            "int, int, int, double precision"
        )
        words = ", ".join(f"%b::{each}" if "bytea" in each else f"%s::{each}" for each in types.split(", "))
        try:
            found = _row(self._connection.execute(f"select * from {FUNCTION}({words})", given, prepare=True))
        except self._psycopg.errors.InsufficientPrivilege as error:
            raise Unshared(f"its tables cannot be used: {error}") from None
        except (self._psycopg.errors.UndefinedTable, self._psycopg.errors.UndefinedFunction):
            # They were removed: the next connection creates them again.
            raise
        except (self._psycopg.DataError, self._psycopg.IntegrityError, self._psycopg.ProgrammingError) as error:
            raise CorruptLog(f"the database cannot use its content ({error.diag.message_primary or error})") from None
        return _answer(found)

    def close(self) -> None:
        self._connection.close()


def _timed(connection: Any) -> Any:
    """Return a class of connections that give up a server that is stopped: its own time limit does not run then."""

    class TimedConnection(connection):  # type: ignore[misc]
        def wait(self, generator: Any, *given: Any, **named: Any) -> Any:
            return super().wait(_limited(generator), *given, **named)

    return TimedConnection


def _limited(generator: Any) -> Any:
    """Run a generator of the client, which asks several times a second whether data has come.

    A server that sends nothing is given up early; one that never ends its answer when this member counts as dead.
    """
    begun = time.monotonic()
    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            seconds = GONE_AFTER_SECONDS if ready else 2 * SERVER_TIMEOUT_SECONDS
            if time.monotonic() >= begun + seconds:
                raise TimeoutError(f"it gave no answer within {seconds:g} seconds")
            wanted = generator.send(ready)
    except StopIteration as ended:
        return ended.value


def _row(cursor: Any) -> Any:
    """Return the first row of a result in text, as it was asked for: the client trusts lengths in binary arrays."""
    if any(map(cursor.pgresult.fformat, range(cursor.pgresult.nfields))):
        raise ValueError("its answer is not in the format that was asked for")
    return cursor.fetchone()


def _answer(found: tuple[Any, ...]) -> Answer | None:
    """Return a row as an answer, None for one without a member; raise `CorruptLog` for none of this function."""
    try:
        now, epoch, member, tail, places, members, ats, payloads, live, heads = found
        if member is None:
            return None
        columns = zip(places or (), members or (), ats or (), payloads or (), strict=True)
        queued = {each: bytes(head) for each, head in zip(live, heads, strict=True) if head}
        entries = [Stored(place, each, stated, bytes(content)) for place, each, stated, content in columns]
        return Answer(now, epoch, member, tail, entries, queued, live)
    except (ValueError, TypeError) as error:
        raise CorruptLog(f"its content is not that of a log ({error})") from None


def postgres_carrier(url: str) -> StoreCarrier:
    """Return the carrier in a database `postgresql://…`; raise `ConfigurationError` for a URL that is none."""
    try:
        import psycopg
    except ImportError:
        raise ConfigurationError(
            "share", "postgresql://…", "sharing in PostgreSQL needs psycopg: pip install 'tidegate[postgres]'"
        ) from None
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigurationError("share", "postgresql://…", "postgresql://user@host/name") from None
    return StoreCarrier(lambda: PostgresStore(url), "postgresql", url)
