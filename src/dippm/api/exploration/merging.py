"""Texts that differ in their figures alone, told once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["merge_texts"]

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# Part of a name, such as conv2d or v1.5, rather than a figure.
_NAMED = re.compile(r"[\w.]")


def merge_texts(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Merge texts that differ in their figures alone.

    Args:
        texts: What is told, in any order.

    Returns:
        Each kind with the range of its figures, and how many texts it stands for; the most frequent first.
    """
    kinds: dict[str, list[str]] = {}
    for text in texts:
        kinds.setdefault(_NUMBER.sub("#", text), []).append(text)
    return [(_merge(alike), len(alike)) for alike in sorted(kinds.values(), key=len, reverse=True)]


def _merge(texts: Sequence[str]) -> str:
    """The first of them, with a range in the place of each figure that is not the same in all."""
    columns = iter(list(zip(*(_NUMBER.findall(text) for text in texts), strict=True)))

    def place(found: re.Match[str]) -> str:
        figures = sorted(set(next(columns)), key=_size_of)
        before, after = found.string[: found.start()][-1:], found.string[found.end() :][:1]
        if len(figures) == 1 or _NAMED.match(before) or after.isalpha():
            return found[0]
        return f"{figures[0]} to {figures[-1]}"

    return _NUMBER.sub(place, texts[0])


def _size_of(figure: str) -> tuple[float, str]:
    try:
        return float(figure.replace(",", "")), figure
    except ValueError:
        return 0.0, figure
