"""The URL of a server in messages: without the password, also where that makes the URL unreadable."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigurationError
from tidegate.shared_log.redis_log import redis_carrier
from tidegate.shared_log.store_carrier import shown


@pytest.mark.parametrize("password", ["secret", "sec@ret", "sec:ret"])
def test_a_password_is_not_shown(password: str) -> None:
    assert shown(f"redis://user:{password}@host:6379/0?protocol=3#part") == "redis://host:6379/0"
    assert shown(f"postgresql://user:{password}@host/name?password=secret") == "postgresql://host/name"


@pytest.mark.parametrize("password", ["sec/ret", "sec?ret", "sec#ret", "s/e@c?r#et"])
def test_of_a_url_that_may_be_misread_only_the_scheme_is_shown(password: str) -> None:
    assert shown(f"redis://user:{password}@host:6379/0") == "redis://…"
    assert shown("postgresql://host/name?password=sec@ret") == "postgresql://…"


def test_nothing_else_is_left_out() -> None:
    assert shown("rediss://host/0") == "rediss://host/0"


@pytest.mark.parametrize("password", ["sec/ret", "sec?ret", "sec#ret"])
def test_an_unreadable_url_is_refused_without_its_password(password: str) -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigurationError) as refused:
        redis_carrier(f"redis://user:{password}@host/0")
    assert "sec" not in str(refused.value)
