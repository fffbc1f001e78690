"""The SDKs' own test suites, without tidegate and with it installed: every test must come to the same.

    python -m conformance.suites [openai anthropic ...] [--environments .venv] [--jobs 2]

Exits with 1 where an outcome differs, a run did not end, or nothing was governed. See docs/conformance.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conformance.comparing import MANY, ROUNDS, Verdict, differences, settled, tally
from conformance.running import Place, Run, Suite

SUITES = (
    Suite(
        name="openai",
        package="openai",
        version="3.57.0",
        extras="[aiohttp,realtime,bedrock,vertex,datalib]",
        needs=("Pillow", "rich", "inline-snapshot>=0.28.0", "azure-identity>=1.14.1", "trio", "griffe", "httpx"),
        arguments=("tests", "--ignore=tests/test_uv_workflows.py"),
        mocked="tests/api_resources respx2_mock",
        left_out="tests/api_resources but for its mocked tests: it needs a server made from the API's description; "
        "test_uv_workflows.py: the SDK's own release scripts",
        source="pyproject.toml of the sdist: dependency group dev, [tool.pytest.ini_options]",
    ),
    Suite(
        name="openai2",
        package="openai",
        version="2.54.0",
        extras="[aiohttp,httpx2,realtime,bedrock,datalib]",
        needs=("respx==0.22.0", "time-machine", "dirty-equals", "importlib-metadata>=6.7.0", "rich", "jsonschema",
               "inline-snapshot>=0.28.0", "azure-identity>=1.14.1", "trio", "nest_asyncio==1.6.0", "griffe"),
        arguments=("tests",),
        mocked="tests/api_resources respx_mock",
        left_out="tests/api_resources but for its mocked tests: it needs a server made from the API's description",
        source="pyproject.toml of the sdist: [tool.rye] dev-dependencies, [tool.pytest.ini_options]",
    ),
    Suite(
        name="anthropic",
        package="anthropic",
        version="2.14.0",
        extras="[aiohttp,vertex,bedrock,mcp,webhooks]",
        needs=("respx==0.22.0", "time-machine", "dirty-equals>=0.6.0", "importlib-metadata>=6.7.0", "rich",
               "hypothesis", "inline-snapshot>=0.28.0", "griffe", "http-snapshot[httpx]==0.1.9", "packaging",
               "opentelemetry-sdk"),
        arguments=("tests",),
        mocked="tests/api_resources respx_mock",
        left_out="tests/api_resources but for its mocked tests: it needs a server made from the API's description",
        source="pyproject.toml and requirements-dev.lock of the sdist",
    ),
    Suite(
        name="google-genai",
        package="google-genai",
        version="3.6.1",
        extras="[aiohttp,httpx]",
        needs=(),
        # The tests lie in the package, below a namespace package.
        arguments=("-o", "consider_namespace_packages=true", "google/genai/tests/client", "google/genai/tests/errors",
                   "google/genai/tests/gaos"),
        left_out="all but client, errors and gaos: they replay recordings that are not in the sdist, or need a project",
        source="pyproject.toml of the sdist: [tool.pytest.ini_options]",
    ),
    Suite(
        name="botocore",
        package="botocore",
        version="1.44.8",
        extras="",
        needs=("jsonschema",),
        arguments=("tests/unit/retries", "tests/functional/retries", "tests/unit/test_retryhandler.py",
                   "tests/functional/test_retry.py", "tests/unit/test_endpoint.py", "tests/unit/test_stub.py",
                   "tests/functional/test_stub.py", "tests/unit/test_eventstream.py", "tests/unit/test_http_session.py",
                   "tests/unit/test_client.py", "tests/functional/test_bearer_auth.py",
                   "tests/functional/test_bedrock_runtime.py"),
        left_out="all but retries, endpoint, client, stub, event streams, HTTP session and bedrock: other services' "
        "models and signatures, which tidegate does not touch",
        infers=False,
        source="requirements-dev.txt of the sdist",
    ),
)  # fmt: skip

HEADER = ("suite", "tests", "without p/f/s", "with p/f/s", "differ", "gone alone", "calls seen", "governed", "minutes")


def main(arguments: list[str] | None = None) -> int:
    """Runs the suites named; returns the exit code."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="python -m conformance.suites", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="suite", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--environments", type=Path, default=Path(".venv"), help="where environments are made")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share a run's tests")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(names)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    rows, complaints = [], []
    for suite in SUITES:
        if not options.names or suite.name in options.names:
            row, complaint = compare(suite, options.environments.absolute(), options.jobs)
            rows.append(row)
            complaints += [f"{suite.name}: {each}" for each in complaint]
    print(f"\n{_table(rows)}\n")
    print("\n".join(complaints) or "no outcome differs")
    return 1 if complaints else 0


def compare(suite: Suite, environments: Path, jobs: int) -> tuple[tuple[str, ...], list[str]]:
    """Runs one suite twice; returns its row of the table, and what is wrong."""
    print(f"{suite.name}: {suite.package} {suite.version}; not run: {suite.left_out}", flush=True)
    place = Place(suite, environments / f"suites-{suite.name}")
    place.prepare()
    without = place.run("without", jobs)
    print(f"{suite.name}: without tidegate: {tally(without.results)}, {without.ended}", flush=True)
    governed = place.run("governed", jobs)
    print(f"{suite.name}: with tidegate: {tally(governed.results)}, {governed.ended}", flush=True)
    found = differences(without.results, governed.results)
    if found:
        again = (
            f"each is run alone, in both ways, up to {ROUNDS} times" if len(found) <= MANY else "too many to run alone"
        )
        print(f"{suite.name}: {len(found)} differ; {again}", flush=True)
    verdict = settled(found, place.alone)
    for each in verdict.passing:
        print(f"{suite.name}: gone when run alone: {each}")
    for each in verdict.differences:
        print(f"{suite.name}: DIFFERS: {each}")
    return _row(suite, without, governed, verdict), complaints_of(suite, without, governed, verdict)


def complaints_of(suite: Suite, without: Run, governed: Run, verdict: Verdict) -> list[str]:
    """What makes a comparison fail: a difference, a run that did not end, or one that proves nothing."""
    complaints = []
    if verdict.differences:
        complaints.append(f"{len(verdict.differences)} outcomes differ")
    for name, run in (("without", without), ("with", governed)):
        # pytest: 0 all passed, 1 some failed.
        if run.ended not in ("exit code 0", "exit code 1"):
            complaints.append(f"the run {name} tidegate: {run.ended}")
    if not without.results:
        complaints.append("no test was run")
    if not governed.seen or (suite.infers and not governed.governed):
        complaints.append(f"proves nothing: {governed.seen} calls seen, {governed.governed} governed")
    return complaints


def _row(suite: Suite, without: Run, governed: Run, verdict: Verdict) -> tuple[str, ...]:
    return (
        f"{suite.package} {suite.version}",
        str(len(without.results)),
        tally(without.results),
        tally(governed.results),
        str(len(verdict.differences)),
        str(len(verdict.passing)),
        str(governed.seen),
        str(governed.governed),
        f"{(without.seconds + governed.seconds) / 60:.1f}",
    )


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [HEADER, ("---",) * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
