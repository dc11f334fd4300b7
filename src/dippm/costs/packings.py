"""How libraries multiply with weights in few bits: from how many rows on they unpack them, and what the host spends.

A kernel that reads a weight as it is stored is made for few rows. For more, bitsandbytes and ExLlama run a kernel that
unpacks the weight to 16 bits, and then an ordinary product. Both libraries launch by Python code of their own. What the
host spends on a layer beside an ordinary one's is settled on published tokens of bitsandbytes 0.45 on a T4 and an H100
that the host binds (Qwen2.5-3B and 32B, Llama-3.1-8B), and on those of ExLlama on an A100 (``data/published``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.graph import Attribute

__all__ = ["PACKED_BY", "PACKINGS", "Packing", "number_of_packing", "read_packings"]

FloatArray = npt.NDArray[np.float64]

#: Attribute of a product with a quantised weight: the library and its format, one of :data:`PACKINGS`.
PACKED_BY = "packed_by"


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """How a library multiplies with weights in few bits.

    Args:
        most_rows: Rows up to which its kernel reads a weight as it is stored.
        host_us: What the host spends on a layer beside an ordinary one's, microseconds of the host of the tables.
        unpacking_us: The same where the weight is unpacked first.
    """

    most_rows: float
    host_us: float
    unpacking_us: float


_ANY = float("inf")
_NESTED_US = 43.0
PACKINGS: Mapping[str, Packing] = {
    "bitsandbytes-4bit": Packing(most_rows=1.0, host_us=63.0, unpacking_us=150.0),
    "bitsandbytes-4bit-nested": Packing(most_rows=1.0, host_us=63.0 + _NESTED_US, unpacking_us=150.0 + _NESTED_US),
    "bitsandbytes-8bit": Packing(most_rows=_ANY, host_us=165.0, unpacking_us=165.0),
    "bitsandbytes-8bit-split": Packing(most_rows=_ANY, host_us=385.0, unpacking_us=385.0),
    "exllama": Packing(most_rows=32.0, host_us=12.0, unpacking_us=12.0),
}
_NAMES = tuple(PACKINGS)
_COLUMNS = np.array([[each.most_rows, each.host_us, each.unpacking_us] for each in PACKINGS.values()])


def number_of_packing(attributes: Mapping[str, Attribute]) -> float:
    """The place of a node's packing among :data:`PACKINGS`, -1 for none."""
    name = attributes.get(PACKED_BY)
    return float(_NAMES.index(name)) if name in _NAMES else -1.0


def read_packings(number: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Most rows, host time and host time with unpacking of packings by their places, [n] each."""
    most_rows, host_us, unpacking_us = _COLUMNS[number.astype(np.int64)].T
    return most_rows, host_us, unpacking_us
