"""From an ONNX model to a :class:`~dippm.graph.Graph` with the batch left open."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.onnx.evaluation import Evaluator
from dippm.frontends.onnx.external_data import ExternalFiles
from dippm.frontends.onnx.input_sizes import InputPlan, plan_inputs
from dippm.frontends.onnx.loading import load_model
from dippm.frontends.onnx.lowering import lower
from dippm.frontends.onnx.program import Program
from dippm.frontends.onnx.rebatching import Rebatching
from dippm.graph import Graph
from dippm.graph.passes.canonicalize import canonicalize
from dippm.graph.passes.unify_batches import unify_batches

if TYPE_CHECKING:
    import onnx

__all__ = ["read_onnx"]

_BATCHES = (2, 3)
_ATTEMPTS = 64
_NO_INPUT = InputShapes()


def read_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    input: InputShapes = _NO_INPUT,  # noqa: A002 (the word of the public interface)
    batch_hint: int | None = None,
) -> Graph:
    """Read an ONNX model without its weights.

    The result holds the operators that eager PyTorch would launch for the same model: shape arithmetic is worked out,
    views launch nothing, decomposed activations, normalizations and attention are put together again.

    Args:
        source: A path, the file's bytes, or a parsed ModelProto.
        input: Shapes that the caller gives, per sample; needed where the file leaves a dimension other than the batch
            open.
        batch_hint: The batch to read the model at where it cannot be read for every batch, at least 1.

    Returns:
        The graph; its ``fixed_batch`` is set where it holds for one batch alone.

    Raises:
        ModelReadError: The file is missing, damaged, no ONNX model, or its operators do not fit together.
        UsageError: The given input shapes do not fit the model, or one is needed.
        UnsupportedError: The opset is too old, or the model's sizes do not grow with its batch.
    """
    if batch_hint is not None and batch_hint < 1:
        raise UsageError(
            f"The batch must be at least 1. Got {batch_hint}.", code="batch.invalid", cure="Give a positive number."
        )
    with _collection_paused():
        model, name, folder = load_model(source)
        program = lower(model, ExternalFiles(folder))
        del model
        plan = plan_inputs(program.inputs, input)
        return canonicalize(_read(program, plan, name, batch_hint))


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Reading makes many small objects and no cycles; the collector would walk them all again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(program: Program, plan: InputPlan, name: str, batch_hint: int | None) -> Graph:
    if not plan.has_batch:
        graph = _run(program, plan, 1).graph(name)
        reason = "No input of the model carries a batch."
        return replace(graph, fixed_batch=1, fixed_batch_reason=reason)
    if plan.native_batch is not None:
        return _read_fixed(program, plan, name, plan.native_batch)
    try:
        first, second = (_run(program, plan, batch).graph(name) for batch in _BATCHES)
        return unify_batches(first, second, batches=_BATCHES)
    except (ModelReadError, UnsupportedError) as exc:
        return _read_open_at_one_batch(program, plan, name, batch_hint, exc)


def _read_open_at_one_batch(
    program: Program, plan: InputPlan, name: str, batch_hint: int | None, cause: DippmError
) -> Graph:
    """A model whose batch is declared open, but whose operators do not follow it."""
    # Tracing a model bakes the batch that it was traced with into some shapes; that is nearly always 1.
    try:
        return _regrow(program, plan, name, native_batch=1)
    except (ModelReadError, UnsupportedError):
        if batch_hint is None:
            raise _explain(cause, plan) from cause
    try:
        graph = _run(program, plan, batch_hint).graph(name)
    except ModelReadError as exc:
        raise _explain(exc, plan) from exc
    return replace(graph, fixed_batch=batch_hint, fixed_batch_reason=str(cause))


def _read_fixed(program: Program, plan: InputPlan, name: str, native_batch: int) -> Graph:
    try:
        native = _run(program, plan, native_batch)
    except ModelReadError as exc:
        raise _explain(exc, plan) from exc
    try:
        return _regrow(program, plan, name, native_batch=native_batch, native=native)
    except (ModelReadError, UnsupportedError) as exc:
        reason = f"The file fixes the batch at {native_batch} and does not carry over to others: {exc}"
        return replace(native.graph(name), fixed_batch=native_batch, fixed_batch_reason=reason)


def _regrow(
    program: Program, plan: InputPlan, name: str, *, native_batch: int, native: Evaluator | None = None
) -> Graph:
    """Read at two batches what the file fixes at one."""
    native = _run(program, plan, native_batch) if native is None else native
    shapes = native.shapes()
    choices: dict[tuple[tuple[int, ...], int, tuple[int, ...]], int] = {}
    for attempt in range(_ATTEMPTS):
        rebatching = Rebatching(native_batch, _BATCHES[0], choices)
        try:
            graphs = []
            for batch in _BATCHES:
                rebatching = Rebatching(native_batch, batch, choices)
                graphs.append(_run(program, plan, batch, native=shapes, rebatching=rebatching).graph(name))
            return unify_batches(graphs[0], graphs[1], batches=_BATCHES)
        except (ModelReadError, UnsupportedError):
            # Come back to the reshape met last that can be read in another way.
            while choices:
                signature, chosen = choices.popitem()
                if chosen + 1 < rebatching.alternatives.get(signature, 0):
                    choices[signature] = chosen + 1
                    break
            if not choices or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _run(
    program: Program,
    plan: InputPlan,
    batch: int,
    *,
    native: list[tuple[int, ...] | None] | None = None,
    rebatching: Rebatching | None = None,
) -> Evaluator:
    evaluator = Evaluator(program, plan.at(batch), plan.dtypes, native_shapes=native, rebatching=rebatching)
    evaluator.run()
    return evaluator


def _explain(error: DippmError, plan: InputPlan) -> DippmError:
    """Blame the caller's shapes where they differ from the file's."""
    if not plan.conflicts or not isinstance(error, ModelReadError):
        return error
    return UsageError(
        f"The model cannot run on the given input shapes: {'; '.join(plan.conflicts[:4])}. {error}",
        code="input.shape_conflict",
        cure="Give shapes that the model accepts, or leave them out where the file fixes them.",
    )
