"""Patterns of module names as quantised checkpoints write them, from files that need not be trusted.

A pattern is components of a name in a row, ``*`` standing for any part of one, or ``re:`` and a regular expression.
Python's own matcher may take for ever over an expression that wants it to; here all ways through one are followed at
once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

__all__ = ["check_patterns", "is_of_module"]

_EXPRESSION_MARK = "re:"
_MOST_PATTERNS, _MOST_EXPRESSIONS, _MOST_PATTERN_CHARACTERS = 10_000, 100, 200
_NAME_PATTERN = re.compile(r"[\w*/-]+(\.[\w*/-]+)*")
_DIGIT_ATOMS = (r"\d", "[0-9]")
_INNER_ATOM = "[^.]"
# A sign, or what fits one character and how often; none of it can be repeated as a group.
_TOKEN = re.compile(r"(\(\?:|[()|^$])|(\\[.d-]|\[0-9\]|\[\^\.\]|[\w./-])([*+?]?)")


def check_patterns(patterns: Sequence[str]) -> None:
    """Refuse patterns that are not followed here, and more of them than any checkpoint has.

    Raises:
        ValueError: With what is wrong.
    """
    if len(patterns) > _MOST_PATTERNS or sum(map(_is_expression, patterns)) > _MOST_EXPRESSIONS:
        raise ValueError(f"{len(patterns)} patterns")
    for pattern in patterns:
        _check_pattern(pattern)


def is_of_module(name: str, pattern: str) -> bool:
    """Whether a weight belongs to a module that a pattern names.

    Args:
        name: Full name of the weight.
        pattern: The pattern; a regular expression fits the module's name from the beginning of a component on.
    """
    if not pattern.startswith(_EXPRESSION_MARK):
        return _names(pattern, name)
    module, _, leaf = name.rpartition(".")
    # Experts lie fused in a parameter of their module, which a checkpoint stores as modules of their own.
    texts = (module,) if leaf == "weight" else (module, name)
    return any(_fits(pattern[len(_EXPRESSION_MARK) :], text) for text in texts)


def _is_expression(pattern: str) -> bool:
    return pattern.startswith(_EXPRESSION_MARK) or "*" in pattern


def _check_pattern(pattern: str) -> None:
    if len(pattern) > _MOST_PATTERN_CHARACTERS:
        raise ValueError(f"a pattern of {len(pattern)} characters")
    if not pattern.startswith(_EXPRESSION_MARK):
        if not _NAME_PATTERN.fullmatch(pattern):
            raise ValueError(f"'{pattern}' names no module")
        return
    expression = pattern[len(_EXPRESSION_MARK) :]
    if not expression or "".join(map("".join, _TOKEN.findall(expression))) != expression:
        raise ValueError(f"'{expression}' is no expression of the kind that is followed")
    try:
        # For its brackets; it is never run.
        re.compile(expression)
    except re.error as exc:
        raise ValueError(str(exc)) from exc


def _names(pattern: str, name: str) -> bool:
    """Whether components of the name in a row are those of the pattern, ``*`` standing for any part of one."""
    if "*" not in pattern:
        return f".{pattern}." in f".{name}."
    return _fits(re.escape(pattern).replace(r"\*", f"{_INNER_ATOM}*") + r"(\.|$)", name)


def _fits(expression: str, name: str) -> bool:
    """Whether an expression fits a name from the beginning of one of its components on.

    All ways through the expression are followed at once, with a bit for each place in the name, in one pass: no
    expression takes longer than its length.
    """
    marks = _marks_of(name)
    begins, end = 1 | marks.get(r"\.", 0) << 1, 1 << len(name)
    tokens = iter(_TOKEN.findall(expression))

    def follow(places: int) -> int:
        """Where the alternatives up to the closing bracket end that begin at these places."""
        found, here = 0, places
        for sign, atom, times in tokens:
            if sign == ")":
                break
            if sign == "|":
                found, here = found | here, places
            elif sign in ("^", "$"):
                here &= begins if sign == "^" else end
            elif sign:
                here = follow(here)
            else:
                here = _step(here, marks.get(atom, 0), times)
        return found | here

    return follow(begins) != 0


def _step(places: int, mark: int, times: str) -> int:
    """The places after as many marked characters as ``times`` allows."""
    once = (places & mark) << 1
    if times in ("", "?"):
        return once | places if times else once
    first = places if times == "*" else once
    # The carry of a sum runs through marked characters to the first that is not (Cameron et al. 2014, "MatchStar").
    return (((first & mark) + mark) ^ mark) | first


@lru_cache(maxsize=2)
def _marks_of(name: str) -> Mapping[str, int]:
    """For each atom of an expression, the places of the characters that it fits."""
    marks: dict[str, int] = {}
    for place, character in enumerate(name):
        kinds = (*(_DIGIT_ATOMS if character.isdecimal() else ()), *((_INNER_ATOM,) if character != "." else ()))
        for atom in {".", character, re.escape(character), *kinds}:
            marks[atom] = marks.get(atom, 0) | 1 << place
    return marks
