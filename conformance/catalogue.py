"""The frameworks that tidegate is held to: one row each, and the data set that all of them run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.environments import HOME, Environment
from conformance.outcomes import Outcome, inspect_log, last_line, lm_eval_results

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "frameworks"
PINS = Path(__file__).parent / "pins"
MODEL = "gpt-5-mini"

Answer = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Framework:
    """One run of a framework.

    name          on the command line and in the table
    installation  below .venv, and its exact versions in `pins/<installation>.txt`
    requirements  what is installed: the framework, and what it needs beside it
    example       in examples/frameworks
    page          anchor of its section in docs/frameworks.md
    command       run in a copy of examples/frameworks; `{url}` is the endpoint, `{model}` the model
    outcome       what the run came to, from its standard output and the folder it ran in
    answer        the form in which the model gives the right answer
    per_row       requests that a row needs
    besides       requests of the run itself
    settings      the environment variables that keep it off the network
    """

    name: str
    installation: str
    requirements: tuple[str, ...]
    example: str
    page: str
    command: tuple[str, ...] = ()
    outcome: Callable[[str, Path], Outcome | None] = last_line
    answer: Answer = str
    per_row: int = 1
    besides: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    def requests(self, number: int) -> int:
        """How many so many rows need."""
        return number * self.per_row + self.besides

    @property
    def version(self) -> str:
        """The framework's own."""
        return self.requirements[0].partition("==")[2]

    @property
    def environment(self) -> Environment:
        """Where it is installed."""
        return Environment(
            folder=HOME / f"frameworks-{self.installation}",
            pins=PINS / f"{self.installation}.txt",
            requirements=self.requirements,
        )

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command; by default the example itself."""
        return self.command or ("python", self.example)


def rows() -> list[dict[str, str]]:
    """The data set: `question` and `answer`."""
    return [json.loads(line) for line in (EXAMPLES / "rows.jsonl").read_text().splitlines()]


def _fields(answer: str) -> str:
    return f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"


def _number(answer: str) -> str:
    return json.dumps({"answer": int(answer)})


def _response(answer: str) -> str:
    return json.dumps({"response": int(answer)})


def _score(answer: str) -> str:
    return json.dumps({"reason": f"The product is {answer}.", "score": 10})


def _verdict(answer: str) -> str:
    return json.dumps({"reason": f"The product is {answer}.", "value": "right"})


def _label(answer: str) -> str:
    return json.dumps({"explanation": f"The product is {answer}.", "label": "right"})


def _lm_eval(name: str, concurrent: int) -> Framework:
    at = f"model={{model}},base_url={{url}}/chat/completions,num_concurrent={concurrent}"
    options = ("--tasks", "products", "--include_path", ".", "--apply_chat_template")
    kept = ("--output_path", "results", "--log_samples")
    return Framework(
        name,
        "lm_eval",
        ("lm_eval[api]==0.4.13",),
        "lm_eval_products.yaml",
        "lm-eval",
        command=("lm_eval", "--model", "local-chat-completions", *options, "--model_args", at, *kept),
        outcome=lm_eval_results,
        settings={"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )


FRAMEWORKS = (
    Framework(
        "inspect_ai",
        "inspect_ai",
        ("inspect-ai==0.3.285", "openai==3.52.0"),
        "inspect_ai_task.py",
        "inspect-ai",
        command=("inspect", "eval", "inspect_ai_task.py", "--model", "openai/{model}", "--log-format", "json"),
        outcome=inspect_log,
        besides=1,  # "Please say 'hello, world'" asks whether the key may have summaries of reasoning
    ),
    _lm_eval("lm_eval-1", 1),
    _lm_eval("lm_eval-4", 4),
    Framework(
        "deepeval",
        "deepeval",
        ("deepeval==4.3.1",),
        "deepeval_evaluate.py",
        "deepeval",
        answer=_score,
        settings={"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "DEEPEVAL_NO_INSPECT_PROMPT": "1"},
    ),
    Framework(
        "dspy",
        "dspy",
        ("dspy==3.4.1",),
        "dspy_evaluate.py",
        "dspy",
        answer=_fields,
        settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Framework("langchain-openai", "langchain", ("langchain-openai==1.7.3",), "langchain_batch.py", "langchain"),
    Framework(
        "litellm",
        "litellm",
        ("litellm==1.106.2",),
        "litellm_gather.py",
        "litellm",
        settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Framework(
        "instructor", "instructor", ("instructor==1.17.0",), "instructor_extract.py", "instructor", answer=_number
    ),
    Framework(
        "pydantic-evals",
        "pydantic-ai",
        ("pydantic-ai-slim[openai]==2.62.0", "pydantic-evals==2.62.0"),
        "pydantic_evals_dataset.py",
        "pydantic-ai",
        answer=_response,
    ),
    Framework(
        "openai-agents",
        "openai-agents",
        ("openai-agents==0.24.0",),
        "openai_agents_runner.py",
        "openai-agents",
        per_row=2,
        settings={"OPENAI_AGENTS_DISABLE_TRACING": "1"},
    ),
    Framework(
        "ragas",
        "ragas",
        # ragas 0.4.3 imports langchain_community.chat_models.vertexai, which is gone in 0.4.
        ("ragas==0.4.3", "langchain-community<0.4", "langchain<1", "langchain-core<1", "langchain-openai<1"),
        "ragas_experiment.py",
        "ragas",
        answer=_verdict,
        settings={"RAGAS_DO_NOT_TRACK": "true"},
    ),
    Framework(
        "phoenix-evals",
        "phoenix-evals",
        ("arize-phoenix-evals==3.9.4", "openai==3.52.0"),
        "phoenix_classify.py",
        "phoenix-evals",
        answer=_label,
    ),
)
