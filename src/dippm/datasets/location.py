"""Where the measured tables lie; they are not part of the project's repository."""

from __future__ import annotations

import os
from pathlib import Path

from dippm.errors import UsageError

__all__ = ["data_folder"]

_BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[4] / "shared" / "data"


def data_folder() -> Path:
    """The folder of measured tables: ``DIPPM_DATA``, else ``../shared/data`` beside the checkout.

    Raises:
        UsageError: ``data.missing`` where there is no such folder.
    """
    named = os.environ.get("DIPPM_DATA")
    folder = Path(named) if named else _BESIDE_THE_CHECKOUT
    if not folder.is_dir():
        raise UsageError(
            f"There are no measured tables at '{folder}'.",
            code="data.missing",
            cure="Set DIPPM_DATA to the folder that holds kernels/, timm/, whole_models/ and power/.",
        )
    return folder
