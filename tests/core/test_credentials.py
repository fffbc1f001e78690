"""Credentials are taken out of any text by their form, ordinary text is left as it is, and both in linear time."""

from __future__ import annotations

import gc
import re
import string
import sys
from re import _constants, _parser
from typing import Any

import pytest

from tests.credentials import FORMS, HEX, LOWER, left_of, made, random_parts, random_text
from tidegate.core import safe_text
from tidegate.core.safe_text import looks_secret, masked, shown_address, without_credentials, without_digests

PLAIN = "q7Harbour0value"
AWS = random_text(13, seed=1) + "/" + random_text(10, seed=2) + "/" + random_text(15, seed=3)

NAMED = [
    "Incorrect API key provided: {}. You can find your API key at https://platform.openai.com/account/api-keys.",
    "Incorrect key provided: {}",
    "Authorization: Bearer {}",
    "Authorization: ApiKey {}",
    "authorization: {}",
    "Authorization: Token {}",
    "{{'authorization': 'ApiKey {}'}}",
    '{{"Authorization": "Bearer {}"}}',
    "x-api-key: {}",
    "Ocp-Apim-Subscription-Key: {}",
    "api_key={}",
    "api-key = '{}'",
    '{{"apiKey": "{}"}}',
    '{{\\"api_key\\": \\"{}\\"}}',
    "OPENAI_API_KEY={}",
    "client_secret: {}",
    "aws_secret_access_key={}",
    "the token is {}",
    "token: token: {}",
    "your access key {} was rejected",
    "password is {}",
    "password: {}",
    "pwd={};",
    "passwd: {}",
    "Server=db;User Id=u;Password={};",
    "http://h/v1?key={}&x=1",
    "http://h/v1?access_token={}",
    "http://h/v1?subscription-key={}&a=b",
    "http://h/v1?auth={}",
    "http://h/v1?sig={}",
    "http://h/v1/{}/chat",
    "https://{}@host/v1",
    "https://user:{}@host/v1",
    "https%3A%2F%2Fuser%3A{}%40host api%5Fkey%3D{}",
    "Cookie: session={}; theme=dark",
    "Set-Cookie: sid={}; Path=/",
    "(b'x-api-key', b'{}')",
    "b'authorization', b'Bearer {}'",
    "[('x-api-key', '{}'), ('accept', '*/*')]",
    "Headers({{'api-key': '{}'}})",
    "curl -H 'X-Api-Key: {}' https://h",
    "signature={}",
]


@pytest.mark.parametrize("sentence", NAMED)
def test_credential_behind_its_name_is_taken_out(sentence: str) -> None:
    for value in (PLAIN, random_text(32, HEX), random_text(40), random_text(20, LOWER)):
        kept = without_credentials(sentence.format(value, value))
        assert left_of(kept, value, 5) == "", kept


@pytest.mark.parametrize("form", FORMS)
def test_credential_of_a_known_form_is_taken_out(form: str) -> None:
    for seed in range(20):
        value = made(form, seed)
        for sentence in ("{}", "got '{}' here", "x={}\n", "({})", "https://h/v1?a={}"):
            kept = without_credentials(sentence.format(value))
            assert not any(left_of(kept, part) for part in random_parts(form, seed)), (value, kept)


@pytest.mark.parametrize(
    "password", ["p@ss!w#rd$99", "hunter2", "correcthorsebattery", "a,b;c)d", "ünïcode1", "y7" * 1000]
)
def test_password_of_any_characters_is_taken_out(password: str) -> None:
    for sentence in ("password: {}", '"password": "{}"', "passwd='{}'", "PGPASSWORD={} psql"):
        assert left_of(without_credentials(sentence.format(password)), password, 3) == ""


@pytest.mark.parametrize("end", ["\n-----END RSA PRIVATE KEY-----", "", "\n-----END"])
def test_pem_key_is_taken_out(end: str) -> None:
    body = "\n".join(random_text(64, seed=line) for line in range(20))
    kept = without_credentials(f"key: -----BEGIN RSA PRIVATE KEY-----\n{body}{end}")
    assert not any(left_of(kept, line) for line in body.split("\n"))


def test_long_random_run_is_taken_out_without_a_name() -> None:
    for value in (AWS, random_text(40, seed=8), random_text(64, HEX), random_text(48, LOWER)):
        assert left_of(without_credentials(f"rejected {value}!"), value) == ""


@pytest.mark.parametrize("length", [32, 33, 36, 39, 41, 42, 64])
def test_bare_hexadecimal_key_is_taken_out(length: int) -> None:
    for value in (random_text(length, HEX, seed) for seed in range(20)):
        value = "1f" + value[2:]
        for text in ("{}", "rejected {}!", "the header is '{}'", "{}.", "got\n{}\nback"):
            assert left_of(without_credentials(text.format(value)), value) == ""


@pytest.mark.parametrize("name", ["key", "client", "k"])
@pytest.mark.parametrize("value", ["9f86d081884c7d659a2feaa0c55ad015", "Zx8Kq2Lm9Rt4Vb7Nc1Wd5Yf3Gh6Jk0PsQ"])
def test_random_run_behind_an_equals_sign_is_taken_out(name: str, value: str) -> None:
    assert value not in without_credentials(f"Invalid {name}={value}")


def test_bare_base64_key_is_taken_out() -> None:
    alphabet = string.ascii_letters + string.digits + "-_"
    values = [random_text(32, alphabet, seed) for seed in range(400)]
    left = [value for value in values if left_of(without_credentials(f"rejected {value}!"), value)]
    assert len(left) <= 0.03 * len(values)


def test_taking_out_twice_changes_nothing_more() -> None:
    for sentence in NAMED:
        once = without_credentials(sentence.format(PLAIN, PLAIN))
        assert without_credentials(once) == once


ORDINARY = [
    'md5 0af7651916cd43dd8448eb211c80319c, ETag: "0af7651916cd43dd8448eb211c80319c"',
    "traceparent 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "request id 0af7651916cd43dd8448eb211c80319c; x-request-id: 0af7651916cd43dd8448eb211c80319c",
    "cmpl-e5cc70bb28c444948073e77776eb30ef and embd-e5cc70bb28c444948073e77776eb30ef",
    "/tmp/cache/0af7651916cd43dd8448eb211c80319c/file",
    "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1 and Llama-3-70B-Instruct-Gradient-1048k, Qwen2-VL-72B-Instruct-GPTQ-Int4",
    "DeepSeek-R1-Distill-Qwen-32B-GGUF-Q4_K_M-imatrix, Mixtral-8x7B-Instruct-v0_1-GPTQ-4bit-128g-actorder_True",
    "00000000000000000000000000000000 of 12345678901234567890123456789012",
    "token count: 512",
    "max_tokens=100, tokens: 4096, tokens_per_minute=200000, tokenizer=Qwen/Qwen2-7B-Instruct",
    "id 123e4567-e89b-12d3-a456-426614174000 not found",
    "trace 0af7651916cd43dd8448eb211c80319c span b7ad6b7169203331",
    "commit 0a1b2c3d4e5f60718293a4b5c6d7e8f901234567 is missing",
    "https://github.com/x/y/commit/0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
    "password reset is required; the password is wrong; password: required",
    "the secret of good prose is patience; a secret: nobody knows",
    "Rate limit reached for gpt-4o-mini in organization org-AbCdEf123456 on tokens per min (TPM): Limit 200000, "
    "Used 199800, Requested 512. Please try again in 93ms.",
    "Incorrect API key provided. You can find your API key at https://platform.openai.com/account/api-keys.",
    "The API key you provided was rejected",
    "No auth credentials found; Authorization: required",
    "bearer token is missing; basic authentication is not supported; Bearer authentication required",
    "For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/404",
    "'https://api.openai.com/v1/responses/resp_68a1b2c3d4e5f6a7b8c9' answered 404",
    "/usr/local/lib/python3.11/site-packages/openai/_base_client.py line 1024",
    "request id req_011CSHoEeqs5C35K2UUqR7Fy, chatcmpl-9nYwX2TtVqFzJ3kQhZtWcS1aBcDeF",
    "ExperimentRunnerSettingsFactory2ProviderImplementationDetails is no class",
    "openai · api.openai.com · gpt-4o-mini · key 1f00d5",
    "token: expired; token_type: bearer; auth: failed; author: Jane2000; monkey: banana",
    "invalid token for claude-3-5-sonnet-20241022",
    "This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "hf_hub_download failed for meta-llama/Llama-3.1-8B-Instruct-Turbo",
    "sk-learn pipelines, pk_internal, API-compatible, key_error",
    "KeyError: 'choices' in {'usage': {'completion_tokens': 12, 'prompt_tokens_details': {'cached_tokens': 0}}}",
    "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-3-5-sonnet-20241022-v2:0",
    "2026-11-21T10:00:00.123456+00:00",
    "connection to 10.0.0.1:8080 failed: [Errno 111] Connection refused",
    "git+ssh://git@github.com/x/y.git",
    "postgresql://me:***@127.0.0.1:9/db: connection failed",
    "http://localhost:8000/v1/chat/completions?api-version=2024-10-21",
    "1 validation error for Judgement: score: Input should be a valid number, unable to parse string as a number",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert without_credentials(text) == text


PATTERNS = {name: value for name, value in vars(safe_text).items() if hasattr(value, "pattern")}


def unbounded(tree: Any, last: bool) -> bool:
    """Return whether an unbounded repetition is followed by something that can fail: each length is tried then."""
    items = list(tree)
    return any(fails_late(items, place, last) for place in range(len(items)))


def fails_late(items: list[Any], place: int, last: bool) -> bool:
    code, given = items[place]
    ends = last and place == len(items) - 1
    if code in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        _, most, inner = given
        without_bound = most is _constants.MAXREPEAT and not (ends or optional(items[place + 1 :], last))
        return without_bound or unbounded(inner, most == 1 and ends)
    if code is _constants.SUBPATTERN:
        return unbounded(given[-1], ends)
    return code is _constants.BRANCH and any(unbounded(each, ends) for each in given[1])


def optional(items: list[Any], last: bool) -> bool:
    """Return whether all that follows may be nothing, so that it cannot fail."""
    return last and all(code is _constants.MAX_REPEAT and given[0] == 0 for code, given in items)


SEARCHED = (
    "NAMED",
    "AUTHORIZATION",
    "PROSE",
    "SCHEME",
    "COOKIE",
    "PREFIXED",
    "JWT",
    "PEM",
    "ADDRESS",
    "PARAMETER",
    "RUN",
    "ENCODED_USER",
)


@pytest.mark.parametrize("name", SEARCHED)
def test_searched_pattern_has_no_repetition_that_can_fail_late(name: str) -> None:
    assert not unbounded(_parser.parse(PATTERNS[name].pattern), True)


def test_every_pattern_that_is_searched_for_is_looked_at() -> None:
    constants = {name for name in PATTERNS if not name.startswith("_")}
    assert constants - set(SEARCHED) == {"SECRET_NAME", "UNPRINTABLE", "BROKEN"}


HOSTILE = [
    "a",
    "token:",
    "eyJ.",
    "://",
    "://a@",
    "?key",
    'key: "',
    "-----BEGIN A KEY-----",
    "Bearer ",
    "a=",
    "cookie: a",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_text_is_read_in_linear_steps(part: str) -> None:
    """Counts the calls of Python functions and of C functions, which grow with the text and not with its square."""

    def steps(size: int) -> int:
        count = 0

        def called(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += 1

        text = (part * size)[:size]
        # The first call compiles the patterns that such a text needs.
        without_credentials(text)
        # A collection would count too, with the callbacks of other tests' objects.
        gc.disable()
        sys.setprofile(called)
        try:
            without_credentials(text)
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    assert steps(16_000) <= 5 * steps(4_000) + 500


@pytest.mark.parametrize("part", ["pass={", "key=(", "token: ["])
def test_end_of_a_value_is_looked_for_only_where_it_is_secret(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of names alone took time with the square of its length: each value ends where the text does."""
    read = 0

    class Counted:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern = pattern

        def match(self, text: str, at: int) -> re.Match[str] | None:
            nonlocal read
            found = self.pattern.match(text, at)
            read += found.end() - at if found is not None else 0
            return found

    for name in ("_REST", "_STRONG_REST"):
        monkeypatch.setattr(safe_text, name, Counted(getattr(safe_text, name)))
    text = part * 2000
    without_credentials(text)
    assert read <= len(text)


def test_masked_address_tells_two_credentials_apart_and_shows_none() -> None:
    def digest(value: str) -> str:
        return f"{sum(map(ord, value)):016x}"

    one, other = (masked(f"https://h/{random_text(20, seed=seed)}/v1", digest) for seed in (1, 2))
    assert one != other
    assert re.fullmatch(r"https://h/~[0-9a-f]{16}/v1", one)
    assert masked(one, digest) == one
    assert without_digests(one) == without_digests(other) == "https://h/~/v1"


@pytest.mark.parametrize(
    "address",
    ["http://h:8000/v1", "https://gateway.test/openai/deployments/gpt-4o", "x", "https://h/api/v1beta1/team-a"],
)
def test_address_without_a_credential_is_shown_as_it_is(address: str) -> None:
    assert shown_address(address) == address


def test_address_is_shown_without_user_and_query() -> None:
    assert shown_address("https://u:p@h:1/v1?key=k#f") == "https://h:1/v1"


@pytest.mark.parametrize(
    "value", ["gpt-4o-mini", "claude-3-5-sonnet-20241022", "v1", "completions", "2024-10-21", "team-a"]
)
def test_names_of_models_and_versions_do_not_look_secret(value: str) -> None:
    assert not looks_secret(value)
