"""What the verbs are asked beside model, device and batch: the options that they share, written down once.

A verb takes ``**options: Unpack[Options]``, which type checkers hold a caller's words against, and makes a
:class:`Question` of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from os import PathLike
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar

if TYPE_CHECKING:
    from dippm.graph import Graph

__all__ = ["ModelByBatch", "Options", "Question", "TrainingConditions", "spelled_out"]

_Words = ParamSpec("_Words")
_Answer = TypeVar("_Answer")


class Options(TypedDict, total=False):
    """The options as callers name them; :func:`dippm.predict` says what each means."""

    framework: str | None
    input: object
    weights: str | None
    precision: str | None
    mode: str | None
    optimizer: str | None
    accumulation: int
    checkpointing: bool
    lora: int | str | None
    layout: str | None
    runtime: str | None
    software: str | None
    trust: bool


class TrainingConditions(TypedDict):
    """Those of them that concern training alone and have a default, with their values."""

    accumulation: int
    checkpointing: bool
    lora: int | str | None


@dataclass(frozen=True, slots=True, eq=False)
class ModelByBatch:
    """A model that its holder reads and keeps, given to a verb in its place.

    Args:
        read: Its graph, read for a batch, or for any where there is None, and with the options that the holder knows.
    """

    read: Callable[[int | None], Graph]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Question:
    """The options with their defaults; :func:`dippm.predict` says what each means.

    Args:
        framework: How the model is read, and so are ``input``, ``weights`` and ``trust``.
        input: See above.
        weights: See above.
        precision: What the figures hold for, and so are all below.
        mode: See above.
        optimizer: See above.
        accumulation: See above.
        checkpointing: See above.
        lora: See above.
        layout: See above.
        runtime: See above.
        software: See above.
        trust: See above.
    """

    framework: str | None = None
    input: object = None
    weights: str | None = None
    precision: str | None = None
    mode: str | None = None
    optimizer: str | None = None
    accumulation: int = 1
    checkpointing: bool = False
    lora: int | str | None = None
    layout: str | None = None
    runtime: str | None = None
    software: str | None = None
    trust: bool = False

    @property
    def named_conditions(self) -> dict[str, str]:
        """The conditions that are chosen by name, those that were given alone: what else holds the predictor says."""
        names = {
            "precision": self.precision,
            "mode": self.mode,
            "optimizer": self.optimizer,
            "layout": self.layout,
            "runtime": self.runtime,
        }
        return {name: value for name, value in names.items() if value is not None}

    @property
    def training_conditions(self) -> TrainingConditions:
        """What is asked of a training step beside its optimizer."""
        return {"accumulation": self.accumulation, "checkpointing": self.checkpointing, "lora": self.lora}

    def read(
        self, model: object, *, path: str | PathLike[str] | None = None, mode: str, batch_hint: int | None = None
    ) -> Graph:
        """Read the model that is asked about, see :func:`dippm.load`.

        Args:
            model: The model, or None with a path.
            path: The model as a path.
            mode: The mode to read it for, which is not always that of the question.
            batch_hint: The largest batch that is asked about, see :func:`dippm.load`.
        """
        if isinstance(model, ModelByBatch):
            return model.read(batch_hint)
        # The command line names the options above, and its help waits for no reader.
        from dippm.api.loading import load, precision_to_read

        return load(
            model,
            path=path,
            framework=self.framework,
            input=self.input,
            trust=self.trust,
            mode=mode,
            batch_hint=batch_hint,
            precision=precision_to_read(self.precision, self.lora),
            weights=self.weights,
        )


def spelled_out(verb: Callable[_Words, _Answer]) -> Callable[_Words, _Answer]:
    """A verb that ends in ``**options``, with every option in its signature, for ``help`` and notebooks.

    Raises:
        TypeError: on a call with a word that is no argument of the verb; it names the nearest.
    """
    written = signature(verb)
    *own, _options = written.parameters.values()
    shared = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(Question)
    ]
    parameters = [*own, *shared]
    names = {parameter.name for parameter in parameters}

    @wraps(verb)
    def ask(*args: _Words.args, **given: _Words.kwargs) -> _Answer:
        if not given.keys() <= names:
            wrong = next(name for name in given if name not in names)
            near = get_close_matches(wrong, names, n=1)
            hint = f"; the nearest is '{near[0]}'" if near else ""
            raise TypeError(f"{verb.__name__}() got an unexpected keyword argument '{wrong}'{hint}")
        return verb(*args, **given)

    ask.__signature__ = written.replace(parameters=parameters)  # type: ignore[attr-defined]
    return ask
