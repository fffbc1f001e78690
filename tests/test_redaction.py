"""A credential that this process uses is taken out of every text, whatever it looks like and however it is written."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from tests.credentials import left_of
from tidegate.admission import redaction
from tidegate.admission.redaction import (
    CredentialStore,
    clean,
    environment_credentials,
    in_address,
    in_headers,
    in_query,
)

ODD = 'harbour wall"s\\ édge+/=&%'
"""A credential that no pattern knows, and that every encoding changes."""

WORDY = "harbourwallmorning"


@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(json.dumps({"a": value})),
        lambda value: repr(value.encode()),
        lambda value: repr({"x": value}),
        lambda value: quote(value),
        lambda value: quote(value, safe=""),
        quote_plus,
        lambda value: re.sub("%..", lambda found: found[0].lower(), quote_plus(value)),
        lambda value: json.dumps(value).replace("/", r"\/"),
        lambda value: quote(quote(value, safe=""), safe=""),
        html.escape,
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
        lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
        lambda value: base64.b64encode(f"u:{value}".encode()).decode(),
        lambda value: base64.b64encode(f"us:{value}:x".encode()).decode(),
    ],
)
@pytest.mark.parametrize("value", [ODD, WORDY])
def test_known_credential_is_taken_out_in_every_form(write: object, value: str) -> None:
    written = write(value)  # type: ignore[operator]
    redaction.remember([value])
    kept = redaction.without_known(f"<{written}>")
    assert left_of(kept, written, 9) in write(""), kept  # type: ignore[operator]


def test_beginning_of_a_known_credential_is_taken_out() -> None:
    redaction.remember([WORDY])
    assert clean(f"got {WORDY[:13]}, cut") == "got …, cut"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"… {WORDY[4:]} is wrong", "… … is wrong"),
        (f"tail {WORDY[3:16]}, cut", "tail …, cut"),
        (f"{WORDY[:12]}\n{WORDY[12:]}{WORDY}", "…\norning…"),
        ("the wall of the harbour in the morning", "the wall of the harbour in the morning"),
    ],
)
def test_part_of_a_known_credential_is_taken_out(text: str, kept: str) -> None:
    """A message is wrapped, or cut at its beginning; what is shorter than twelve characters stays."""
    redaction.remember([WORDY])
    assert clean(text, lines=True) == kept


@pytest.mark.parametrize("value", ["0a1b2c3d4e5f60718293a4b5c6d7e8f9", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"])
def test_known_hexadecimal_credential_is_taken_out_in_either_case(value: str) -> None:
    redaction.remember([value])
    assert clean(f"<{value.upper()}> <{value}>") == "<…> <…>"


def test_known_credential_that_is_wrapped_is_taken_out() -> None:
    value = WORDY * 3 + "ends-with-a-harbour"
    redaction.remember([value])
    wrapped = "\n    ".join(value[start : start + 24] for start in range(0, len(value), 24))
    assert left_of(clean(f"key: {wrapped}", lines=True), value, redaction.PREFIX) == ""


def test_known_credential_is_taken_out_of_a_longer_word() -> None:
    redaction.remember([WORDY])
    assert clean(f"x{WORDY}y") == "x…y"


def test_short_credential_is_taken_out_as_a_word_of_its_own() -> None:
    redaction.remember(["ab12", "test", "none", ""])
    assert clean("ab12 cab123 test none") == "… cab123 test none"


def test_placeholder_for_a_key_is_no_credential() -> None:
    redaction.remember(["not-needed", "lm-studio", "sk-no-key-required"])
    assert len(redaction.STORE) == 0


def test_store_keeps_the_last_credentials_that_were_used() -> None:
    store = CredentialStore(most=3)
    for number in range(5):
        store.remember([f"credential-{number}"])
        store.remember(["credential-0"])
    assert [store.knows(f"credential-{number}") for number in range(5)] == [True, False, False, True, True]
    assert len(store) == 3


def test_store_is_shown_without_what_it_holds() -> None:
    store = CredentialStore()
    store.remember([WORDY])
    assert repr(store) == "CredentialStore(1 credentials)"


def test_store_takes_credentials_from_many_threads_at_once() -> None:
    store = CredentialStore(most=1000)
    names = [[f"credential-{thread}-{number}" for number in range(50)] for thread in range(8)]
    threads = [threading.Thread(target=lambda mine=mine: [store.remember([each]) for each in mine]) for mine in names]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(store) == 400


def test_text_beyond_the_bound_is_not_read() -> None:
    redaction.remember([WORDY])
    text = "word " * 200_000 + WORDY
    kept = clean(text)
    assert len(kept) < len(text) / 4
    assert kept == clean(text[: 2 * len(kept)])
    assert "tail" not in clean(f"{WORDY} " * 20_000 + "tail"), "redaction makes room, but no more is read"


def test_credential_that_the_bound_cuts_is_taken_out() -> None:
    value = "harbour-" * 1000
    redaction.remember([value])
    kept = len(clean("." * 1_000_000))
    for before in (*range(kept - 8100, kept + 9000, 2700), kept - 10):
        assert left_of(clean("." * before + value), value) == ""


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("JUDGE_KEY", WORDY, WORDY),
        ("MY_PWD", WORDY, WORDY),
        ("PROVIDER_API_KEY", WORDY, WORDY),
        ("REGION_SECRET_KEY", WORDY, WORDY),
        ("MY_MAX_TOKENS_KEY", WORDY, WORDY),
        ("HTTP_PROXY_URL_PASSWORD", WORDY, WORDY),
        ("DB_PASS", WORDY, WORDY),
        ("DATABASE_URL", f"postgresql://u:{WORDY}@h/db", WORDY),
        ("HTTPS_PROXY", "http://u:p%40ssw%C3%B6rd1@proxy:3128", "p@sswörd1"),
        ("SENTRY_DSN", "https://0a1b2c3d4e5f60718293a4b5c6d7e8f9@h/1", "0a1b2c3d4e5f60718293a4b5c6d7e8f9"),
        ("LLM_APIKEY_B64", "YWJjZGVmZ2g=", "YWJjZGVmZ2g="),
        ("API_TOKENS", f"{WORDY},other-harbour", "other-harbour"),
        ("LLM_BASE_URL", "https://h/q7harbourwall9/v1", "q7harbourwall9"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={WORDY},x-of=mine", WORDY),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-hdr=q7Wk2Lm9Zp4Rt8Vb3Nc6,x-of=mine", "q7Wk2Lm9Zp4Rt8Vb3Nc6"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", f"Authorization=Bearer%20{WORDY}", WORDY),
        ("ANTHROPIC_CUSTOM_HEADERS", f"X-Of: mine\nX-Api-Key: {WORDY}", WORDY),
        ("EXTRA_HEADERS", json.dumps({"x-of": "mine", "Authorization": f"Bearer {WORDY}"}), WORDY),
    ],
)
def test_credential_of_the_environment_is_taken_out(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, secret: str
) -> None:
    monkeypatch.setenv(name, value)
    assert left_of(clean(f"got {secret}!"), secret, 4) == ""


def test_headers_of_a_variable_that_hold_no_credential_stay_in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=evaluations,user-agent=my-evaluation-program/1")
    text = "the team evaluations runs my-evaluation-program/1"
    assert clean(text) == text


@pytest.mark.parametrize("key", [f"sk-{WORDY}0123456789", "0a1b2c3d4e5f60718293a4b5c6d7e8f9"])
def test_fact_of_a_provider_holds_no_part_of_a_known_credential(key: str) -> None:
    redaction.remember([key])
    for fact in (key, key[:20], key[-20:], f"req_{key[4:24]}", key.upper() if key[0] == "0" else key[:12]):
        assert left_of(str(redaction.clean_fact(fact)).lower(), key.lower(), 12) == "", fact


def test_ids_of_providers_stay_as_they_are() -> None:
    redaction.remember([f"sk-{WORDY}0123456789"])
    facts = ["req_011CSHoEeqs5C35K2UUqR7Fy", "123e4567-e89b-12d3-a456-426614174000", "0af7651916cd43dd8448eb211c80319c",
             "stop", "max_tokens", "sk-harbour", None, ""]  # fmt: skip
    assert [redaction.clean_fact(fact) for fact in facts] == facts


def test_variables_about_credentials_are_not_taken_for_them(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    environ = {
        "PWD": str(tmp_path),
        "SSH_AUTH_SOCK": str(tmp_path / "agent"),
        "SSL_KEY": str(tmp_path / "x" / "my.key"),
        "AUTH_MODE": "required-always",
        "MAX_TOKENS": "100000000",
        "MAX_TOKENS_PER_MINUTE": "unlimited-here",
        "API_KEY_FILE": "somewhere-else",
        "AUTH_MODE_DEFAULT": "required-always",
        "TOKENIZERS_PARALLELISM": "disabled",
        "OPENAI_BASE_URL": "https://gateway.test/openai/v1",
        "API_KEY_HEADER_NAME": "x-harbour-name",
        "XDG_SESSION_TYPE": "wayland-session",
    }
    assert environment_credentials(environ) == set()


def test_headers_of_a_request_tell_their_credentials() -> None:
    basic = base64.b64encode(b"user:wall-of-stone").decode()
    pairs = [
        ("Authorization", "Bearer harbour-one"),
        ("x-api-key", "harbour-two"),
        ("x-custom-cred", "HARBOUR33"),
        ("Helicone-Auth", "Bearer harbour-four"),
        ("x-portkey", "q7harbourfive"),
        ("Cookie", "a=harbour-six; b=harbour-seven"),
        ("Proxy-Authorization", f"Basic {basic}"),
        ("content-type", "application/json"),
        ("x-stainless-runtime-version", "3.11.7abcdef1234"),
        ("idempotency-key", "stainless-python-retry-123e4567"),
        ("x-b", "plain"),
    ]
    assert set(in_headers(pairs)) == {
        *("harbour-one", "harbour-two", "HARBOUR33", "harbour-four", "q7harbourfive", "harbour-six", "harbour-seven"),
        *(basic, "wall-of-stone"),
    }


def test_credential_with_spaces_in_it_is_known_as_a_whole() -> None:
    assert "what, no shape & no prefix" in set(in_headers([("authorization", "Bearer what, no shape & no prefix")]))
    assert "what, no shape & no prefix" in set(in_headers([("authorization", "what, no shape & no prefix")]))


def test_signed_request_tells_key_id_and_signature() -> None:
    signed = (
        "AWS4-HMAC-SHA256 Credential=AKIDHARBOUR/20261121/us/bedrock/aws4_request, SignedHeaders=host, Signature=f00"
    )
    assert set(in_headers([("authorization", signed)])) == {"AKIDHARBOUR", "f00"}


def test_query_and_address_tell_their_credentials() -> None:
    assert set(in_query("api-version=2024-10-21&key=a%2Bb&sig=c&x=1")) == {"a%2Bb", "a+b", "c"}
    found = set(in_address("https://u:p%3Aw@h/q7harbourwall9/v1?access_token=t#f"))
    assert found == {"p%3Aw", "p:w", "u:p%3Aw", "q7harbourwall9", "t"}
    assert set(in_address("http://[::1")) == set()


@pytest.mark.parametrize(
    "characters", ["\x1b[2J", "\r\nSet-Cookie: x", "\x9b31m", "\x7f", "\u202e", "\u2028", "\u2066", "\x00"]
)
def test_control_characters_are_escaped(characters: str) -> None:
    kept = clean(f"model {characters} says")
    assert kept.isprintable()
    assert kept != f"model {characters} says"


def test_text_of_any_language_stays_as_it_is() -> None:
    text = "naïve · 日本語\u3000全角 · \u0645\u06cc\u200c\u062e · 👩\u200d💻 · a\u00a0b"
    assert clean(text) == text


class TestLog:
    @pytest.fixture
    def lines(self) -> Iterator[list[str]]:
        """Return the text that a handler of the root logger writes."""
        kept: list[str] = []

        class Kept(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                kept.append(self.format(record))
                kept.append(repr(record.exc_info) + repr(record.args) + str(record.msg))

        handler = Kept()
        logging.getLogger().addHandler(handler)
        yield kept
        logging.getLogger().removeHandler(handler)

    def test_message_arguments_and_traceback_are_redacted(self, lines: list[str]) -> None:
        redaction.remember([WORDY])
        try:
            raise ValueError(f"with {WORDY} at https://u:{WORDY}@h")
        except ValueError as error:
            logging.getLogger("tidegate").exception("failed with %s: %s", WORDY, error)
        assert WORDY not in "".join(lines)
        assert "ValueError: with …" in lines[0]

    def test_line_of_a_log_stays_one_line(self, lines: list[str]) -> None:
        logging.getLogger("tidegate").warning("model %s", "gpt\r\nERROR forged\x1b[2J")
        assert lines[0] == r"model gpt\r\nERROR forged\x1b[2J"

    def test_record_without_a_credential_stays_as_it_was(self, lines: list[str]) -> None:
        try:
            raise ValueError("plain")
        except ValueError:
            logging.getLogger("tidegate").exception("failed with %d", 7)
        assert "plain" in lines[1]
        assert "(7,)" in lines[1]

    def test_every_logger_of_the_project_is_redacted(self) -> None:
        source = Path(redaction.__file__).parent
        named = [path for path in source.rglob("*.py") if "getLogger(" in path.read_text()]
        loggers = {line.split("getLogger(")[1].split(")")[0] for path in named for line in path.read_text().split("\n")
                   if "getLogger(" in line}  # fmt: skip
        assert loggers <= {'"tidegate"', '"opentelemetry"'}, loggers
