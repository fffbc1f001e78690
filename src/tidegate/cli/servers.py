"""`tidegate serve`, the local web page, and `tidegate gateway`, the reverse proxy for programs in any language."""

from __future__ import annotations

import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.common import DATABASE, Db, stop
from tidegate.errors import ConfigurationError
from tidegate.transports.gateway_url import through

PORT, GATEWAY_PORT = 4780, 4790
"""Ports that are tried first. Chosen: no registered service has them."""

EXPERIMENT_SCREENS = "tidegate.experiments.screens.routes"
"""Module of the screens of experiments, which nothing below experiments imports."""

EVERYWHERE = ("0.0.0.0", "::", "")
"""Hosts that stand for all addresses of the machine."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; one of this machine's loopback interface.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; the next free one where it is busy, 0: any.")
    ] = PORT,
    db: Db = DATABASE,
    unsafe_public: Annotated[
        bool, typer.Option("--unsafe-public", help="Allow a --host that other machines reach, without encryption.")
    ] = False,
) -> None:
    """Show the limits of your active programs, their use, and your experiments on a local web page.

    The printed URL holds the token of this start: whoever has it can read the page. Ctrl-C ends the server; the
    programs go on.
    """
    if os.name != "posix":
        raise stop("page not available: it reads the counts of `tidegate run`, which needs a POSIX system")
    if host in EVERYWHERE:
        raise ConfigurationError(
            "host", host, "it must be one address: the page answers only requests whose Host names it"
        )
    if host not in LOOPBACK and not unsafe_public:
        raise ConfigurationError(
            "host", host, "it must be 127.0.0.1, localhost or ::1; --unsafe-public allows others, without encryption"
        )
    try:
        routes = import_module(EXPERIMENT_SCREENS)
        from tidegate.server.access_policy import new_token
        from tidegate.server.app import bind, create_app, names_of
        from tidegate.server.app import serve as run_server
    except ImportError as error:
        raise stop(f"page not available: {error.name} is not installed; run: pip install 'tidegate[ui]'") from None
    listener = bind(host, port)
    names, token = names_of(listener, host), new_token()
    chosen = listener.getsockname()[1]

    def started() -> None:
        if port and chosen != port:
            typer.echo(f"port {port} is busy; using {chosen}", err=True)
        if host not in LOOPBACK:
            typer.echo("page not encrypted: whoever listens on the network can read its token and its data", err=True)
        typer.echo(f"page ready: http://{names[0]}/#{token}")

    run_server(create_app(hosts=names, token=token, tables=[routes.experiment_routes(db)]), listener, started)


def gateway(
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; the next free one where it is busy, 0: any.")
    ] = GATEWAY_PORT,
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
        from tidegate.server.gateway.proxy import Upstreams
        from tidegate.server.gateway.server import run
    except ImportError as error:
        raise stop(f"gateway not available: {error.name} is not installed; run: pip install 'tidegate[ui]'") from None
    from tidegate.launch.gateway_process import redirection
    from tidegate.settings import Settings

    added = upstream or []
    Upstreams(added)
    if Settings.from_environment().disabled:
        raise ConfigurationError("TIDEGATE_DISABLED", "1", "a gateway would govern nothing; unset it")
    listener, token = bind("127.0.0.1", port), new_token()
    chosen = listener.getsockname()[1]
    root = f"http://127.0.0.1:{chosen}/{token}"
    redirected = redirection(os.environ, root, Path.cwd())

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

    run(listener, token, [*added, *redirected.upstreams], started)
