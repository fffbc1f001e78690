"""YAML files: what cannot be read, or means nothing, is refused by file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.credentials import made
from tidegate.errors import ConfigurationError
from tidegate.experiments.declared.schema import Document, declared

WHOLE = """\
name: capitals
dataset: questions.jsonl
task:
  provider: openai
  model: gpt-5-mini
  prompt: What is the capital of {country}?
evaluators:
  - name: judge
    provider: anthropic
    model: claude-haiku-4-5
    prompt: Is {output} right?
    parse: label
    labels: [right, wrong]
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        declared(Document("experiment.yaml", text))
    return str(raised.value)


def test_a_whole_declaration_is_read() -> None:
    read = declared(Document("experiment.yaml", WHOLE))
    assert (read.name, read.repetitions, read.task.model) == ("capitals", 1, "gpt-5-mini")
    assert read.credentials == ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("name: capitals\n", "", "line 1, name", "it is missing"),
        ("  model: gpt-5-mini\n", "", "line 3, task.model", "it is missing"),
        (
            "name: capitals",
            "nmae: capitals",
            "line 1, nmae",
            "there is no such field; the fields are batch, budget, dataset, evaluators",
        ),
        (
            "name: capitals",
            "name: capitals\nbudget: {foo: 1}",
            "line 2, budget.foo",
            "there is no such field; the fields are tokens, usd",
        ),
        (
            "name: capitals",
            "name: capitals\nbudget: 5",
            "line 2, budget",
            "5 is not usable: it must be a mapping; its fields are tokens, usd",
        ),
        ("gpt-5-mini", "5", "line 5, task.model", "5 is not usable: Input should be a valid string"),
        ("openai", "opnai", "line 4, task.provider", "'opnai' is not usable: Input should be 'openai'"),
        ("[right, wrong]", "[yes, no]", "line 13, evaluators.0.labels.0", 'write it in quotes, "yes" or "no"'),
        ("{country}", "Chad", "line 6, task.prompt", "it asks the same of every row"),
        ("Is {output} right", "Is {country} right", "line 11, evaluators.0.prompt", "a judge must see the answer"),
        ("    parse: label\n", "", "line 12, evaluators.0.labels", "`labels` and `parse: label` need each other"),
        (
            "name: judge",
            "name: judge\n    outputs: [a]",
            "line 9, evaluators.0.outputs",
            "`outputs` and `parse: json` need each other",
        ),
        (
            "name: judge",
            "name: judge\n    range: [0, 1]",
            "line 9, evaluators.0.range",
            "`range` is [least, most], with `parse: score` only",
        ),
        (
            "    labels: [right, wrong]\n",
            "",
            "line 12, evaluators.0.parse",
            "'label' is not usable: `labels` and `parse: label`",
        ),
        ("  prompt: What", "  # prompt: What", "line 3, task.prompt", "either `prompt` or `messages`"),
        ("provider: openai", "provider: compatible", "line 3, task.base_url", "a compatible provider needs its"),
        (
            "  model: gpt-5-mini",
            "  parameters: {seed: .nan}\n  model: m",
            "line 5, task.parameters.seed:",
            "nan is not",
        ),
        ("name: capitals", "name: capitals\nrepetitions: 0", "line 2, repetitions", "0 is not usable"),
        ("  prompt", "  messages: []\n  prompt", "line 6, task.messages", "at least 1 item"),
        ("name: capitals", "name: capitals\nname: twice", "line 2, name", "it is given twice"),
        ("task:", "task: [", "line 5", "it is not YAML"),
    ],
)
def test_a_mistake_is_named_by_line_and_field(old: str, new: str, where: str, what: str) -> None:
    assert old in WHOLE
    said = refusal(WHOLE.replace(old, new, 1))
    assert said.startswith(f"experiment.yaml, {where}"), said
    assert what in said
    assert "\n" not in said


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    assert "a mapping" in refusal(text)


def test_two_evaluators_of_one_name_are_refused() -> None:
    judge = WHOLE[WHOLE.index("  - name") :]
    said = refusal(WHOLE + judge)
    assert said == "experiment.yaml, line 14, evaluators.1.name: 'judge' is not usable: another evaluator has this name"


def test_an_evaluator_with_the_name_of_the_stage_of_tasks_is_refused() -> None:
    said = refusal(WHOLE.replace("- name: judge", "- name: task"))
    assert said == "experiment.yaml, line 8, evaluators.0.name: 'task' is not usable: the stage of tasks has this name"


SECRET = "sk-a-real-key-that-must-not-be-shown"


@pytest.mark.parametrize(
    "line",
    [
        f"api_key: {SECRET}",
        f"api_key_env: {SECRET}",
        f"parameters: {{api_key: {SECRET}}}",
        f"parameters: {{extra_headers: {{authorization: {SECRET}}}}}",
        f"parameters: {{extra_body: [{{Authorization: {SECRET}}}]}}",
        f"base_url: https://user:{SECRET}@host/v1",
        f"base_url: https://host/v1?key={SECRET}",
    ],
)
def test_a_credential_in_the_file_is_refused_and_not_shown(line: str) -> None:
    said = refusal(WHOLE.replace("  model: gpt-5-mini", f"  model: gpt-5-mini\n  {line}", 1))
    assert SECRET not in said
    assert "credential" in said or "environment variable" in said


@pytest.mark.parametrize("name", ["model", "messages", "stream"])
def test_a_parameter_that_another_field_gives_is_refused(name: str) -> None:
    said = refusal(WHOLE.replace("  model: gpt-5-mini", f"  model: gpt-5-mini\n  parameters: {{{name}: x}}", 1))
    assert f"line 6, task.parameters.{name}: 'x' is not usable: it is not a parameter here" in said


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    """A billion laughs: ten aliases of ten aliases, nine levels up."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    said = refusal("\n".join(levels))
    assert "each alias counted as its full content" in said
    assert "\n" not in said
    merged = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    assert "at most 10000 values" in refusal("\n".join(merged))


def test_aliases_that_multiply_one_long_text_are_refused() -> None:
    said = refusal("a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 100) + "]\n")
    assert "characters, each alias counted as its full content" in said


def test_aliases_of_ordinary_size_are_read() -> None:
    document = Document("a.yaml", "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}")
    assert document.values == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_a_deep_document_is_refused_and_breaks_nothing() -> None:
    assert "it is not YAML" in refusal("name: " + "[" * 3000 + "]" * 3000)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.yaml' is not usable: a readable file"):
        Document.of(tmp_path / "nothing.yaml")


PREFIXED = made("openai-legacy-key")


@pytest.mark.parametrize(
    ("old", "field"),
    [
        ("capital of", "line 6, task.prompt"),
        ("capitals", "line 1, name"),
        ("Is {output}", "line 11, evaluators.0.prompt"),
        ("gpt-5-mini", "line 5, task.model"),
        ("[right, ", "line 13, evaluators.0.labels.0"),
    ],
)
@pytest.mark.parametrize("credential", [PREFIXED, "harbour-wall-of-stone"])
def test_credential_anywhere_in_a_declaration_is_refused(
    monkeypatch: pytest.MonkeyPatch, old: str, field: str, credential: str
) -> None:
    monkeypatch.setenv("HARBOUR_KEY", "harbour-wall-of-stone")
    new = f"[{credential}, " if old == "[right, " else f"{old} {credential}"
    text = refusal(WHOLE.replace(old, new, 1))
    assert text.startswith(f"experiment.yaml, {field}: '…' is not usable: it holds a credential")
    assert credential not in text


def test_prompt_about_credentials_is_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "postgres")
    prompt = "Does {country} hold a secret, a token or a password for postgres, as sk-… or api_key=abc?"
    assert declared(Document("experiment.yaml", WHOLE.replace("What is the capital of {country}?", f'"{prompt}"')))


def test_credential_in_the_path_of_a_base_url_is_refused() -> None:
    address = "provider: openai\n  base_url: https://gateway.test/HARBOURPATHKEY77/v1"
    text = refusal(WHOLE.replace("provider: openai", address))
    assert text.startswith("experiment.yaml, line 5, task.base_url: '…' is not usable: its path may hold a credential")
    assert "HARBOUR" not in text


def test_variable_in_a_base_url_is_filled_in_when_it_is_asked() -> None:
    text = WHOLE.replace("provider: openai", "provider: openai\n  base_url: https://gateway.test/${GATEWAY_KEY}/v1")
    read = declared(Document("experiment.yaml", text))
    assert "GATEWAY_KEY" in read.credentials
    assert read.task.address({"GATEWAY_KEY": "HARBOURPATHKEY77"}) == "https://gateway.test/HARBOURPATHKEY77/v1"
    assert read.task.base_url == "https://gateway.test/${GATEWAY_KEY}/v1"


@pytest.mark.parametrize("segment", ["0123456789abcdef0123456789abcdef", "123e4567-e89b-12d3-a456-426614174000", "api"])
def test_account_in_the_path_of_a_base_url_is_no_credential(segment: str) -> None:
    text = WHOLE.replace("provider: openai", f"provider: openai\n  base_url: https://gateway.test/{segment}/v1")
    assert declared(Document("experiment.yaml", text)).task.base_url == f"https://gateway.test/{segment}/v1"
