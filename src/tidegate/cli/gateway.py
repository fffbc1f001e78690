"""`tidegate gateway`: a reverse proxy of this machine that governs the LLM calls of programs in any language."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.errors import stop
from tidegate.errors import ConfigurationError
from tidegate.providers import GATEWAY_VARIABLES
from tidegate.transports.gateway_url import VARIABLE, through

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

    The printed lines lead the programs of a shell to it. They hold the token of this start: whoever has it can use the
    gateway. Credentials pass through and are not kept. Ctrl-C ends it. `tidegate run` starts one by itself.
    """
    try:
        from tidegate.gateway.server import governed, run
        from tidegate.gateway.upstreams import Upstreams
        from tidegate.ui.access_policy import new_token
        from tidegate.ui.server import bind
    except ImportError as error:
        raise stop(f"gateway not available: {error.name} is not installed; run: pip install 'tidegate[ui]'") from None
    from tidegate._install import install
    from tidegate.admission.registry import RateLimitRegistry

    added = upstream or []
    settings = governed(added)
    upstreams = Upstreams(added, settings.hosts)
    if settings.disabled:
        raise ConfigurationError("TIDEGATE_DISABLED", "1", "a gateway would govern nothing; unset it")
    install(RateLimitRegistry(settings))
    listener, token = bind("127.0.0.1", port), new_token()
    chosen = listener.getsockname()[1]
    root = f"http://127.0.0.1:{chosen}/{token}"

    def started() -> None:
        if port and chosen != port:
            typer.echo(f"port {port} is busy; using {chosen}", err=True)
        typer.echo(f"export {VARIABLE}={root}")
        for name, default, _ in GATEWAY_VARIABLES:
            if default:
                typer.echo(f"export {name}={through(root, default)}")
        for url in added:
            typer.echo(f"# {url} by {through(root, url)}")
        typer.echo("gateway ready: paste these lines into a shell, and start programs there; Ctrl-C ends it", err=True)

    run(listener, token, upstreams, started)
