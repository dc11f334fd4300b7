"""A Python that has imported its packages already: what is run with it starts at once, in a process of its own.

    python warm_python.py serve SOCKET CODE                runs code that imports, and waits
    python -I -S warm_python.py run SOCKET MODULE WORD ... runs ``python -m MODULE WORD ...`` as a copy of that process;
                                                           with ``-c`` as its module, code

A framework takes seconds to be imported and some tests start dozens of processes that need it. What runs has the
folder, the variables, the files 0 to 2 and the limits of the second command, which ends as it ends, and it ends when
the second command does. No copy has the first one's threads: its code leaves none that others wait for. Variables that
a package reads as it is imported are those of the first command.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

_FILES = (0, 1, 2)
_FAILED = 70


def serve(address: str, code: str) -> None:
    """Run the code, say so by a line, and make a copy for whoever asks, for as long as stdin is open."""
    import selectors

    exec(code, {"__name__": "warming"})  # noqa: S102 - of our own tests
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    # Those that are followed below are waited for by nobody.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while all(key.fileobj is server for key, _ in selector.select()):
        connection, _ = server.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            server.close()
            _follow(connection)
        connection.close()


def _follow(connection: socket.socket) -> None:
    """Run what is asked for, and tell how it ended; end it where nobody waits for that any more."""
    import select

    message, files, _, _ = socket.recv_fds(connection, 2**20, len(_FILES))
    while not message.endswith(b"\n"):
        message += connection.recv(2**20)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(json.loads(message), files)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(asked: dict[str, object], files: list[int]) -> None:
    """Be the process that is asked for."""
    import atexit
    import resource
    import runpy
    import tempfile
    import traceback
    import warnings

    status = _FAILED
    try:
        for number, file in zip(_FILES, files, strict=True):
            os.dup2(file, number)
            os.close(file)
        os.chdir(str(asked["folder"]))
        os.environ.clear()
        os.environ.update(asked["variables"])  # type: ignore[arg-type]
        if os.environ.get("PYTHONWARNINGS") == "ignore":
            warnings.simplefilter("ignore")
        tempfile.tempdir = None  # as the variables say
        for kind, limits in asked["limits"]:  # type: ignore[attr-defined]
            resource.setrlimit(kind, limits)
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [os.path.abspath(entry) for entry in given if entry and os.path.abspath(entry) not in sys.path]
        for name, number in (("stdout", 1), ("stderr", 2)):
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        module, *words = asked["words"]  # type: ignore[misc]
        code = words.pop(0) if module == "-c" else None
        sys.argv[:] = [module, *words]
        if code is not None:
            exec(code, {"__name__": "__main__"})  # noqa: S102 - of our own tests
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, it is told and ends this process
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def run(address: str, words: list[str]) -> int:
    """Have a copy run, and end like it."""
    import resource

    kinds = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
    asked = {
        "words": words,
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "limits": [(kind, resource.getrlimit(kind)) for kind in kinds],
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        message = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(connection, [message], list(_FILES))
        if sent < len(message):  # to send nothing fails where all is done and the other end is closed already
            connection.sendall(message[sent:])
        status = int(connection.recv(64) or _FAILED)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    what, socket_address, *rest = sys.argv[1:]
    sys.exit(serve(socket_address, rest[0]) if what == "serve" else run(socket_address, rest))
