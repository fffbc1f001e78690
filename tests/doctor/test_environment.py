"""What is found in a Python environment, by the metadata of what is installed alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta

import pytest

import tidegate
from tests.doctor.conftest import Install
from tidegate.cli.doctor import environment
from tidegate.cli.doctor.environment import BY_GRPC, NOTES, OTHERS, SDKS, STACKS, Finding, Installed, Severity
from tidegate.providers import PRICES_DATE, PRICES_MAX_AGE_DAYS
from tidegate.transports.framework_timeouts import TIMEOUTS
from tidegate.transports.sdks import TRANSPORTS


def lines(found: Iterable[Finding]) -> list[str]:
    return [each.line() for each in found]


def test_a_stack_that_a_transport_governs_says_where_it_is_patched(install: Install) -> None:
    install("httpx", "0.28.1")
    assert lines(environment.stacks(Installed())) == [
        "stack governed httpx 0.28.1: patched at Client.send, AsyncClient.send"
    ]


def test_the_stacks_are_those_of_the_transports() -> None:
    assert {name.split(".")[0] for transport in TRANSPORTS for name in transport.MODULES} == set(STACKS)


@pytest.mark.parametrize(("version", "outside"), [("0.22.9", True), ("0.23.0", False), ("0.99", False), ("1.0", True)])
def test_a_version_outside_of_what_was_tried_is_said_to_be(install: Install, version: str, outside: bool) -> None:
    install("httpx", version)
    (found,) = environment.stacks(Installed())
    assert ("this version is not tested (tested: 0.23 to before 1)" in found.text) == outside


def test_an_sdk_sends_through_what_its_metadata_requires(install: Install) -> None:
    install("openai", "3.52.0", ("httpx2<3,>=2.12.0", "httpx; extra == 'legacy'", "pydantic"))
    install("httpx2", "2.16.2")
    install("httpx", "0.28.1")
    assert lines(environment.sdks(Installed())) == ["sdk governed openai 3.52.0: sends through httpx2 2.16.2"]


def test_a_framework_sends_through_the_stacks_of_its_sdk(install: Install) -> None:
    install("deepeval", "4.3.1", ("grpcio", "openai"))
    install("openai", "2.54.0", ("httpx<1,>=0.23.0",))
    install("httpx", "0.28.1")
    install("grpcio", "1.85.1")
    assert "sdk governed deepeval 4.3.1: sends through httpx 0.28.1" in lines(environment.sdks(Installed()))


def test_requirements_that_go_round_end(install: Install) -> None:
    install("litellm", "1.0", ("openai", "httpx"))
    install("openai", "2.0", ("litellm", "httpx"))
    install("httpx", "0.28.1")
    assert lines(environment.sdks(Installed())) == [
        "sdk governed openai 2.0: sends through httpx 0.28.1",
        "sdk governed litellm 1.0: sends through httpx 0.28.1",
    ]


@pytest.mark.parametrize(("sdk", "stack"), [("xai-sdk", "grpcio"), ("google-cloud-aiplatform", "grpcio")])
def test_an_sdk_without_a_governed_way_out_is_ungoverned(install: Install, sdk: str, stack: str) -> None:
    install(sdk, "2.0")
    install(stack, "1.9")
    (found,) = environment.sdks(Installed())
    assert found.verdict is Severity.UNGOVERNED
    assert f"sends through {stack} 1.9, which cannot be governed" in found.text


def test_aioboto3_goes_out_through_a_governed_stack(install: Install) -> None:
    install("aioboto3", "7.0", ("aiobotocore[boto3]",))
    install("aiobotocore", "3.10")
    (found,) = environment.sdks(Installed())
    assert (found.verdict, found.text) == (Severity.GOVERNED, "sends through aiobotocore 3.10")


def test_grpc_alone_is_no_more_than_a_note(install: Install) -> None:
    install("grpcio")
    (found,) = environment.stacks(Installed())
    assert found.verdict is Severity.NOTE


def clocks(environ: dict[str, str] | None = None, **settings: object) -> list[str]:
    return lines(environment.clocks(Installed(), tidegate.Settings(**settings), environ or {}))


def test_a_clock_says_what_becomes_of_it(install: Install) -> None:
    install("ragas", "0.4.3")
    assert clocks(max_wait=600) == [
        "clock stretched ragas 0.4.3: one metric of one row, in `evaluate`: extended from 180 s to 780 s, unless "
        "the program sets it"
    ]
    (kept,) = clocks(framework_clocks="keep")
    assert kept.startswith(
        "clock kept ragas 0.4.3: one metric of one row, in `evaluate`: 180 s by default, not extended"
    )


def test_a_clock_that_the_user_set_is_said_to_be_left(install: Install) -> None:
    install("mlflow", "3.18.0")
    (kept,) = clocks({"MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT": "30"})
    assert kept.startswith("clock kept mlflow 3.18.0: ")
    assert kept.endswith("not extended, because MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT is set")


def test_settings_in_force_are_those_that_differ_and_never_show_a_secret() -> None:
    settings = tidegate.Settings(max_wait=60, hosts=("llm.internal",), digest_key="hunter2-hunter2")
    assert lines(environment.in_force(settings)) == [
        "setting set max_wait: 60.0 (from TIDEGATE_MAX_WAIT)",
        "setting set hosts: ('llm.internal',) (from TIDEGATE_HOSTS)",
        "setting set digest_key: set (from TIDEGATE_DIGEST_KEY)",
    ]
    assert lines(environment.in_force(tidegate.Settings())) == []


def test_a_table_of_prices_is_reported_when_it_is_older_than_a_year() -> None:
    last = PRICES_DATE + timedelta(days=PRICES_MAX_AGE_DAYS)
    assert list(environment.prices(last)) == []
    (found,) = environment.prices(last + timedelta(days=1))
    assert (found.section, found.verdict) == ("price", Severity.TRAP)
    assert f"from {PRICES_DATE}, {PRICES_MAX_AGE_DAYS + 1} days ago" in found.text


def test_nothing_that_is_found_is_imported() -> None:
    code = """
import sys
from tidegate.cli.doctor.command import findings
assert any(each.name == "openai" for each in findings(None))
print([name for name in ("openai", "anthropic", "httpx", "httpx2", "requests", "aiohttp") if name in sys.modules])
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_the_tables_agree() -> None:
    assert len(set(SDKS)) == len(SDKS)
    assert {*NOTES, *BY_GRPC, *(clock.framework for clock in TIMEOUTS)} <= set(SDKS)
    assert not {*SDKS} & {*STACKS, *OTHERS}
