"""Where the command line writes: JSON and plain columns for programs, tables for terminals, errors on stderr."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "SCHEMA",
    "is_terminal",
    "kept_stdout",
    "make_console",
    "make_printable",
    "print_columns",
    "print_error",
    "print_json",
    "print_note",
    "print_text",
]

SCHEMA = 1
"""Version of the JSON that commands print."""


def is_terminal() -> bool:
    """Whether stdout goes to a person: a terminal, or a log that says it shows tables (``TTY_COMPATIBLE=1``)."""
    compatible = os.environ.get("TTY_COMPATIBLE")
    if compatible in {"0", "1"}:
        return compatible == "1"
    return sys.stdout.isatty()


@contextmanager
def kept_stdout(writer: str | None) -> Iterator[None]:
    """Keep stdout for the result while somebody else may write there: what comes meanwhile goes to stderr.

    That holds for this process, its C libraries and the processes that it starts.

    Args:
        writer: Who may write: the address of a cluster, the file of a space; None for nobody.
    """
    if writer is None:
        yield
        return
    sys.stdout.flush()
    with _descriptor_to_stderr(), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    try:
        own = os.dup(1)
    except OSError:  # there is no stdout to keep
        yield
        return
    try:
        with suppress(OSError):  # there is no stderr either
            os.dup2(2, 1)
        yield
    finally:
        _flush_everything()
        os.dup2(own, 1)
        os.close(own)


def _flush_everything() -> None:
    """Write out what is still in buffers, before the descriptors below them change."""
    import ctypes

    with suppress(OSError, ValueError, AttributeError):
        sys.__stdout__.flush()  # type: ignore[union-attr]  # None is an AttributeError
    with suppress(OSError, TypeError, AttributeError):  # no C library by this way on Windows
        ctypes.CDLL(None).fflush(None)


def make_console() -> Console:
    """A console for tables on stdout."""
    from rich.console import Console

    # Without colours there are no escape sequences at all: whoever asks for that may read with anything.
    system: Literal["auto"] | None = "auto" if _may_color() else None
    # Into no columns at all nothing would be written; terminals of unknown width say so.
    columns = os.environ.get("COLUMNS", "").strip()
    width = shutil.get_terminal_size().columns if columns.isdecimal() and int(columns) == 0 else None
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=False, color_system=system, width=width)


def _may_color() -> bool:
    return not os.environ.get("NO_COLOR")


def make_printable(text: str) -> str:
    """Escape what could steer a terminal: names in a model file are not to be trusted."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )


def print_json(answer: dict[str, object]) -> None:
    """Print one object on stdout."""
    import json

    text = json.dumps(answer, indent=1, allow_nan=False)
    # One line per list of plain values: a shape or an interval is read as one thing. No string holds a line break here.
    sys.stdout.write(re.sub(r"\[\n[^\[\]{}\"]*?\n *\]", _join_lines, text) + "\n")


def _join_lines(found: re.Match[str]) -> str:
    return re.sub(r"\n *", " ", found[0]).replace("[ ", "[", 1).removesuffix(" ]") + "]"


def print_columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print tab-separated lines under a header: what a pipe gets instead of a table."""
    sys.stdout.write("\t".join(header) + "\n")
    for row in rows:
        cells = ("" if cell is None else make_printable(str(cell)).replace("\n", " ") for cell in row)
        sys.stdout.write("\t".join(cells) + "\n")


def print_text(text: str) -> None:
    """Print a document on stdout as it is."""
    sys.stdout.write(text)


def print_note(text: str) -> None:
    """Print a remark on stderr."""
    sys.stderr.write(make_printable(text) + "\n")


def print_error(message: str, *, code: str, exit_status: int, as_json: bool) -> None:
    """Print why a command failed: on stderr for people, as an object on stdout for programs.

    Args:
        message: What, where, got, cure.
        code: The error's stable name.
        exit_status: Status that the process will end with.
        as_json: Whether the caller asked for JSON.
    """
    if as_json:
        error: dict[str, object] = {"code": code, "message": message, "exit_status": exit_status}
        print_json({"schema": SCHEMA, "error": error})
        return
    label, tail = "Error:", f"[{code}]"
    if sys.stderr.isatty() and _may_color():
        label, tail = f"\x1b[1;31m{label}\x1b[0m", f"\x1b[2m{tail}\x1b[0m"
    sys.stderr.write(f"{label} {make_printable(message)} {tail}\n")
