"""Rows through boto3's Bedrock client, in threads; row 5 may ask for more tokens than the others."""

from __future__ import annotations

import boto3
import botocore.config
from kit import SERVER, govern, option, text, threads

MOST = int(option(1, "400"))


def main() -> None:
    client = govern(
        boto3.client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=SERVER,
            aws_access_key_id="AKIAX",
            aws_secret_access_key="y",
            config=botocore.config.Config(max_pool_connections=20),
        )
    )

    def ask(row: int) -> object:
        most = MOST if row == 5 else 400
        content = [{"role": "user", "content": [{"text": text(row)}]}]
        return client.converse(modelId="anthropic.claude", messages=content, inferenceConfig={"maxTokens": most})

    threads(ask, 8)


if __name__ == "__main__":
    main()
