"""An ``nn.Module`` becomes a graph."""

from __future__ import annotations

import dataclasses
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from dippm.costs.conditions import Mode
from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.process_lock import PROCESS_LOCK
from dippm.frontends.time_first import TimeFirst, warn_of_time_first
from dippm.frontends.torch.asked_values import (
    DataDependentError,
    FloatIndicesError,
    buffers_behind,
    lengths_behind,
    masks_behind,
)
from dippm.frontends.torch.autograd_functions import gradients_followed
from dippm.frontends.torch.call_inputs import check_inputs, default_dtype, make_inputs, unknown_name
from dippm.frontends.torch.detections import Detectors, boxes_as_counted, find_detectors
from dippm.frontends.torch.exported_module import ExportedModule
from dippm.frontends.torch.forward_errors import forward_error
from dippm.frontends.torch.generation import GenerationModule, StepResult
from dippm.frontends.torch.given_module import check_initialised, unwrapped
from dippm.frontends.torch.late_compiler import compiler_off
from dippm.frontends.torch.module_state import ModuleState
from dippm.frontends.torch.own_loss import is_scored_in_fp32
from dippm.frontends.torch.pretended_device import PretendedDevice
from dippm.frontends.torch.recorder import Recorder
from dippm.frontends.torch.scopes import ScopeTracker
from dippm.frontends.torch.time_first import (
    attention_scopes,
    find_time_first,
    name_time_first,
    turn_inputs,
    turnable,
)
from dippm.frontends.torch.watched_batch import BatchWatch, settle_doubts
from dippm.graph import Graph, Node, TensorRole, TensorSpec
from dippm.graph.passes.unify_batches import check_batch, unify_batches
from dippm.processes.collection_pause import collection_paused

__all__ = ["read_module"]

_BATCHES = ((2, 3), (2, 4))
_PROOF_BATCH = 64
_WITH_FP32_PARTS = ("diffusers.", "transformers.")
_COMPILER = "torch._dynamo"


def read_module(
    module: nn.Module,
    *,
    input: InputShapes,  # noqa: A002
    source: str = "",
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
    batches: tuple[int, ...] | None = None,
) -> Graph:
    """Read a module by recording the operators of its forward pass, on tensors without data.

    In training mode that is the forward pass of a training step: dropout is active, batch norm takes the batch's own
    statistics, heads that only training has are there, and the weights that are frozen (``requires_grad`` is False) are
    buffers. Nothing is differentiated; see :mod:`dippm.costs.training_step` for that.

    Args:
        module: Any module; it is left as it was, and its weights are not touched.
        input: Shapes of one sample, by position or by forward's names.
        source: Where the module came from, for messages.
        mode: Whether to read the module as it runs in evaluation mode or in training.
        batch_hint: The batch size to read at where the module cannot be read for every batch size.
        batches: Batch sizes to read at, two for every batch size or one for that one alone; None to choose.

    Returns:
        The graph, for every batch size where the module's sizes grow in proportion to it, else for ``batch_hint`` or 1,
        with the reason. Where a batch by which the module decides goes another way, it is read so for a ``batch_hint``
        of that size; else the graph says so of itself, and a warning where there is no ``batch_hint``. A module that
        takes the time first has its batch in the second dimension, and a warning.

    Raises:
        UsageError: ``input.shape_needed``, ``input.shape_wrong``, ``input.name_unknown``, ``generation.training``;
            ``torch.lazy`` where a lazy module was never called.
        ModelReadError: ``torch.forward_failed`` where the module's own code has a mistake, whatever the shapes.
        UnsupportedError: ``torch.data_dependent`` where the forward pass branches on the values of its input;
            ``torch.needs_gpu`` where it asks for a GPU that is not there;
            ``torch.no_shape_rule`` where PyTorch cannot tell an operator's output shape; ``torch.quantised`` where
            PyTorch has quantised the module; ``torch.script_cannot_run`` where PyTorch never runs what was scripted.
    """
    module, told = unwrapped(module)
    if mode is Mode.TRAINING and isinstance(module, GenerationModule):
        raise UsageError(
            f"{source or type(module).__name__} is a step of generation, which nothing is trained by.",
            code="generation.training",
            cure="Name the model without the step.",
        )
    if input.is_empty and isinstance(module, GenerationModule):
        input = module.default_input  # noqa: A001
    check_initialised(module, source=source)
    input = check_inputs(module, input)  # noqa: A001
    with PROCESS_LOCK, _reading_conditions():
        state = ModuleState(module)
        try:
            if mode is Mode.TRAINING:
                state.train()
            else:
                state.evaluate()
            reading = _Reading(
                module=module, input=input, source=source or type(module).__name__, mode=mode, state=state
            )
            graph = reading.read_in_order(batch_hint=batch_hint, batches=batches)
        finally:
            state.restore()
    return dataclasses.replace(graph, warnings=(*told, *graph.warnings)) if told else graph


class _MasksAskedError(Exception):
    """The module decides by what masks among its inputs hold.

    Args:
        positions: Which of the inputs they are.
    """

    def __init__(self, positions: frozenset[int]) -> None:
        super().__init__("a decision by a mask")
        self.positions = positions


class _LengthsAskedError(Exception):
    """The module makes sizes of the largest of the lengths of its samples.

    Args:
        position: Which of the inputs they are.
        refusal: What is told of it where no lengths go together with the other inputs.
    """

    def __init__(self, position: int, refusal: Exception) -> None:
        super().__init__("a size by lengths")
        self.position = position
        self.refusal = refusal


@dataclasses.dataclass(kw_only=True)
class _Reading:
    """One module with its inputs, and what was learned about their types."""

    module: nn.Module
    input: InputShapes
    source: str
    mode: Mode
    state: ModuleState
    integer_inputs: frozenset[int] = frozenset()
    full_masks: frozenset[int] = frozenset()
    full_lengths: Mapping[int, int] = dataclasses.field(default_factory=dict)
    watch: BatchWatch | None = None

    def read_in_order(self, *, batch_hint: int | None, batches: tuple[int, ...] | None) -> Graph:
        """Read the module with the batch where it has it: behind the time, where a layer takes that first."""
        try:
            graph = self._read_for(batch_hint, batches)
        except UsageError as exc:
            turned = self._read_turned(batch_hint) if exc.code == "input.shape_wrong" else None
            if turned is None:
                raise
            return turned
        found = find_time_first(graph, self._attention)
        if found is None:
            # Lengths, masks and states of samples do not go together with a batch that stands where the time is.
            is_open = graph.fixed_batch is None or batches is not None
            return graph if is_open else self._read_turned(batch_hint) or graph
        again = self._read_turned(batch_hint, found)
        return again or _with_warning(graph, warn_of_time_first(found, is_turned=False))

    @cached_property
    def _detectors(self) -> Detectors | None:
        return find_detectors(self.module)

    @property
    def _attention(self) -> frozenset[str]:
        if isinstance(self.module, ExportedModule):
            return self.module.attention_scopes
        return attention_scopes(self.module)

    def _read_turned(self, batch_hint: int | None, found: TimeFirst | None = None) -> Graph | None:
        """Read the module with the batch behind the time; None where that is not what its layers take.

        Args:
            batch_hint: As for :func:`read_module`.
            found: The inputs that have the time in front, or None where only the module's layers tell that some have.
        """
        layer = name_time_first(self.module) if found is None else found.layer
        if not layer or isinstance(self.module, ExportedModule):  # a program says itself where its batch is
            return None
        for positions in turnable(self.input) if found is None else (found.inputs,):
            turned = turn_inputs(self.input, positions)
            if turned is None:
                continue
            try:
                graph = dataclasses.replace(self, input=turned).read_any_batch(batch_hint=batch_hint, choices=_BATCHES)
            except DippmError:
                continue
            is_proved = graph.fixed_batch is None or found is not None
            if is_proved and find_time_first(graph, self._attention) is None:
                names = tuple(graph.tensors[graph.inputs[position]].name for position in positions)
                told = TimeFirst(layer=layer, inputs=positions, names=names)
                return _with_warning(graph, warn_of_time_first(told, is_turned=True))
        return None

    def _read_for(self, batch_hint: int | None, batches: tuple[int, ...] | None) -> Graph:
        if batches is not None and len(batches) == 1:
            return self.read_settled(batches[0])
        return self.read_any_batch(batch_hint=batch_hint, choices=_BATCHES if batches is None else (batches,))

    def read_any_batch(self, *, batch_hint: int | None, choices: tuple[tuple[int, ...], ...]) -> Graph:
        reason = ""
        readings: dict[int, Graph] = {}
        watch: BatchWatch | None = None
        for place, batches in enumerate(choices):
            try:
                for batch in batches:
                    if batch not in readings:
                        readings[batch] = self.read_settled(batch)
                first, second = batches
                graph = unify_batches(readings[first], readings[second], batches=(first, second))
                # Even, for modules that take even batches alone; larger than both, or it would prove nothing.
                proof = max(_PROOF_BATCH, 2 * max(batches), batch_hint or 0)
                if watch is None:
                    try:
                        readings[proof], watch = self._read_watched(proof)
                    except UnsupportedError as exc:
                        reason = str(exc)
                        break
                graph = check_batch(graph, readings[proof], proof)
                read = (first, second, proof)
                doubts = [batch for tried in choices[:place] for batch in tried if batch not in read]
                doubts += [batch for batch in watch.doubtful(read) if batch not in doubts]
                return settle_doubts(
                    graph,
                    doubts,
                    read=read,
                    read_at=lambda size: readings[size] if size in readings else self.read_settled(size),
                    batch_hint=batch_hint,
                    are_all=place == 0 and watch.are_all(read),
                    has_more_rests=watch.has_more_rests(read),
                )
            except UnsupportedError as exc:
                if exc.code != "graph.batch_dependent":
                    raise
                reason = str(exc)
            except (UsageError, ModelReadError) as exc:
                # Some modules take one batch size alone, and say so by failing at others.
                if batch_hint is None and not readings:
                    first_error = exc
                    try:
                        graph = self.read_settled(1)
                    except DippmError:
                        raise first_error from None
                    return dataclasses.replace(graph, fixed_batch=1, fixed_batch_reason=str(first_error))
                reason = str(exc)
        batch = batch_hint or 1
        return dataclasses.replace(self.read_settled(batch), fixed_batch=batch, fixed_batch_reason=reason)

    def _read_watched(self, batch: int) -> tuple[Graph, BatchWatch]:
        """Read the module at a batch, and see what that is compared with."""
        axes = {entry.batch_axis for entry in self.input.entries if entry.is_batched}
        watch = BatchWatch(batch, axes=axes)
        return dataclasses.replace(self, watch=watch).read_settled(batch), watch

    def read_settled(self, batch: int) -> Graph:
        """Read the module as it runs once its first call is over, which is how it is measured."""
        had_compiler = _COMPILER in sys.modules
        before = self.state.fingerprint()
        graph = self.read_at(batch)
        # A first call may fill the module's caches. It may also make PyTorch import its compiler for a shape, and an
        # import keeps tensors alive meanwhile.
        if self.state.fingerprint() != before or (_COMPILER in sys.modules and not had_compiler):
            graph = self.read_at(batch)
        return graph

    def read_at(self, batch: int) -> Graph:
        for _ in range(2 * len(self.input.entries) + 1):
            recorder = None
            try:
                with ScopeTracker(self.module) as scopes:
                    current = getattr(self.module, "current_scope", None)
                    recorder = Recorder(
                        scope=current if callable(current) else scopes.current,
                        has_registered_weights=not isinstance(self.module, torch.jit.ScriptModule)
                        or any(True for _ in self.module.parameters()),
                        is_differentiated=self.mode is Mode.TRAINING,
                        detectors=self._detectors,
                    )
                    return self._record(recorder, batch=batch)
            except FloatIndicesError as exc:
                entries = self.input.entries
                tensors = recorder.tensors if recorder is not None else ()
                inputs = [i for i, tensor in enumerate(tensors) if tensor.role is TensorRole.INPUT]
                position = inputs.index(exc.tensor) if exc.tensor in inputs else -1
                if position < 0 or entries[position].dtype is not None or position in self.integer_inputs:
                    raise UsageError(
                        f"{self.source} looks up an embedding with floating-point numbers.",
                        code="input.dtype_wrong",
                        cure='Give the element type with the shape, as in "128:int64".',
                    ) from exc
                self.integer_inputs |= {position}
            except _MasksAskedError as exc:
                self.full_masks |= exc.positions
            except _LengthsAskedError as exc:
                return self._read_at_lengths(exc, batch)
        raise AssertionError("every retry makes one more input an integer or a mask")

    def _read_at_lengths(self, asked: _LengthsAskedError, batch: int) -> Graph:
        """Read the module with samples that are as long as an input is in one of its dimensions."""
        for size in self._sizes_beside(asked.position):
            lengths = {**self.full_lengths, asked.position: size}
            reading = dataclasses.replace(self, full_lengths=lengths)
            try:
                graph = reading.read_at(batch)
            except DippmError:
                continue
            self.full_masks, self.full_lengths = reading.full_masks, reading.full_lengths
            return graph
        raise asked.refusal

    def _sizes_beside(self, position: int) -> Iterable[int]:
        """The sizes of a sample of the other inputs: first of what stands before one of them, the largest in front."""
        entries = self.input.entries
        order = sorted(set(range(len(entries))) - {position}, key=lambda other: (position - other - 1) % len(entries))
        return dict.fromkeys(size for other in order for size in sorted(entries[other].shape, reverse=True) if size > 1)

    def _record(self, recorder: Recorder, *, batch: int) -> Graph:
        recorder.table.add_weights_of(self.module)
        if recorder.flow is not None:
            for parameter in self.module.parameters():
                if parameter.requires_grad:
                    for index in recorder.table.indices_of(parameter):
                        recorder.flow.add_weight(index)
        positional, named, inputs = make_inputs(
            recorder,
            self.input,
            batch=batch,
            default=default_dtype(self.module),
            integer_inputs=self.integer_inputs,
            full_masks=self.full_masks,
            full_lengths=self.full_lengths,
        )
        with collection_paused(), compiler_off(), boxes_as_counted(self._detectors, recorder.assumptions):
            # Models that draw random numbers on the host, to leave out layers or to place masks, draw the same ones.
            random.seed(0)
            np.random.seed(0)
            result = self._call(recorder, positional, named, batch=batch)
            outputs = tuple(dict.fromkeys(recorder.index_of(tensor) for tensor in _output_tensors(result)))
            tensors, nodes = self._without_frozen(recorder), recorder.nodes()
            if isinstance(result, StepResult):
                tensors, nodes = _mark_cache(recorder, result, tensors, nodes)
            recorder.table.close()
        return Graph(
            source=self.source,
            framework="pytorch",
            tensors=tensors,
            nodes=nodes,
            inputs=inputs,
            outputs=outputs,
            has_lifetimes=True,
            fixed_batch=batch,
            keeps_fp32_parts=_keeps_fp32_parts(self.module),
            is_scored_in_fp32=self.mode is Mode.TRAINING and is_scored_in_fp32(self.module),
            own_gradients=tuple(recorder.own_gradients),
            unsupported_ops=dict(recorder.unsupported),
            warnings=tuple(dict.fromkeys(recorder.assumptions)),
        )

    def _without_frozen(self, recorder: Recorder) -> tuple[TensorSpec, ...]:
        """The recorded tensors; in training, weights that are not trained are buffers.

        A frozen weight has no gradient and no optimizer state, and autocast does not keep its cast copy: it treats it
        as it treats a buffer.
        """
        tensors = list(recorder.tensors)
        if self.mode is Mode.TRAINING:
            for parameter in self.module.parameters():
                if not parameter.requires_grad:
                    for index in recorder.table.indices_of(parameter):
                        tensors[index] = dataclasses.replace(tensors[index], role=TensorRole.BUFFER)
        return tuple(tensors)

    def _call(self, recorder: Recorder, positional: tuple[Any, ...], named: Mapping[str, Any], *, batch: int) -> Any:
        noted = recorder.autocast.noted()
        pretended = PretendedDevice(recorder, watch=self.watch)
        try:
            with torch.inference_mode(), gradients_followed(recorder), pretended, recorder, noted:
                return self.module(*positional, **named)
        except (DippmError, FloatIndicesError):
            raise
        except Exception as exc:
            # TorchScript puts an error of its own in the place of what was raised.
            asked = next((each for each in (exc, recorder.raised) if isinstance(each, DataDependentError)), None)
            refusal = self._error(exc, recorder, batch=batch)
            if asked is not None:
                self._assume_full(asked, recorder, refusal)
            raise refusal from exc

    def _assume_full(self, asked: DataDependentError, recorder: Recorder, refusal: Exception) -> None:
        """Ask for another reading where the module decides by masks or lengths, which are taken to be full."""
        nodes, tensors = recorder.nodes(), recorder.tensors
        inputs = [i for i, tensor in enumerate(tensors) if tensor.role is TensorRole.INPUT]
        masks = frozenset(map(inputs.index, masks_behind(asked.tensors, nodes, tensors))) - self.full_masks
        if masks:
            raise _MasksAskedError(masks) from asked
        lengths = map(inputs.index, lengths_behind(asked.tensors, nodes, tensors))
        for position in lengths:
            if position not in self.full_lengths and self.input.entries[position].shape == ():
                raise _LengthsAskedError(position, refusal) from asked

    def _error(self, error: Exception, recorder: Recorder, *, batch: int) -> Exception:
        shapes = ", ".join(str(list(entry.at(batch))) for entry in self.input.entries)
        asked = next((each.tensors for each in (error, recorder.raised) if isinstance(each, DataDependentError)), ())
        buffers = buffers_behind(asked, recorder.nodes(), recorder.tensors)
        found = forward_error(error, raised=recorder.raised, source=self.source, shapes=shapes, buffers=buffers)
        if not isinstance(found, UsageError | ModelReadError):
            return found
        # A module that passes arguments on by any name may have lacked the one that was meant.
        return unknown_name(self.module, self.input, why=str(found).removesuffix(found.cure or "").strip()) or found


def _with_warning(graph: Graph, warning: str) -> Graph:
    return dataclasses.replace(graph, warnings=(*graph.warnings, warning))


def _mark_cache(
    recorder: Recorder, result: StepResult, tensors: tuple[TensorSpec, ...], nodes: tuple[Node, ...]
) -> tuple[tuple[TensorSpec, ...], tuple[Node, ...]]:
    """Give the tensors of a decoder's cache their role; those that were there before, no node makes."""
    found = frozenset(result.found)
    owners = found | {recorder.table.slot(recorder.table.adopt(tensor)).storage.base for tensor in result.kept}
    marked = [
        dataclasses.replace(tensor, role=TensorRole.CACHE)
        if index in owners and tensor.role is TensorRole.ACTIVATION
        else tensor
        for index, tensor in enumerate(tensors)
    ]
    return tuple(marked), tuple(node for node in nodes if node.inputs or found.isdisjoint(node.outputs))


def _keeps_fp32_parts(module: nn.Module) -> bool:
    """Whether it is of a library, or has a part of one, whose code computes in FP32 beside weights of 16 bits."""
    return any(type(part).__module__.startswith(_WITH_FP32_PARTS) for part in module.modules())


@contextmanager
def _reading_conditions() -> Iterator[None]:
    """Make recordings repeatable: nothing is fused, and a real run warns of nothing; all is put back after."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        had_fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, had_fastpath)
        # TorchScript fuses what it has run a few times, and keeps parts of it for a backward pass.
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def _output_tensors(value: Any, *, depth: int = 0) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 8:
        children: Iterable[Any] = ()
        if isinstance(value, Mapping):
            children = value.values()
        elif isinstance(value, (list, tuple, set)):
            children = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            children = [getattr(value, item.name, None) for item in dataclasses.fields(value)]
        for child in children:
            yield from _output_tensors(child, depth=depth + 1)
