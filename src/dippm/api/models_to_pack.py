"""Models that are to be packed, and what each leaves to the call."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from typing import Any

from dippm.api.question import Question
from dippm.errors import UsageError, quote
from dippm.graph import Graph

__all__ = ["ModelToPack", "complete", "name_models", "question_of", "source_of"]

_MOST_REPLICAS = 10_000
# What a call says of these is for the models that train.
_OF_TRAINING = frozenset({"optimizer", "accumulation", "checkpointing", "lora"})


@dataclass(frozen=True, kw_only=True)
class ModelToPack:
    """One model and how it is to run; what is None is as the call of :func:`pack` says.

    Args:
        model: A model as :func:`dippm.predict` takes it.
        name: What to call it in the answer; its path or name when left out.
        replicas: How many run at once, each on a slice of its own.
        batch: Samples per call.
        latency_ms: Bound on the predicted time of a call, in training of a step, ms.
        framework: Framework of the file.
        input: Shapes of one sample.
        precision: Arithmetic.
        mode: ``inference`` or ``training``.
        optimizer: What updates the weights in training.
        accumulation: Batches whose gradients are added up before one update in training.
        checkpointing: Whether blocks drop their activations and compute them again in training.
        weights: How weights of linear layers are stored.
        lora: The adapters that alone are trained.
        layout: Memory order of images.
        runtime: How kernels are launched.
        software: Releases of PyTorch and CUDA.
    """

    model: object
    name: str | None = None
    replicas: int | None = None
    batch: int | None = None
    latency_ms: float | None = None
    framework: str | None = None
    input: object = None
    precision: str | None = None
    mode: str | None = None
    optimizer: str | None = None
    accumulation: int | None = None
    checkpointing: bool | None = None
    weights: str | None = None
    lora: int | str | None = None
    layout: str | None = None
    runtime: str | None = None
    software: str | None = None


_ASKED = tuple({each.name for each in fields(ModelToPack)} & {each.name for each in fields(Question)})


def complete(given: object, question: Question, *, batch: int, latency_ms: float | None) -> ModelToPack:
    """A model with everything that it leaves to the call.

    Args:
        given: The model.
        question: What the call says.
        batch: What the call says, samples per call.
        latency_ms: What the call says, ms.

    Raises:
        UsageError: ``latency.invalid``.
    """
    own = given if isinstance(given, ModelToPack) else ModelToPack(model=given)
    bound = latency_ms if own.latency_ms is None else own.latency_ms
    if bound is not None and (
        isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound <= sys.float_info.max
    ):
        raise UsageError(
            f"The latency bound must be a finite number of ms above 0. Got {quote(bound)}.", code="latency.invalid"
        )
    # Without training anywhere it is a slip, which is for the verb to say.
    is_meant = (own.mode or question.mode) == "training" or question.mode != "training"
    left: dict[str, Any] = {
        name: getattr(question, name)
        for name in _ASKED
        if getattr(own, name) is None and (is_meant or name not in _OF_TRAINING)
    }
    return replace(own, batch=batch if own.batch is None else own.batch, latency_ms=bound, **left)


def question_of(model: ModelToPack, *, trust: bool) -> Question:
    """What is asked of a model that has everything, see :func:`complete`.

    Args:
        model: The model.
        trust: Allow pickles.
    """
    said = {name: getattr(model, name) for name in _ASKED}
    return Question(**{name: value for name, value in said.items() if value is not None}, trust=trust)


def name_models(asked: Sequence[ModelToPack], replicas: Mapping[str, int]) -> list[ModelToPack]:
    """Models with names, no two of them the same, and with their replicas.

    Raises:
        UsageError: ``pack.models``, ``pack.name`` or ``pack.replicas``.
    """
    if not asked:
        raise UsageError(
            "There must be at least one model to pack. Got none.",
            code="pack.models",
            cure="Name models, or give a file of them (--models FILE; in Python, dippm.load_models_file).",
        )
    own = [_check_name(each.name) for each in asked if each.name is not None]
    twice = [name for name, count in Counter(own).items() if count > 1]
    if twice:
        raise UsageError(f"Several models are named {', '.join(twice)}.", code="pack.name", cure="Give other names.")
    taken = set(own)
    named: list[ModelToPack] = []
    for each in asked:
        name = each.name
        if name is None:
            source = source_of(each.model)
            numbered = (f"{source} #{number}" for number in itertools.count(2))
            name = next(other for other in itertools.chain([source], numbered) if other not in taken)
            taken.add(name)
        count = replicas.get(name, 1 if each.replicas is None else each.replicas)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_REPLICAS:
            raise UsageError(
                f"The replicas of '{name}' must be a whole number from 1 to {_MOST_REPLICAS:,}. Got {quote(count)} "
                "instead.",
                code="pack.replicas",
            )
        named.append(replace(each, name=name, replicas=count))
    unknown = sorted(set(replicas) - {each.name or "" for each in named})
    if unknown:
        raise UsageError(
            f"There are replicas for {', '.join(unknown)}, but the models are "
            f"{', '.join(each.name or '' for each in named)}.",
            code="pack.replicas",
        )
    return named


def _check_name(name: object) -> str:
    if isinstance(name, str) and name.strip() and name.isprintable():
        return name
    raise UsageError(
        f"The name of a model to pack must be a text of one line. Got {quote(name)} instead.",
        code="pack.name",
        cure="Leave the name out, and the model goes by its path.",
    )


def source_of(model: object) -> str:
    """What to call a model that has no name."""
    if isinstance(model, str | PathLike):
        return fspath(model) if isinstance(fspath(model), str) else str(model)
    if isinstance(model, Graph):
        return model.source
    return type(model).__name__
