"""Writing to the folder of a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dippm.errors import UsageError

__all__ = ["writing_to"]


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Make the folder where it is missing; what cannot be written there is the user's to mend.

    Raises:
        UsageError: ``train.unwritable``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as exc:
        raise UsageError(
            f"The folder '{folder}' cannot be written to: {exc.strerror or exc}.",
            code="train.unwritable",
            cure="Name another folder.",
        ) from exc
