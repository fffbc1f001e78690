"""DSPy: `Evaluate` runs a program over a devset of 40 examples and scores it.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from pathlib import Path

import dspy

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def is_right(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    return prediction.answer.strip() == example.answer


def main() -> None:
    dspy.configure(lm=dspy.LM("openai/gpt-5-mini", cache=False))
    devset = [dspy.Example(**row).with_inputs("question") for row in ROWS]
    result = dspy.Evaluate(devset=devset, metric=is_right)(dspy.Predict("question -> answer"))
    answered = sum("answer" in prediction for _, prediction, _ in result.results)
    right = sum(bool(score) for _, _, score in result.results)
    print(f"{answered} of {len(ROWS)} rows answered, {right} right, score {result.score:g}")


if __name__ == "__main__":
    main()
