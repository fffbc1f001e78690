"""gunicorn: a web application that asks a model for each request, in four worker processes at one key.

    gunicorn --workers 4 --threads 4 --timeout 600 gunicorn_app:application

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

from collections.abc import Callable, Iterable

import openai

import tidegate.auto  # noqa: F401


def application(environ: dict[str, str], start_response: Callable[..., object]) -> Iterable[bytes]:
    with openai.OpenAI() as client:
        messages = [{"role": "user", "content": f"Say {environ['PATH_INFO']}."}]
        found = client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [(found or "").encode()]
