"""Answers that depend on what was laid out once, kept beside it: most are asked for at every batch and device."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy.typing as npt

__all__ = ["KeepsAnswers", "keep_answers"]


class KeepsAnswers(Protocol):
    """What answers are kept beside."""

    @property
    def answers(self) -> dict[Hashable, object]:
        """What functions said of it."""


_Keeper = TypeVar("_Keeper", bound=KeepsAnswers)
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer", bound=npt.NDArray[Any] | tuple[npt.NDArray[Any], ...])


def keep_answers(
    function: Callable[Concatenate[_Keeper, _Asked], _Answer],
) -> Callable[Concatenate[_Keeper, _Asked], _Answer]:
    """Let a function be worked out once for each of its first arguments, beside which its answers are kept.

    Args:
        function: Depends on its arguments alone, of which all but the first can be hashed. It gives an array or a tuple
            of arrays, which cannot be written to from then on.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def answer(keeper: _Keeper, /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        asked, answers = (name, args, tuple(kwargs.items())), keeper.answers
        if asked not in answers:
            said = function(keeper, *args, **kwargs)
            for array in said if isinstance(said, tuple) else (said,):
                array.flags.writeable = False
            answers[asked] = said
        return answers[asked]  # type: ignore[return-value]

    return answer
