"""Every error that dippm raises on purpose.

    DippmError                    exit status
    ├── UsageError                2   the call is wrong: option, batch, shape given by the caller
    ├── ModelReadError            3   the model file cannot be read
    ├── UnsupportedError          4   an operator, device, shape or precision is not supported
    └── MissingExtraError         5   an optional package is not installed

Each error carries a stable ``code`` (a short dotted name for programs), and its message says what went wrong,
where, what was found, and the cure.
"""

from __future__ import annotations

import copyreg
import errno
from collections.abc import Iterator

__all__ = [
    "FULL_DISK_ERRORS",
    "DippmError",
    "MissingExtraError",
    "ModelReadError",
    "UnsupportedError",
    "UsageError",
    "error_chain",
    "quote",
]

FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Numbers of the ``OSError`` by which a system says that there is no room on the disk, or none left for this user."""


_LONGEST_QUOTE = 200


def quote(value: object) -> str:
    """What a caller gave, as an error repeats it: as Python writes it, of bounded length, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - whole numbers of thousands of digits raise, and so may any class of a caller
        text = f"a value of type {type(value).__name__} that cannot be written out"
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from, each once: errors may come from each other, or one from itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class DippmError(Exception):
    """Base class of all errors raised by dippm.

    Args:
        message: What happened, where, and what was found, in one or two sentences.
        code: Stable name for programs, lower-case words joined by dots, such as ``"model.truncated"``.
        cure: What the caller can do about it; appended to the message when given.
    """

    exit_status: int = 1

    def __init__(self, message: str, *, code: str, cure: str | None = None) -> None:
        super().__init__(message if cure is None else f"{message} {cure}")
        self.code = code
        self.cure = cure

    def __reduce__(self) -> tuple[object, ...]:
        # By its words and attributes: a pool of processes whose errors cannot be read again breaks.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(DippmError):
    """The call itself is wrong: an option, a batch size, an input shape or name."""

    exit_status = 2


class ModelReadError(DippmError):
    """The model file is missing, damaged, of another kind than claimed, or refused for safety."""

    exit_status = 3


class UnsupportedError(DippmError):
    """An operator, device, shape or precision has no supported meaning here."""

    exit_status = 4


class MissingExtraError(DippmError):
    """An optional package is needed and not installed.

    Args:
        package: The import name that failed, such as ``"torch"``.
        extra: The extra that brings it, such as ``"torch"``.
        purpose: What it is needed for, completing "is needed to ...".
    """

    exit_status = 5

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"The package '{package}' is needed to {purpose} and is not installed.",
            code="extra.missing",
            cure=f'Install it with: pip install "dippm[{extra}]"',
        )
        self.package = package
        self.extra = extra
