from __future__ import annotations

import pytest

import tidegate
from tidegate.errors import ConfigurationError

OUT_OF_RANGE = [
    ("max_wait", -1),
    ("max_wait", float("nan")),
    ("max_wait", float("inf")),
    ("max_concurrency", 10**9),
    ("max_unreached", "soon"),
    ("telemetry", "loud"),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_a_setting_out_of_range_names_the_field_the_value_and_the_bound(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        tidegate.Settings(**{field: value})
    assert caught.value.field == field
    assert caught.value.value == value or caught.value.value != caught.value.value
    assert caught.value.bound
    assert field in str(caught.value)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="max_weight"):
        tidegate.Settings(max_weight=3)


def test_settings_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        tidegate.Settings().max_wait = 1


def test_every_field_can_be_set_in_the_environment() -> None:
    settings = tidegate.Settings.from_environment(
        {"TIDEGATE_MAX_WAIT": "12.5", "TIDEGATE_DISABLED": "1", "TIDEGATE_HOSTS": "a.test, b.test", "OTHER": "x"}
    )
    assert (settings.max_wait, settings.disabled, settings.hosts) == (12.5, True, ("a.test", "b.test"))


def test_an_empty_variable_counts_as_absent() -> None:
    assert tidegate.Settings.from_environment({"TIDEGATE_MAX_WAIT": " "}) == tidegate.Settings()


def test_a_bad_variable_names_the_field() -> None:
    with pytest.raises(ConfigurationError, match="max_wait"):
        tidegate.Settings.from_environment({"TIDEGATE_MAX_WAIT": "long"})


def test_the_digest_key_never_shows() -> None:
    settings = tidegate.Settings(digest_key="hunter2-hunter2")
    assert "hunter2" not in repr(settings)
    with pytest.raises(ConfigurationError) as caught:
        tidegate.Settings(digest_key=["hunter2"])
    assert "hunter2" not in str(caught.value)
