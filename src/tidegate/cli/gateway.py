"""`tidegate gateway`: a reverse proxy of this machine that governs the LLM calls of programs in any language."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.errors import stop
from tidegate.errors import ConfigurationError
from tidegate.transports.gateway_url import through

DEFAULT_PORT = 4790
"""Port that is tried first. Chosen: no registered service has it."""


def gateway(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; the next free one where it is busy, 0: any.")
    ] = DEFAULT_PORT,
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", metavar="URL", help="Base URL of a server beside the known providers; repeatable."),
    ] = None,
) -> None:
    """Govern the LLM calls of programs in any language, which send them to this gateway.

    The printed lines lead the programs of a shell to it. A base URL that the environment has stays the server. The
    lines hold the token of this start: whoever has it can use the gateway. Credentials pass through and are not kept.
    Ctrl-C ends it. `tidegate run` starts one by itself.
    """
    try:
        from tidegate.server.access_policy import new_token
        from tidegate.server.app import bind
        from tidegate.server.gateway.server import governed, run
        from tidegate.server.gateway.upstreams import Upstreams
    except ImportError as error:
        raise stop(f"gateway not available: {error.name} is not installed; run: pip install 'tidegate[ui]'") from None
    from tidegate.admission.registry import RateLimitRegistry
    from tidegate.launch.gateway_process import redirection
    from tidegate.settings import Settings
    from tidegate.transports.install import install

    added = upstream or []
    Upstreams(added)
    if Settings.from_environment().disabled:
        raise ConfigurationError("TIDEGATE_DISABLED", "1", "a gateway would govern nothing; unset it")
    listener, token = bind("127.0.0.1", port), new_token()
    chosen = listener.getsockname()[1]
    root = f"http://127.0.0.1:{chosen}/{token}"
    redirected = redirection(os.environ, root, Path.cwd())
    urls = [*added, *redirected.upstreams]
    settings = governed(urls)
    upstreams = Upstreams(urls, settings.hosts)
    install(RateLimitRegistry(settings))

    def started() -> None:
        if port and chosen != port:
            typer.echo(f"port {port} is busy; using {chosen}", err=True)
        for name, value in redirected.changed.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
        for name, reason in redirected.kept.items():
            typer.echo(f"# {name} is left as it is: {reason}")
        for url in added:
            typer.echo(f"# {url} by {through(root, url)}")
        typer.echo("gateway ready: paste these lines into a shell, and start programs there; Ctrl-C ends it", err=True)

    run(listener, token, upstreams, started)
