"""Runs a command and turns every way that it can end into an exit status and one clear message."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from dippm.cli.output import print_error
from dippm.errors import DippmError, error_chain

__all__ = ["STATUS_INTERRUPTED", "STATUS_TERMINATED", "main"]

STATUS_UNEXPECTED = 1
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
STATUS_USAGE = 2
STATUS_INTERRUPTED = 128 + signal.SIGINT
STATUS_TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dippm`` with these arguments.

    Args:
        arguments: Words after the program's name; None takes them from the process.

    Returns:
        The exit status: 0 done; 1 unexpected error; 2 wrong use; 3 the model cannot be read; 4 unsupported;
        5 a missing extra; 130 interrupted; 143 terminated.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = _take_debug(words)
    as_json = "--json" in words
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A name in a model file may hold characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run_and_report(words, as_json=as_json, is_debug=is_debug)
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_closed_pipe()
    except OSError as exc:
        if exc.errno not in _NO_ROOM:
            raise
        return _leave_full_output(exc)
    return status


def _open_closed_streams() -> None:
    """Put nowhere in the place of standard streams that the caller closed, so that no file gets their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        # The lowest free one is the stream's own, which processes that are started have too.
        os.set_inheritable(opened, opened == descriptor)
        stream = open(opened, "w" if descriptor else "r", encoding="utf-8")  # noqa: SIM115  # open to the end
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run_and_report(words: list[str], *, as_json: bool, is_debug: bool) -> int:
    try:
        return _run(words)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return STATUS_INTERRUPTED
    except DippmError as exc:
        if is_debug:
            traceback.print_exc()
        if _is_of_interrupt(exc):
            return STATUS_INTERRUPTED
        print_error(str(exc), code=exc.code, exit_status=exc.exit_status, as_json=as_json)
        return exc.exit_status
    except Exception as exc:  # the last stop: nobody should have to read a traceback to use a program
        if isinstance(exc, OSError) and exc.errno in _NO_ROOM:
            raise
        if is_debug:
            traceback.print_exc()
        if _is_of_interrupt(exc):
            return STATUS_INTERRUPTED
        return _report_unexpected(exc, words, as_json=as_json)


def _is_of_interrupt(exc: BaseException) -> bool:
    """Whether an interrupt is behind an error: compiled modules that are being imported make an ImportError of it."""
    return any(isinstance(each, KeyboardInterrupt) for each in error_chain(exc))


def _run(words: list[str]) -> int:
    from typer.main import get_command

    from dippm.cli.app import make_app
    from dippm.cli.progress import show_conversions

    show_conversions()
    try:
        result = get_command(make_app(words)).main(words, prog_name="dippm", standalone_mode=False)
    except SystemExit as exc:
        # The only exit that the option parser takes by itself here is the one for a closed pipe.
        if exc.code in (0, None):
            return 0
        # How Ray ends a process that is connected to it when SIGTERM comes.
        if exc.code == signal.SIGTERM:
            return STATUS_TERMINATED
        raise BrokenPipeError from exc
    return result if isinstance(result, int) else 0


def _take_debug(words: list[str]) -> bool:
    """Take ``--debug`` out wherever it stands, so that it can be added to the end of any command."""
    end = words.index("--") if "--" in words else len(words)
    if "--debug" not in words[:end]:
        return False
    words[:end] = [word for word in words[:end] if word != "--debug"]
    return True


def _report_unexpected(exc: Exception, words: Sequence[str], *, as_json: bool) -> int:
    import typer

    if isinstance(exc, typer.Abort):
        # The option parser takes the end of any file that anything reads for that of the terminal.
        if not isinstance(exc.__cause__, EOFError):
            return STATUS_INTERRUPTED
        exc = exc.__cause__
    # Wrong options: the parser's own exceptions, whose class has no public name in every version of it.
    format_message = getattr(exc, "format_message", None)
    if callable(format_message):
        message = str(format_message()).rstrip()
        # Without a message the parser has printed the help instead.
        if message:
            # The parser itself, which misses the value of an option, knows of no command.
            path = getattr(getattr(exc, "ctx", None), "command_path", None) or _find_command_path(words)
            stop = "" if message.endswith((".", "?", ".)", "?)")) else "."
            cure = f"See {path} --help."
            print_error(f"{message}{stop} {cure}", code="usage.invalid", exit_status=STATUS_USAGE, as_json=as_json)
        return STATUS_USAGE
    print_error(
        f"{type(exc).__name__}: {exc}. This is a defect of dippm; add --debug to see where it happened.",
        code="internal",
        exit_status=STATUS_UNEXPECTED,
        as_json=as_json,
    )
    return STATUS_UNEXPECTED


def _find_command_path(words: Sequence[str]) -> str:
    """The command that these words name, such as ``"dippm dataset predict"``."""
    from typer.main import get_command

    from dippm.cli.app import make_app

    path, commands = ["dippm"], getattr(get_command(make_app(words)), "commands", {})
    for word in words:
        if word not in commands:
            break
        path.append(word)
        commands = getattr(commands[word], "commands", {})
    return " ".join(path)


def _leave_closed_pipe() -> int:
    # Python flushes stdout once more on its way out, and would complain about the closed pipe again.
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return STATUS_UNEXPECTED


def _leave_full_output(exc: OSError) -> int:
    """Say on the other stream that the answer could not be written; what was written of it is not whole."""
    status = _leave_closed_pipe()
    what = f"'{exc.filename}'" if exc.filename else "The output"
    with contextlib.suppress(OSError):
        print_error(f"{what} cannot be written: {exc.strerror}.", code="output.full", exit_status=status, as_json=False)
    return status
