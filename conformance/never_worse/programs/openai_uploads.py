"""Uploads whose first request is refused: a file, a buffer."""

from __future__ import annotations

import io
import tempfile

import openai
from kit import SERVER, caught, govern, report


def main() -> None:
    data = bytes(range(256)) * 400
    rows: list[object] = []
    with tempfile.NamedTemporaryFile(suffix=".wav") as sound:
        sound.write(data)
        sound.flush()
        for place in ("file", "buffer"):
            client = govern(openai.OpenAI(base_url=f"{SERVER}/{place}/v1", max_retries=1))

            def ask(row: int, place: str = place, client: openai.OpenAI = client) -> object:
                with open(sound.name, "rb") as opened:  # noqa: PTH123
                    given = opened if place == "file" else ("a.wav", io.BytesIO(data))
                    return client.audio.transcriptions.create(model="whisper-1", file=given)

            rows.append(caught(ask, 0))
    report(rows)


if __name__ == "__main__":
    main()
