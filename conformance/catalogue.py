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

TOKENS = "{packages}/litellm/litellm_core_utils/tokenizers"
"""Where LiteLLM keeps tiktoken's files."""

Answer = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Framework:
    """One run of a framework.

    name          on the command line and in the table
    installation  below .venv, and its exact versions in `pins/<installation>.txt`
    requirements  what is installed: the framework, and what it needs beside it
    example       in examples/frameworks
    page          anchor of its section in docs/frameworks.md; "" if only the table there names it
    command       run in a copy of examples/frameworks; `{url}` is the endpoint, `{model}` the model
    outcome       what the run came to, from its standard output and the folder it ran in
    answer        the form in which the model gives the right answer
    per_row       requests that a row needs
    besides       requests of the run itself
    settings      the environment variables that keep it off the network; `{packages}` is where its packages are
    """

    name: str
    installation: str
    requirements: tuple[str, ...]
    example: str
    page: str = ""
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


def _result(answer: str) -> str:
    return json.dumps({"result": answer})


def _score(answer: str) -> str:
    return json.dumps({"reason": f"The product is {answer}.", "score": 10})


def _verdict(answer: str) -> str:
    return json.dumps({"reason": f"The product is {answer}.", "value": "right"})


def _label(answer: str) -> str:
    return json.dumps({"explanation": f"The product is {answer}.", "label": "right"})


def _judged(answer: str) -> str:
    return json.dumps({"reasoning": f"The product is {answer}.", "score": True})


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
    Framework("aisuite", "aisuite", ("aisuite[openai]==0.2.0",), "aisuite_threads.py"),
    Framework(
        "agent-framework",
        "agent-framework",
        ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0"),
        "agent_framework_run.py",
    ),
    Framework("agno", "agno", ("agno==3.1.10", "openai==3.54.0"), "agno_agents.py"),
    Framework("autogen", "autogen", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"), "autogen_agents.py"),
    # camel-ai 0.2.90 imports mcp.server.FastMCP, which is gone in 2. LiteLLM has the file of tokens that it fetches.
    Framework(
        "camel",
        "camel",
        ("camel-ai==0.2.90", "mcp<2", "litellm==1.106.2"),
        "camel_agents.py",
        settings={"TIKTOKEN_CACHE_DIR": TOKENS},
    ),
    Framework(
        "crewai",
        "crewai",
        ("crewai==1.15.30",),
        "crewai_kickoff.py",
        settings={"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "CREWAI_TESTING": "true"},
    ),
    Framework(
        "curator",
        "curator",
        ("bespokelabs-curator==0.1.31",),
        "curator_llm.py",
        besides=1,  # it asks for the headers first
        settings={
            "TIKTOKEN_CACHE_DIR": TOKENS,
            "TELEMETRY_ENABLED": "false",
            "CURATOR_DISABLE_CACHE": "true",
            "CURATOR_DISABLE_RICH_DISPLAY": "1",
        },
    ),
    Framework("daft", "daft", ("daft[openai]==0.7.26",), "daft_prompt.py", settings={"DO_NOT_TRACK": "true"}),
    Framework("deepagents", "deepagents", ("deepagents==0.7.32", "langchain-openai==1.7.3"), "deepagents_invoke.py"),
    # distilabel 1.5.3 imports requests, and does not require it.
    Framework("distilabel", "distilabel", ("distilabel[openai]==1.5.3", "requests"), "distilabel_pipeline.py"),
    Framework(
        "google-adk",
        "adk",
        ("google-adk==2.13.0", "litellm==1.106.2"),
        "google_adk_runner.py",
        settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Framework(
        "haystack",
        "haystack",
        ("haystack-ai==3.4.0",),
        "haystack_pipeline.py",
        settings={"HAYSTACK_TELEMETRY_ENABLED": "False"},
    ),
    Framework("langfuse", "langfuse", ("langfuse==5.0.4", "openai==3.54.0"), "langfuse_experiment.py"),
    Framework("langgraph", "langgraph", ("langgraph==1.2.22", "langchain-openai==1.7.3"), "langgraph_abatch.py"),
    Framework(
        "langsmith",
        "langsmith",
        ("langsmith==0.15.0", "openai==3.54.0"),
        "langsmith_aevaluate.py",
        settings={"LANGSMITH_TRACING": "false"},
    ),
    Framework("lightrag", "lightrag", ("lightrag-hku==1.5.7", "openai==3.54.0"), "lightrag_query.py"),
    Framework(
        "llama-index",
        "llama-index",
        ("llama-index-core==0.14.25", "llama-index-llms-openai==0.8.3"),
        "llama_index_agents.py",
    ),
    Framework("llm", "llm", ("llm==0.36",), "llm_threads.py"),
    Framework("magentic", "magentic", ("magentic==0.41.1",), "magentic_prompts.py"),
    # marvin 3.2.7 makes a ModelResponsePartsManager without arguments, which pydantic-ai 1.107.10 refuses.
    Framework("marvin", "marvin", ("marvin==3.2.7", "pydantic-ai==1.56.0"), "marvin_run.py", answer=_result),
    Framework("mirascope", "mirascope", ("mirascope[openai]==2.8.2",), "mirascope_calls.py"),
    Framework(
        "openevals", "openevals", ("openevals==0.2.2", "langchain-openai==1.7.3"), "openevals_judge.py", answer=_judged
    ),
    Framework(
        "opik",
        "opik",
        ("opik==2.2.122",),
        "opik_metric.py",
        answer=_score,
        per_row=2,  # first the steps of the evaluation, then the score
        settings={"OPIK_TRACK_DISABLE": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Framework(
        "ray",
        "ray",
        ("ray[data]==2.60.0", "aiohttp==3.14.5"),
        "ray_data_processor.py",
        settings={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"},
    ),
    Framework("semantic-kernel", "semantic-kernel", ("semantic-kernel==1.45.0",), "semantic_kernel_gather.py"),
    Framework("smolagents", "smolagents", ("smolagents[openai]==1.26.0",), "smolagents_model.py"),
    Framework("strands", "strands", ("strands-agents[openai]==1.62.0",), "strands_agents.py"),
    Framework(
        "weave",
        "weave",
        ("weave==0.54.0", "openai==3.54.0"),
        "weave_evaluation.py",
        settings={"WEAVE_DISABLED": "true", "WANDB_MODE": "disabled", "WANDB_ERROR_REPORTING": "false"},
    ),
)
