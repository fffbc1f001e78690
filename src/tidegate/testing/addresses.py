"""Under which addresses a simulated provider answers, wherever it runs."""

from __future__ import annotations


class Addresses:
    """The base URLs for the clients of each SDK; each raises RuntimeError while nothing runs."""

    def __init__(self) -> None:
        self._url = ""

    @property
    def url(self) -> str:
        """The base URL, without a slash at its end: Anthropic's and Azure's base."""
        if not self._url:
            raise RuntimeError("the simulator is not running: use it as a context, or start it")
        return self._url

    @property
    def openai_url(self) -> str:
        """The base URL of OpenAI clients."""
        return self.url + "/v1"

    @property
    def bedrock_url(self) -> str:
        """The `endpoint_url` of boto3's bedrock-runtime, and the base URL of the SDKs' own Bedrock clients."""
        return self.url

    @property
    def gemini_url(self) -> str:
        """The base URL of google-genai clients, for Gemini and Vertex AI alike: they add version and path."""
        return self.url
