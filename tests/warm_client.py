"""Runs a program in a Python of `tests/warm.py`: `python -I -S warm_client.py SOCKET FILE ARGUMENTS`.

Writes the program's process number to the file descriptor FILE, unless that is 0.

Passes our streams, directory and environment to the server and signals to the program, and ends as the program does.
It is started for each program, so it imports little.
"""

import json
import os
import signal
import socket
import struct
import sys

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
NUMBER = struct.Struct("!q")


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise SystemExit("program not run: the Python of the tests has ended")
        data += piece
    return data


def main(path: str, told: int, words: list[str]) -> None:
    """Have the server run a program, and end as it does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        given = json.dumps({"words": words, "cwd": os.getcwd(), "environ": dict(os.environ)}).encode()  # noqa: PTH109
        socket.send_fds(server, [NUMBER.pack(len(given))], [0, 1, 2])
        server.sendall(given)
        (pid,) = NUMBER.unpack(received(server, NUMBER.size))
        if told:
            os.write(told, NUMBER.pack(pid))
            os.close(told)
        for name in PASSED_ON:
            signal.signal(getattr(signal, name), lambda number, frame: os.kill(pid, number))
        (status,) = NUMBER.unpack(received(server, NUMBER.size))
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
