"""What a registry learned leaves the process as a value without secrets, and another one begins with it."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tidegate
from tests.core.values import answer, bucket
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.saved_state import LearnedState
from tidegate.core.values import Key
from tidegate.errors import ConfigurationError
from tidegate.settings import Settings

TODAY = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SECRET = "sk-not-to-be-seen"


def registry(now: float = 100.0, today: datetime = TODAY, **settings: object) -> RateLimitRegistry:
    return RateLimitRegistry(Settings(**settings), clock=lambda: now, calendar=lambda: today)


def key_of(one: RateLimitRegistry, model: str = "m", credential: str = SECRET) -> Key:
    return Key("openai", "https://api.openai.com", one.digest(credential), model)


def teach(one: RateLimitRegistry, *keys: Key, left: float = 10.0) -> LearnedState:
    for key in keys:
        one.settle(one.try_admit(key), answer(bucket(60.0, left)))
    return one.export_state()


def level(one: RateLimitRegistry, key: Key) -> float | None:
    """What a new key knows of its quota before the first answer."""
    one.settle(one.try_admit(key), tidegate.core.values.Outcome(tidegate.core.values.Kind.ABANDONED))
    quotas = one.snapshot().keys[key].quotas
    return quotas[0].level if quotas else None


def test_a_second_process_begins_with_what_the_first_one_knew() -> None:
    first = registry()
    state = teach(first, key_of(first))
    second = registry(now=7.0, today=TODAY + timedelta(seconds=20), initial_state=state)
    assert level(second, key_of(second)) == pytest.approx(29.0)


def test_it_comes_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = registry()
    path = tmp_path / "limits.json"
    teach(first, key_of(first)).write(path)
    monkeypatch.setenv("TIDEGATE_INITIAL_STATE", str(path))
    second = RateLimitRegistry(clock=lambda: 7.0, calendar=lambda: TODAY)
    assert level(second, key_of(second)) == pytest.approx(9.0)
    assert list(tmp_path.iterdir()) == [path]


def test_no_secret_and_no_digest_of_one_is_in_it() -> None:
    first = registry()
    key = key_of(first)
    text = teach(first, key).to_json()
    assert SECRET not in text
    assert key.credential not in text
    assert json.loads(text)["keys"][0]["credential"] == ""


def test_with_a_digest_key_each_credential_finds_its_own() -> None:
    first = registry(digest_key="k1")
    teach(first, key_of(first, credential="a"), left=10.0)
    state = teach(first, key_of(first, credential="b"), left=40.0)
    second = registry(digest_key="k1", initial_state=state)
    assert level(second, key_of(second, credential="b")) == pytest.approx(39.0)
    assert level(second, key_of(second, credential="a")) == pytest.approx(9.0)
    assert level(registry(digest_key="k1", initial_state=state), key_of(second, credential="c")) is None


def test_of_two_credentials_that_nothing_tells_apart_neither_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    first = registry()
    state = teach(first, key_of(first, credential="a"), key_of(first, credential="b"), key_of(first, "other"))
    second = registry(initial_state=state)
    assert level(second, key_of(second, credential="a")) is None
    assert level(second, key_of(second, "other")) == pytest.approx(9.0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "digest_key" in caplog.text


def test_digests_of_another_digest_key_are_not_compared() -> None:
    first = registry(digest_key="k1")
    state = teach(first, key_of(first))
    second = registry(digest_key="k2", initial_state=state)
    assert level(second, key_of(second)) == pytest.approx(9.0)


def test_one_entry_is_for_one_key() -> None:
    first = registry()
    second = registry(initial_state=teach(first, key_of(first)))
    assert level(second, key_of(second, credential="a")) is not None
    assert level(second, key_of(second, credential="b")) is None


@pytest.mark.parametrize("days", [8, 400])
def test_a_stale_state_is_ignored_in_one_line(days: int, caplog: pytest.LogCaptureFixture) -> None:
    first = registry()
    state = teach(first, key_of(first), key_of(first, "other"))
    second = registry(today=TODAY + timedelta(days=days), initial_state=state)
    assert level(second, key_of(second)) is None
    (record,) = caplog.records
    assert "stale" in record.getMessage()


BAD = {
    "no JSON": "{",
    "no object": "[1]",
    "no version": '{"keys": []}',
    "no keys": '{"version": 1, "keys": 5}',
    "no limit": json.dumps({"version": 1, "keys": [{"provider": "p", "base_url": "u", "taken_on": "2026-11-21"}]}),
    "no number": '{"version": 1, "keys": [{"provider": "p", "base_url": "u", "taken_on": "2026-11-21T00:00:00Z", '
    '"gates": {"concurrency": {"slots": NaN}}}]}',
    "no text": b"\xff\xfe\x00",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_is_no_state_is_one_clear_error(what: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    given = BAD[what]
    path.write_bytes(given if isinstance(given, bytes) else given.encode())
    with pytest.raises(tidegate.ConfigurationError) as raised:
        Settings(initial_state=path)
    assert raised.value.field == "initial_state"
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(tidegate.ConfigurationError, match=r"initial_state: .* learned state not read: No such file"):
        Settings(initial_state=str(tmp_path / "gone.json"))


def test_a_wrong_value_is_not_printed() -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        Settings(initial_state={"version": 1, "keys": [{"provider": "a value as long as it likes"}]})
    assert "as long as it likes" not in str(raised.value)


def test_what_a_state_says_nothing_of_stays_as_it_was() -> None:
    first = registry()
    earlier = teach(first, key_of(first, "a"), key_of(first, "b"))
    second = registry()
    later = teach(second, key_of(second, "b"), left=40.0)
    both = {each.scope: each.quotas[0].level for each in later.over(earlier).keys}
    assert both == {"a": 10.0, "b": 40.0}
    assert later.over(LearnedState(version=9)) == later
    assert LearnedState().over(earlier) == earlier


def test_what_other_runs_knew_is_kept_though_their_digests_say_nothing_any_more() -> None:
    first, second = registry(digest_key="k1"), registry(digest_key="k2")
    earlier = teach(first, key_of(first, "a"), key_of(first, "b"))
    both = teach(second, key_of(second, "b"), left=40.0).over(earlier)
    assert {each.scope: each.quotas[0].level for each in both.keys} == {"a": 10.0, "b": 40.0}
    assert [bool(each.credential) for each in both.keys] == [False, True]


def test_a_state_that_cannot_be_put_in_costs_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*given: object) -> None:
        raise ZeroDivisionError

    first = registry()
    state = teach(first, key_of(first))
    monkeypatch.setattr("tidegate.core.saved_state.seed", breaks)
    second = registry(initial_state=state)
    assert level(second, key_of(second)) is None
    assert "saved state of openai" in caplog.text


PATH_KEYS = ("HARBOURPATHKEY77", "HARBOURPATHKEY78")


def in_path(one: RateLimitRegistry, credential: str) -> Key:
    """The key of calls that have their credential in the path, as a transport makes it."""
    return Key("compatible", one.address(f"https://gateway.test/{credential}/v1"))


def test_state_without_digest_key_holds_no_digest_of_a_path() -> None:
    first = registry()
    key = in_path(first, PATH_KEYS[0])
    state = teach(first, key)
    assert state.keys[0].base_url == "https://gateway.test/~/v1"
    second = registry(initial_state=state)
    assert level(second, in_path(second, PATH_KEYS[0])) == pytest.approx(9.0)


def test_two_credentials_in_paths_are_told_apart_by_their_digests() -> None:
    first = registry(digest_key="k1")
    teach(first, in_path(first, PATH_KEYS[0]), left=10.0)
    state = teach(first, in_path(first, PATH_KEYS[1]), left=40.0)
    assert not any(each in state.to_json() for each in PATH_KEYS)
    second = registry(digest_key="k1", initial_state=state)
    assert level(second, in_path(second, PATH_KEYS[1])) == pytest.approx(39.0)
    assert level(second, in_path(second, PATH_KEYS[0])) == pytest.approx(9.0)


def test_state_of_an_earlier_version_loses_the_credentials_of_its_paths() -> None:
    first = registry()
    entry = teach(first, in_path(first, PATH_KEYS[0])).keys[0]
    earlier = LearnedState(keys=(entry.model_copy(update={"base_url": f"https://gateway.test/{PATH_KEYS[0]}/v1"}),))
    later = teach(first, key_of(first))
    assert PATH_KEYS[0] not in LearnedState(keys=later.keys[-1:]).over(earlier).to_json()
    second = registry(initial_state=earlier)
    assert level(second, in_path(second, PATH_KEYS[0])) == pytest.approx(9.0)


def test_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text("before")
    path.chmod(0o644)
    LearnedState().write(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_write_opens_no_file_that_was_there_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, opened = tmp_path / "victim", []
    victim.write_text("kept")
    # The name that versions before this one used.
    (tmp_path / f".limits.json.{os.getpid()}").symlink_to(victim)
    real = os.open

    def noted(path: object, flags: int, *rest: object, **named: object) -> int:
        opened.append(flags)
        return real(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", noted)
    LearnedState().write(tmp_path / "limits.json")
    assert victim.read_text() == "kept"
    assert all(flags & os.O_EXCL and flags & os.O_NOFOLLOW for flags in opened)
    assert opened


def test_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "limits.json"
    path.write_text("before")

    def failing(descriptor: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="no room"):
        LearnedState().write(path)
    assert [each.name for each in tmp_path.iterdir()] == ["limits.json"]
    assert path.read_text() == "before"


def test_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"^learned state not read: it is not a regular file$"):
        LearnedState.read(tmp_path / "pipe")


def test_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^learned state not read: it is not a regular file$"):
        LearnedState.read("/dev/zero")
    with pytest.raises(ConfigurationError) as raised:
        Settings(initial_state="/dev/zero")
    assert str(raised.value) == (
        "initial_state: '/dev/zero' is not usable: learned state not read: it is not a regular file"
    )


def test_file_above_the_bound_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    with path.open("wb") as file:
        file.truncate(1 << 29)
    with pytest.raises(ValueError, match=r"^learned state not read: it is larger than \d+ bytes$"):
        LearnedState.read(path)


def test_the_keys_of_a_provider_are_kept_without_any_digest() -> None:
    one = registry(digest_key="common")
    key = key_of(one)
    state = teach(one, key, key._replace(provider="other"))
    assert [each.key.credential for each in state.keys] != ["", ""]
    assert [each.key for each in state.of_providers({key.provider}).keys] == [key._replace(credential="")]
    assert state.of_providers({key.provider}).digests == ""


def test_a_state_tells_how_long_an_answer_took() -> None:
    one = registry()
    (learned,) = teach(one, key_of(one)).keys
    assert learned.gates["answer"].keys() == {"seconds"}
