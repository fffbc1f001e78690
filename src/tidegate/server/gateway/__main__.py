"""Gateway of a `tidegate run`: its parent gives it a listening socket, and ends it by closing its standard input.

Most of a gateway's memory and start time are its libraries. So it imports them when the first program connects.
"""

import json
import select
import socket
import sys

STDIN = 0


def main() -> None:
    """Read the start from standard input, wait for the first connection, and serve until that input ends."""
    start = json.loads(sys.stdin.buffer.readline())
    listener = socket.socket(fileno=int(sys.argv[1]))
    readable, _, _ = select.select([listener.fileno(), STDIN], [], [])
    if STDIN in readable:
        return
    from tidegate.server.gateway.server import run

    run(listener, start["token"], start["upstreams"], until=STDIN)


if __name__ == "__main__":
    main()
