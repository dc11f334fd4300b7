"""Sizes that an exported program leaves open within bounds: PyTorch refuses to run it at others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dippm.frontends.inputs import InputEntry

__all__ = ["SizeRange", "find_ranges", "warn_of_ranges"]

# A symbol or a multiple of one, as archives write them and as people do.
_SYMBOL = re.compile(r"Symbol\('(\w+)'.*\)|(\w+)")
_MULTIPLE = re.compile(r"Mul\(Integer\((\d+)\), Symbol\('(\w+)'[^()]*\)\)|(\d+)\*(\w+)")
# torch.export writes 2 where nothing is known but that the size is not fixed, and takes 1 there.
_LEAST_BOUND = 3
_CURE = "are of a program that is exported with a wider torch.export.Dim."


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeRange:
    """The sizes that a program takes in one dimension.

    Args:
        least: The smallest, or 0 where none is.
        most: The largest, or None where none is.
    """

    least: int
    most: int | None

    def __contains__(self, size: int) -> bool:
        return self.least <= size and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        return f"{self.least} to {self.most}" if self.least else f"at most {self.most}"


def find_ranges(program: Mapping[str, Any], name: str) -> list[SizeRange | None]:
    """What the dimensions of an input may be; None for one that is fixed or has no bounds.

    Args:
        program: The program, parsed from JSON.
        name: The input.
    """
    constraints = program.get("range_constraints") or {}
    sizes = program["graph_module"]["graph"]["tensor_values"][name]["sizes"]
    return [_range_of(size, constraints) for size in sizes]


def warn_of_ranges(program: Mapping[str, Any], asked: Mapping[str, InputEntry], *, batch_hint: int | None) -> list[str]:
    """What is said of sizes that the program refuses, though its operators could take them.

    Args:
        program: The program, parsed from JSON.
        asked: The inputs by the program's names.
        batch_hint: The largest batch that is asked for; None where any may be.
    """
    batches: dict[str, None] = {}
    told: list[str] = []
    for name, entry in asked.items():
        ranges = find_ranges(program, name)
        sizes: list[int | None] = list(entry.shape)
        if entry.is_batched:
            sizes.insert(entry.batch_axis, None)
        for axis, (size, taken) in enumerate(zip(sizes, ranges, strict=False)):
            if taken is None:
                continue
            if size is not None and size not in taken:
                told.append(
                    f"The program was exported for a size of {taken} in dimension {axis} of '{name}', and PyTorch "
                    f"refuses to run it at {size}: the figures {_CURE}"
                )
            # Smaller batches than the one that is known may be asked for too.
            elif size is None and (batch_hint is None or batch_hint not in taken or taken.least):
                batches[str(taken)] = None
    return [
        f"The program was exported for batches of {taken}, and PyTorch refuses to run it at others: the figures of "
        f"those {_CURE}"
        for taken in batches
    ] + told


def _range_of(size: Mapping[str, Any], constraints: Mapping[str, Mapping[str, Any]]) -> SizeRange | None:
    text = str((size.get("as_expr") or {}).get("expr_str") or "")
    multiple = _MULTIPLE.fullmatch(text)
    symbol = _SYMBOL.fullmatch(text)
    if multiple is not None:
        times, name = next((int(a), b) for a, b in (multiple.groups()[:2], multiple.groups()[2:]) if a)
    elif symbol is not None:
        times, name = 1, symbol[1] or symbol[2]
    else:
        return None
    held = constraints.get(name) or {}
    least, most = held.get("min_val"), held.get("max_val")
    bound = SizeRange(
        least=times * least if isinstance(least, int) and least >= _LEAST_BOUND else 0,
        most=times * most if isinstance(most, int) and 0 < most < 2**31 else None,
    )
    return bound if bound.least or bound.most is not None else None
