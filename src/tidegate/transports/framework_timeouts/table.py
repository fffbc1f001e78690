"""The known framework timeouts, one entry each, with the source file in which each was found."""

from __future__ import annotations

from tidegate.transports.framework_timeouts.timeout import EnvironmentDefault, FrameworkTimeout, ParameterDefault

PHOENIX_RUNS = ("run_experiment", "resume_experiment", "evaluate_experiment", "resume_evaluation")
DEEPEVAL_SETTINGS = "deepeval.config.settings:get_settings"

TIMEOUTS: tuple[FrameworkTimeout, ...] = (
    FrameworkTimeout(
        "arize-phoenix-evals",
        "one task",
        60,
        "cancels it and queues it again: nothing is ever answered",
        (
            ParameterDefault(
                "phoenix.evals.executors", ("AsyncExecutor.__init__", "get_executor_on_sync_context"), none_means=60
            ),
        ),
        "arize-phoenix-evals 3.9.4 phoenix/evals/executors.py: AsyncExecutor, `timeout or 60`",
    ),
    FrameworkTimeout(
        "arize-phoenix-client",
        "one task of an experiment",
        60,
        "cancels it and queues it again",
        (
            ParameterDefault(
                "phoenix.client.experiments", (*PHOENIX_RUNS, *(f"async_{name}" for name in PHOENIX_RUNS))
            ),
            ParameterDefault(
                "phoenix.client.resources.experiments",
                tuple(f"{each}.{name}" for each in ("Experiments", "AsyncExperiments") for name in PHOENIX_RUNS),
            ),
        ),
        "arize-phoenix-client 3.5.0 phoenix/client/experiments/__init__.py: DEFAULT_TIMEOUT_IN_SECONDS",
    ),
    FrameworkTimeout(
        "deepeval",
        "one attempt, and by it one case",
        88.5,
        "fails the attempt, then the case",
        (
            EnvironmentDefault(
                "deepeval",
                "DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS_OVERRIDE",
                88.5,
                (
                    "DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS",
                    "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS_OVERRIDE",
                    "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS",
                    "DEEPEVAL_DISABLE_TIMEOUTS",
                ),
                DEEPEVAL_SETTINGS,
            ),
        ),
        "deepeval 4.3.1 config/settings.py: DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS, (180 - 2 - 1) / 2 attempts; a case "
        "gets attempts times that and the back-off",
    ),
    FrameworkTimeout(
        "deepeval",
        "all cases together",
        207,
        "cancels every case that has not ended",
        (
            EnvironmentDefault(
                "deepeval",
                "DEEPEVAL_TASK_GATHER_BUFFER_SECONDS_OVERRIDE",
                207,
                ("DEEPEVAL_TASK_GATHER_BUFFER_SECONDS", "DEEPEVAL_DISABLE_TIMEOUTS"),
                DEEPEVAL_SETTINGS,
            ),
        ),
        "deepeval 4.3.1 utils.py: get_gather_timeout_seconds, 180 s of a case + 27 s, around the gather of all cases",
        whole_run=True,
    ),
    FrameworkTimeout(
        "dspy",
        "one row, among the last three",
        120,
        "sends the row a second time",
        (
            ParameterDefault("dspy.utils.parallelizer", ("ParallelExecutor.__init__",)),
            ParameterDefault("dspy.predict.parallel", ("Parallel.__init__",)),
            ParameterDefault("dspy.primitives.module", ("Module.batch",)),
        ),
        "dspy 3.4.1 utils/parallelizer.py: ParallelExecutor(timeout=120, straggler_limit=3)",
    ),
    FrameworkTimeout(
        "ragas",
        "one metric of one row, in `evaluate`",
        180,
        "scores it nan",
        (ParameterDefault("ragas.run_config", ("RunConfig.__init__",)),),
        "ragas 0.4.3 run_config.py: RunConfig(timeout=180), evaluation.py",
    ),
    FrameworkTimeout(
        "mlflow",
        "one row of an async `predict_fn`, in `genai.evaluate`",
        300,
        "fails the row",
        (EnvironmentDefault("mlflow", "MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT", 300),),
        "mlflow 3.18.0 environment_variables.py: MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT, genai/utils/trace_utils.py",
    ),
    FrameworkTimeout(
        "llama-index-workflows",
        "one run of a workflow",
        45,
        "raises WorkflowTimeoutError",
        (ParameterDefault("workflows.workflow", ("Workflow.__init__",)),),
        "llama-index-workflows 2.26.1 workflows/workflow.py: Workflow(timeout=45.0)",
    ),
)
