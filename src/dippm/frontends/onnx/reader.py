"""From an ONNX model to a :class:`~dippm.graph.Graph` with the batch left open."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import nan
from typing import TYPE_CHECKING, NoReturn, TypeVar

from dippm.costs.conditions import Mode
from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.onnx.bound_inputs import bind_values
from dippm.frontends.onnx.evaluation import Evaluator
from dippm.frontends.onnx.external_data import ExternalFiles
from dippm.frontends.onnx.idle_views import drop_idle_views
from dippm.frontends.onnx.input_sizes import InputPlan, plan_inputs
from dippm.frontends.onnx.loading import load_model
from dippm.frontends.onnx.lowering import lower
from dippm.frontends.onnx.program import InputDeclaration, Program
from dippm.frontends.onnx.rebatching import Choices, Rebatching, Signature
from dippm.frontends.onnx.slice_bounds import check_slices
from dippm.frontends.onnx.time_first import find_time_first, has_batch_as_time
from dippm.frontends.onnx.values import DATA_LIMIT
from dippm.frontends.picked_samples import find_picker, warn_of_picked_samples
from dippm.frontends.time_first import warn_of_time_first
from dippm.frontends.trace_of_training import check_training
from dippm.graph import RECURRENT_KINDS, Graph, TensorRole
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.canonicalize import canonicalize
from dippm.graph.passes.held_batch import HeldBatch, find_held_batch
from dippm.graph.passes.settle_recurrent_layout import settle_recurrent_layout
from dippm.graph.passes.stack_recurrent_layers import stack_recurrent_layers
from dippm.graph.passes.unify_batches import batch_dependent, check_batch, unify_batches
from dippm.processes.collection_pause import collection_paused

if TYPE_CHECKING:
    import onnx

__all__ = ["read_onnx"]

_BATCHES = (2, 3)
_PROOF_BATCH = 64
# Most elements of a constant that is evaluated, fixed and per sample. A constant that grows with the batch, such as a
# mask, may be small enough at one batch and too large at another; where no fixed limit parts them, one that grows does.
_DATA_LIMITS = ((DATA_LIMIT, 0), (20_000, 0), (6_000, 0), (500, 0), (0, 20_000), (0, 1_000), (0, 100))
_ATTEMPTS = 64
_HELD_ATTEMPTS = 16
_SOME_STEPS = 24
# A batch that an open file may have been traced with: the largest, and how many sizes in its code are tried; and most
# elements of a constant that may be a shape.
_LARGEST_TRACED = 512
_MOST_TRACED = 24
_MOST_DIMENSIONS = 8
Result = TypeVar("Result")

_NO_INPUT = InputShapes()


def read_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    input: InputShapes = _NO_INPUT,  # noqa: A002 (the word of the public interface)
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
    is_converted: bool = False,
    name: str | None = None,
) -> Graph:
    """Read an ONNX model without its weights.

    The result holds the operators that eager PyTorch would launch for the same model: shape arithmetic is worked out,
    views launch nothing, decomposed activations, normalizations and attention are put together again.

    Args:
        source: A path, the file's bytes, or a parsed ModelProto.
        input: Shapes that the caller gives, per sample; needed where the file leaves a dimension other than the batch
            open. An input of one number may be given by its value.
        mode: In training, the dropout that the file holds is active; a warning says where nothing in it belongs to
            training.
        batch_hint: The batch to read the model at where it cannot be read for every batch, at least 1; where it can,
            the reading is checked at this batch if it is large.
        is_converted: Whether a converter made the model from one of another framework, and so took apart what PyTorch
            has one operator for.
        name: What the model is called in messages; None for its path.

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
    with collection_paused():
        model, own_name, folder = load_model(source)
        name = own_name if name is None else name
        program = lower(model, ExternalFiles(folder))
        program.is_training = mode is Mode.TRAINING
        del model
        shapes, values = input.split_values(f"'{name}'")
        bind_values(program, values)
        plan = plan_inputs(program.inputs, shapes)

        def read_planned(plan: InputPlan) -> Graph:
            graph = drop_idle_views(_read(program, plan, name, batch_hint))
            if not is_converted:  # else canonicalize does it, for layers of any module
                graph = _with_whole_recurrent_modules(graph)
            return canonicalize(graph, is_converted=is_converted, norms=program.norms, noted=program.noted)

        graph = read_planned(plan)
        if plan.has_batch and not plan.is_batch_named:
            graph = _with_batch_behind_time(graph, program, shapes, read_planned)
            graph = _without_picked_batch(graph, program, plan, shapes, read_planned)
        if mode is Mode.TRAINING:
            _refuse_integer_weights(graph)
        return check_training(graph, mode)


def _with_batch_behind_time(
    graph: Graph, program: Program, shapes: InputShapes, read_planned: Callable[[InputPlan], Graph]
) -> Graph:
    """The model with its batch in the second dimension of inputs that begin with the time, as its layers tell."""
    found = find_time_first(graph)
    if found is None:
        return graph

    def read_turned(declarations: Sequence[InputDeclaration]) -> Graph | None:
        try:
            turned = read_planned(plan_inputs(declarations, shapes, time_first=found.inputs))
        except (ModelReadError, UnsupportedError):
            return None
        return turned if turned.fixed_batch is None and not has_batch_as_time(turned) else None

    try:
        turned = read_turned(program.inputs)
    except UsageError:
        # The steps are asked for only of a model that could have its batch behind them.
        if read_turned(_with_steps(program.inputs, found.inputs)) is not None:
            raise
        turned = None
    if turned is None and graph.fixed_batch is not None:
        return graph  # at one batch size what looks like the time may be something else of that size
    chosen = graph if turned is None else turned
    return replace(chosen, warnings=(warn_of_time_first(found, is_turned=turned is not None), *chosen.warnings))


def _without_picked_batch(
    graph: Graph, program: Program, plan: InputPlan, shapes: InputShapes, read_planned: Callable[[InputPlan], Graph]
) -> Graph:
    """The model without a batch, where an input picks rows of what was taken for one and the file says all sizes."""
    picker = find_picker(graph)
    if picker is None:
        return graph
    is_settled = plan.native_batch is not None and shapes.is_empty
    if is_settled:
        sizes = plan.at(plan.native_batch or 1)
        whole = {
            declaration.name: InputEntry(shape=size, is_batched=False)
            for declaration, size in zip(program.inputs, sizes, strict=True)
        }
        graph = read_planned(plan_inputs(program.inputs, InputShapes(named=whole)))
    return replace(graph, warnings=(warn_of_picked_samples(picker, is_settled=is_settled), *graph.warnings))


def _with_steps(declarations: Sequence[InputDeclaration], time_first: Sequence[int]) -> list[InputDeclaration]:
    """The inputs with some number of steps where the file leaves it open."""
    result = list(declarations)
    for position in time_first:
        dims = result[position].dims
        if dims and isinstance(dims[0], str):
            result[position] = replace(result[position], dims=(_SOME_STEPS, *dims[1:]))
    return result


def _with_whole_recurrent_modules(graph: Graph) -> Graph:
    """PyTorch's exporters write the layers of one recurrent module one by one, with transposes round them."""
    if not any(node.kind in RECURRENT_KINDS for node in graph.nodes):
        return graph
    editor = GraphEditor(graph)
    editor.drop_unused()
    stack_recurrent_layers(editor, is_per_module=True)
    settle_recurrent_layout(editor)
    return editor.to_graph()


def _refuse_integer_weights(graph: Graph) -> None:
    stored = [
        tensor for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER and not tensor.dtype.is_floating
    ]
    if stored:
        raise UnsupportedError(
            f"The weights of '{graph.source}' are stored as integers, '{stored[0].name[:200]}' as {stored[0].dtype}: "
            "nothing can train them.",
            code="training.quantised",
            cure="Give the model that it was quantised from, or predict its inference.",
        )


def _read(program: Program, plan: InputPlan, name: str, batch_hint: int | None) -> Graph:
    if not plan.has_batch:
        graph = _explained(plan, lambda: _run(program, plan, 1).graph(name))
        return replace(graph, fixed_batch=1, fixed_batch_reason="No input of the model carries a batch.")
    if plan.native_batch is not None:
        return _read_fixed(program, plan, name, plan.native_batch, batch_hint)
    try:
        return _unify(
            lambda batch, limit: _run(program, plan, batch, data_limit=limit), name=name, batch_hint=batch_hint
        )
    except (ModelReadError, UnsupportedError) as exc:
        return _read_open_at_one_batch(program, plan, name, batch_hint, exc)


def _read_open_at_one_batch(
    program: Program, plan: InputPlan, name: str, batch_hint: int | None, cause: DippmError
) -> Graph:
    """A model whose batch is declared open, but whose operators do not follow it."""
    # Tracing a model bakes the batch that it was traced with into some shapes; that is nearly always 1.
    try:
        return _regrow(program, plan, name, native_batch=1, batch_hint=batch_hint)
    except (ModelReadError, UnsupportedError):
        pass
    if batch_hint is not None and _runs_at(program, plan, batch_hint):
        graph = _run(program, plan, batch_hint).graph(name)
        return replace(graph, fixed_batch=batch_hint, fixed_batch_reason=str(cause))
    is_shape_wrong = isinstance(cause, ModelReadError)
    sizes = _written_sizes(program) if is_shape_wrong else []
    traced = next((size for size in sizes if _runs_at(program, plan, size)), None)
    if traced is None:
        _raise_or_blame_shapes(cause, plan)
    told = f"The file declares its batch open, but holds batch {traced}, which it was exported at,"
    return _read_fixed(program, plan, name, traced, batch_hint, told=told)


def _runs_at(program: Program, plan: InputPlan, batch: int) -> bool:
    try:
        _run(program, plan, batch)
    except ModelReadError:
        return False
    return True


def _written_sizes(program: Program) -> list[int]:
    """Sizes in the file's code, one of which may be the batch that it was traced with; the smallest first."""
    sizes = {size for constant in program.constants.values() for size in constant.shape}
    for stored in chain(program.weights.values(), program.constants.values()):
        if not stored.dtype.is_floating:
            sizes.update(stored.shape)
        if stored.data is not None and stored.data.size <= _MOST_DIMENSIONS and stored.data.dtype.kind == "i":
            sizes.update(stored.data.reshape(-1).tolist())
    return sorted(size for size in sizes if 1 < size <= _LARGEST_TRACED)[:_MOST_TRACED]


def _read_fixed(
    program: Program, plan: InputPlan, name: str, native_batch: int, batch_hint: int | None, *, told: str = ""
) -> Graph:
    native = _explained(plan, lambda: _run(program, plan, native_batch))
    try:
        return _regrow(program, plan, name, native_batch=native_batch, batch_hint=batch_hint, native=native)
    except (ModelReadError, UnsupportedError) as exc:
        told = told or f"The file fixes the batch at {native_batch}"
        reason = f"{told} and does not carry over to others: {exc}"
        return replace(native.graph(name), fixed_batch=native_batch, fixed_batch_reason=reason)


def _regrow(
    program: Program,
    plan: InputPlan,
    name: str,
    *,
    native_batch: int,
    batch_hint: int | None,
    native: Evaluator | None = None,
) -> Graph:
    """Read at other batches what the file fixes at one.

    Raises:
        UnsupportedError: ``graph.batch_dependent`` where the file's batch stands in an operator that does not follow.
    """
    native = _run(program, plan, native_batch) if native is None else native
    held: dict[int, int] = {}
    first: HeldBatch | None = None
    for _ in range(_HELD_ATTEMPTS):
        try:
            graph, run = _regrow_held(
                program, plan, name, native_batch=native_batch, batch_hint=batch_hint, native=native, held=held
            )
        except (ModelReadError, UnsupportedError):
            if first is None:
                raise
            break
        found = find_held_batch(graph, native_batch, made_up=run.made_up(native_batch))
        if found is None:
            return graph
        first = first or found
        numbers = run.numbers_of(found.origin) if found.is_written else []
        if not numbers or not held.keys().isdisjoint(numbers):
            break
        held.update(dict.fromkeys(numbers, found.axis))
    raise batch_dependent(
        first.reason.removesuffix(".") if first is not None else "its batch stands in too many places"
    )


def _regrow_held(
    program: Program,
    plan: InputPlan,
    name: str,
    *,
    native_batch: int,
    batch_hint: int | None,
    native: Evaluator,
    held: Mapping[int, int],
) -> tuple[Graph, Evaluator]:
    """The graph, and a run that numbers its tensors alike."""
    shapes = native.shapes()
    choices: Choices = {}
    alternatives: dict[Signature, int] = {}
    runs: dict[int, Evaluator] = {}

    def run_at(batch: int, limit: int) -> Evaluator:
        rebatching = Rebatching(native_batch, batch, choices, alternatives, held)
        runs[batch] = _run(program, plan, batch, native=shapes, rebatching=rebatching, data_limit=limit)
        return runs[batch]

    for _ in range(_ATTEMPTS - 1):
        try:
            return _unify(run_at, name=name, batch_hint=batch_hint), runs[_BATCHES[0]]
        except (ModelReadError, UnsupportedError):
            # Come back to the reshape met last that can be read in another way.
            while choices:
                signature, chosen = choices.popitem()
                if chosen + 1 < alternatives.get(signature, 0):
                    choices[signature] = chosen + 1
                    break
            if not choices:
                raise
    return _unify(run_at, name=name, batch_hint=batch_hint), runs[_BATCHES[0]]


def _unify(run_at: Callable[[int, int], Evaluator], *, name: str, batch_hint: int | None) -> Graph:
    """Read at two batches, leave the batch open, and prove the result at a third one that is far larger."""
    proof_batch = max(_PROOF_BATCH, batch_hint or 0)
    for fixed, per_sample in _DATA_LIMITS:
        runs = [run_at(batch, fixed + per_sample * batch) for batch in _BATCHES]
        smallest = _smallest_sliced(runs[0], runs[1], is_one_asked=batch_hint == 1)
        graphs = [run.graph(name) for run in runs]
        is_last = (fixed, per_sample) == _DATA_LIMITS[-1]
        if not (_run_alike(*graphs) or is_last):
            continue
        graph = unify_batches(*_level_scalars(*graphs), batches=_BATCHES)
        proof = run_at(proof_batch, fixed + per_sample * proof_batch).graph(name)
        if _run_alike(graph, proof) or is_last:
            break
    return replace(check_batch(graph, proof, proof_batch), smallest_batch=smallest)


def _run_alike(first: Graph, second: Graph) -> bool:
    """Whether two readings run the same operators one after another; as many of them is not enough.

    A constant that is too large to be evaluated is made where it stands, one that is evaluated where it is first read.
    """
    return [(node.kind, node.inputs, node.outputs) for node in first.nodes] == [
        (node.kind, node.inputs, node.outputs) for node in second.nodes
    ]


def _smallest_sliced(first: Evaluator, second: Evaluator, *, is_one_asked: bool) -> int:
    """The smallest batch at which slices take what they take at the first two: 1, or else the first of these."""
    try:
        check_slices(first.slices, second.slices, batches=_BATCHES, smallest=1)
    except UnsupportedError:
        if is_one_asked:
            raise
        check_slices(first.slices, second.slices, batches=_BATCHES, smallest=_BATCHES[0])
        return _BATCHES[0]
    return 1


def _level_scalars(first: Graph, second: Graph) -> tuple[Graph, Graph]:
    """Forget the value of a number in the code that follows the batch; it costs the same whatever it is."""
    differing = [
        position
        for position, (a, b) in enumerate(zip(first.nodes, second.nodes, strict=False))
        if "scalar" in a.attributes and "scalar" in b.attributes and a.attributes["scalar"] != b.attributes["scalar"]
    ]
    if not differing:
        return first, second
    result = []
    for graph in (first, second):
        nodes = list(graph.nodes)
        for position in differing:
            node = nodes[position]
            nodes[position] = replace(node, attributes={**node.attributes, "scalar": nan})
        result.append(replace(graph, nodes=tuple(nodes)))
    return result[0], result[1]


def _run(
    program: Program,
    plan: InputPlan,
    batch: int,
    *,
    native: list[tuple[int, ...] | None] | None = None,
    rebatching: Rebatching | None = None,
    data_limit: int = DATA_LIMIT,
) -> Evaluator:
    evaluator = Evaluator(
        program, plan.at(batch), plan.dtypes, native_shapes=native, rebatching=rebatching, data_limit=data_limit
    )
    evaluator.run()
    return evaluator


def _explained(plan: InputPlan, run: Callable[[], Result]) -> Result:
    try:
        return run()
    except ModelReadError as exc:
        _raise_or_blame_shapes(exc, plan)


def _raise_or_blame_shapes(error: DippmError, plan: InputPlan) -> NoReturn:
    """Raise an error, as one of the caller's shapes where they differ from the file's."""
    if not plan.conflicts or not isinstance(error, ModelReadError):
        raise error
    raise UsageError(
        f"The model cannot run on the given input shapes: {'; '.join(plan.conflicts[:4])}. {error}",
        code="input.shape_conflict",
        cure="Give shapes that the model accepts, or leave them out where the file fixes them.",
    ) from error
