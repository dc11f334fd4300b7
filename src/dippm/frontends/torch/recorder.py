"""Records every operator that a module runs, on tensors that have a shape and no data.

All tensors live on PyTorch's ``meta`` device: its kernels compute shapes, strides and types, and no memory. Two things
make modules believe that they run on an ordinary device: ``PretendedDevice`` answers questions about the device, and
small tensors whose values follow from the program alone (``torch.arange(4)``, masks, index tables) carry those
values along, so that ``.item()`` and ``if`` on them work. What depends on the values of the model's inputs cannot be
known and raises :class:`~dippm.frontends.torch.asked_values.DataDependentError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from dippm.costs.autocast import CAST_KINDS, KEPT, LOWERED, RAISED
from dippm.costs.decompositions import FLOPS_PER_ELEMENT, warn_of_decomposition
from dippm.costs.training_step.checkpointing import AUTOGRAD_FUNCTION
from dippm.frontends.torch.asked_values import DRAWN_MEANS, DataDependentError, FloatIndicesError
from dippm.frontends.torch.attributes import ATTRIBUTE_BUILDERS
from dippm.frontends.torch.autocast_regions import AutocastRegions
from dippm.frontends.torch.call_forms import changes_only_device, is_fused, is_mask_index, is_view_of_parts, kind_of
from dippm.frontends.torch.detections import Detections, Detectors
from dippm.frontends.torch.expansions import (
    DERIVED_WHOLE,
    EXPANSIONS,
    KEEP_ARGUMENTS,
    drop_out,
    is_linear_whole,
    linear_of_copy,
)
from dippm.frontends.torch.gradient_flow import GradientFlow
from dippm.frontends.torch.higher_order import run_eagerly
from dippm.frontends.torch.known_values import KnownValues
from dippm.frontends.torch.meta_tensors import is_differentiable, map_tensors, run_on_meta, tensors_in, without_values
from dippm.frontends.torch.one_number import fill_of
from dippm.frontends.torch.own_loss import is_scoring_in_fp32
from dippm.frontends.torch.packed_sequences import FULL_LENGTH, PACKED
from dippm.frontends.torch.plans import (
    DROPOUTS,
    SAME_TENSOR,
    VALUE_DEPENDENT,
    OpPlan,
    no_end,
    no_quantised,
    plan_for,
    refusal,
)
from dippm.frontends.torch.recorded_step import RecordedStep
from dippm.frontends.torch.routing import Routing
from dippm.frontends.torch.shapes import SHAPE_RULES, elementwise_result
from dippm.frontends.torch.tensor_table import Slot, TensorTable, may_keep_values
from dippm.frontends.torch.wrapped_tensors import is_wrapper
from dippm.graph import OWN_GRADIENT, Attribute, Node, OpKind, OwnGradient, TensorRole, TensorSpec

__all__ = ["Recorder"]

_META = torch.device("meta")
_OPERATOR_LIMIT = 2_000_000  # the largest models run some ten thousand
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_DETACH = "detach"
_CHECKS = frozenset({"equal", "_local_scalar_dense"})  # what asks for a value to refuse others
# Compositions that compare values only to refuse windows that no signal comes back from.
_CHECKING = frozenset({"istft"})
# Operators on autocast's list of FP32 that are recorded as what they run.
_RAISED = frozenset({"_euclidean_dist"})
# Compositions whose operands autocast casts before anything of them runs, and what they run beside products.
_LOWERED = frozenset({"matmul", "einsum"})
_LOWERED_KINDS = frozenset({OpKind.COPY, OpKind.MUL})
# A composition that asks for logarithms in the type of its scores, and what marks these.
_SCORING, _MARK_OF_LOGARITHMS = "cross_entropy_loss", {"keeping": KEPT, "scoring": RAISED}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects nodes and tensors while it is entered.

    Args:
        scope: Called at each operator for the path of the module that runs.
        has_registered_weights: Whether tensors that are met without having been added are no trained weights; a
            frozen TorchScript program has all of its weights as constants.
        is_differentiated: Whether a backward pass follows what is recorded.
        detectors: What of the module is a detector of torchvision; None where nothing is.

    Attributes:
        autocast: Where the model switches autocast on or off itself.
        flow: Which tensors a gradient goes back from; None where no backward pass follows.
        own_gradients: The backward passes that the model defines itself.
        raised: What the last operator raised, or None; TorchScript passes an error of its own on instead.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would otherwise import its compiler, which takes longer than reading most models.
        return False

    def __init__(
        self,
        *,
        scope: Callable[[], str],
        has_registered_weights: bool = True,
        is_differentiated: bool = False,
        detectors: Detectors | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = GradientFlow() if is_differentiated else None
        # Of what runs meanwhile: autocast leaves products in FP32 (raised), has cast operands (lowered), and leaves
        # logarithms as they are (keeping) or in FP32 (scoring); what asks for a value only refuses others (checking).
        self._switches: frozenset[str] = frozenset()
        self.unsupported: dict[str, int] = {}
        self.assumptions: list[str] = []
        self.autocast = AutocastRegions(self.assumptions)
        self._scope = scope
        self._steps: list[RecordedStep] = []
        self.own_gradients: list[OwnGradient] = []
        self._apart: set[int] = set()
        # What is recorded whole and is a view of what its last part makes.
        self._unseen_views: set[int] = set()
        self._count = 0
        self.raised: Exception | None = None
        self.table = TensorTable(release=self._release, has_registered_weights=has_registered_weights)
        self.values = KnownValues(self.table, self.assumptions)
        detections = Detections(self.table, self.assumptions, detectors, scope=scope)
        self.routing = Routing(self.table, self.assumptions, detections)

    # Results

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors seen so far."""
        return tuple(self.table.specs)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes recorded so far, each with the storages given back right after it."""
        return tuple(step.as_node() for step in self._steps)

    @property
    def step_count(self) -> int:
        """Number of nodes recorded so far."""
        return len(self._steps)

    def mark_function(self, start: int, name: str) -> None:
        """Mark the nodes from one on as those of one autograd function that keeps nothing but its arguments."""
        for step in self._steps[start:]:
            step.attributes[AUTOGRAD_FUNCTION] = f"{name}_{start}"

    def mark_own_gradient(self, start: int, gradient: OwnGradient) -> None:
        """Let the nodes from one on have a backward pass that the model defines itself."""
        for step in self._steps[start:]:
            step.attributes[OWN_GRADIENT] = gradient.name
        self.own_gradients.append(gradient)

    def record_apart(
        self, run: Callable[[], Sequence[torch.Tensor | None]]
    ) -> tuple[tuple[int, ...], tuple[Node, ...]]:
        """Record operators that are no part of the forward pass.

        Args:
            run: Runs them, and returns results.

        Returns:
            The indices of the results, -1 where there is none, and the nodes.
        """
        steps, self._steps = self._steps, []
        unsupported, assumptions = dict(self.unsupported), len(self.assumptions)
        first = len(self.table.specs)
        try:
            found = run()
            results = tuple(-1 if each is None else self.table.slot(self.table.adopt(each)).index for each in found)
            return results, tuple(step.as_node() for step in self._steps)
        except Exception:
            self.unsupported = unsupported
            del self.assumptions[assumptions:]
            raise
        finally:
            self._steps = steps
            # The forward pass gives back nothing of these, whenever they go.
            self._apart.update(range(first, len(self.table.specs)))

    def index_of(self, tensor: torch.Tensor) -> int:
        """Index of a tensor object in the graph; one never seen becomes a constant."""
        known = self.table.adopt(tensor)
        self._cut_off([known])
        return self.table.slot(known).index

    def requires_grad(self, tensor: torch.Tensor) -> bool:
        """Whether a backward pass would go back from a tensor to a trained weight."""
        if self.flow is None or self.flow.is_inside_function:
            return False
        index = self.table.slot(self.table.adopt(tensor)).index
        return self.flow.depends(index) and not self.flow.is_cut(index)

    def _release(self, base: int) -> None:
        if self._steps and base not in self._apart:
            self._steps[-1].releases.append(base)

    def known_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor where they follow from the program alone, else None."""
        known = self.table.adopt(tensor)
        self.values.note_asked([known])
        return self.table.value(known)

    def contains(self, tensor: torch.Tensor, element: Any) -> bool:
        """Whether a value is among a tensor's, assumed not where only the model's real input would tell.

        Language models look for padding among their tokens to warn about it. The assumption is reported.
        """
        with self:
            found = (tensor == element).any()
        value = self.known_value(found)
        if value is None:
            self.assumptions.append(f"The input is taken not to contain {element!r}, which the model looks for.")
            return False
        return bool(value)

    # Operators

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.raised = None
        if any(map(is_wrapper, types)):
            return NotImplemented
        try:
            result = self._dispatch(func, args, kwargs or {})
            if isinstance(func, torch._ops.OpOverload):
                self.routing.note(func, args, kwargs or {}, result)
            self.values.note(func, args, result)
            return result
        except Exception as exc:
            self.raised = exc
            raise

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(func, HigherOrderOperator):
            with self:
                return run_eagerly(func, args, kwargs)
        plan = plan_for(func)
        self._count += 1
        if self._count > _OPERATOR_LIMIT:
            raise no_end(_OPERATOR_LIMIT)
        if plan.is_refused:
            raise refusal(plan)
        if plan.is_quantised:
            raise no_quantised(f"runs {plan.source_op}")
        if plan.is_skipped:
            return None
        if plan.is_ignored:
            return func(*args, **kwargs)
        args = tuple(self._adopt_argument(value) for value in args)
        kwargs = {name: self._adopt_argument(value) for name, value in kwargs.items()}
        name = plan.name
        if name in EXPANSIONS and not (self.flow is not None and name in DERIVED_WHOLE):
            start = self.step_count
            with self, self._meanwhile(raised=name in _RAISED):
                result = EXPANSIONS[name](*args, **kwargs)
                if name in KEEP_ARGUMENTS:
                    self.mark_function(start, name)
                return args[0].copy_(result) if plan.is_in_place else result
        if func in PACKED:
            self.assumptions.append(FULL_LENGTH)
            with self:
                return PACKED[func](*args, **kwargs)
        if name in SAME_TENSOR and not (name == _DETACH and self.requires_grad(args[0])):
            return self._same_tensor(func, args, kwargs)
        if name in DROPOUTS:
            with self:
                return drop_out(func, plan.name, *args, is_in_place=plan.is_in_place)
        if name == "linear" and not is_linear_whole(args[0]):
            with self, self._meanwhile(lowered=True):
                return linear_of_copy(*args, **kwargs)
        if plan.is_composite:
            scores = "" if name != _SCORING else "scoring" if is_scoring_in_fp32() else "keeping"
            switches = {"lowered": name in _LOWERED, "checking": name in _CHECKING, scores: bool(scores)}
            with self, self._meanwhile(**switches):
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        arguments = {**plan.defaults, **dict(zip(plan.argument_names, args, strict=False)), **kwargs}
        if name == "scaled_dot_product_attention" and not is_fused(arguments):
            # Written out, PyTorch computes its products in FP32 where their operands have 16 bits.
            with self, self._meanwhile(raised=True):
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        if name == "_to_copy" and changes_only_device(arguments):
            return arguments["self"]
        if name in {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}:
            indices = arguments["indices"]
            if indices.dtype.is_floating_point:
                raise FloatIndicesError(self.table.slot(indices).storage.base)
        return self._run(func, plan, args, kwargs, arguments)

    @contextmanager
    def _meanwhile(self, **switched_on: bool) -> Iterator[None]:
        """Switch on what is given as True, and put it back after."""
        before = self._switches
        self._switches = before | {name for name, is_on in switched_on.items() if is_on}
        try:
            yield
        finally:
            self._switches = before

    def checking(self) -> AbstractContextManager[None]:
        """What asks for a value meanwhile only refuses others."""
        return self._meanwhile(checking=True)

    def _adopt_argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.table.adopt(value)
        if isinstance(value, (list, tuple)) and any(isinstance(item, (torch.Tensor, list, tuple)) for item in value):
            return [self._adopt_argument(item) for item in value]
        return value

    def _same_tensor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        result = func(*args, **kwargs)
        if result is not source:
            slot = self.table.slot(source)
            self.table.attach(result, Slot(self.table, slot.index, slot.storage, slot.value))
        return result

    def _run(
        self, func: Any, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Mapping[str, Any]
    ) -> Any:
        inputs = list(tensors_in(args))
        inputs.extend(tensors_in(tuple(kwargs.values())))
        meta_kwargs = kwargs
        if plan.has_device and (not inputs or kwargs.get("device") is not None):
            meta_kwargs = {**kwargs, "device": _META}
            meta_kwargs.pop("pin_memory", None)
        result: Any
        values: Any = None
        by_masks = is_mask_index(plan.name, arguments)
        if plan.name in VALUE_DEPENDENT or by_masks:
            self.values.note_asked(inputs)
            values = self.values.compute(func, plan, args, kwargs, inputs)
            result = self.values.pick_by_masks(func, plan.name, arguments) if values is None and by_masks else None
            if values is None and result is None:
                values, result = self.routing.assume(func, plan.name, arguments)
            if values is None and plan.name in _CHECKS and "checking" in self._switches:
                return not self.values.assume_check()  # it asks whether it must refuse
            if values is None and result is None:
                raise DataDependentError(plan.source_op, tuple(self.table.slot(tensor).index for tensor in inputs))
            if values is not None and not isinstance(values, (torch.Tensor, tuple, list)):
                return values
            if values is not None:
                result = map_tensors(without_values, values)
        else:
            # The rules make a new tensor; what is given to write to is the result itself.
            is_given = arguments.get("out") is not None
            rule = None if is_given else SHAPE_RULES.get(plan.name)
            result = None if rule is None else rule(arguments)
            if result is None and not is_given:
                result = elementwise_result(plan.name, arguments, is_in_place=plan.is_in_place)
            if result is None:
                result = run_on_meta(func, args, meta_kwargs)
        outputs = list(tensors_in((result,)))
        if values is None:
            fill = fill_of(plan, arguments)
            values = self.values.keep(func, plan, args, kwargs, inputs, outputs, fill=fill)
        if plan.name in DRAWN_MEANS and outputs[0].numel() == 1:
            values = self.values.assume_draw(plan, arguments, outputs[0])
        if plan.name == "_is_all_true" and values is None:
            values = self.values.assume_check()
        if values is None and func._schema.is_mutable:
            self.values.forget_written(func, args)
        self._record(plan, arguments, inputs, outputs, values=None if values is None else list(tensors_in((values,))))
        return result

    def _cut_off(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let no gradient go back from tensors that were made where none was wanted, now that they are used."""
        flow = self.flow
        if flow is None or not flow.is_on:
            return
        for tensor in tensors:
            if flow.is_cut(self.table.slot(tensor).index):
                self._become_view(tensor, _DETACH)

    def _see_views(self, written: Iterable[torch.Tensor]) -> None:
        """Let tensors be the views that PyTorch makes them, now that they are written to: autograd copies for that."""
        flow = self.flow
        if flow is None or not flow.is_on:
            return
        for tensor in written:
            source = self.table.slot(tensor).index
            if source in self._unseen_views:
                flow.note([source], [(self._become_view(tensor, "view"), None)])

    def _become_view(self, tensor: torch.Tensor, function: str) -> int:
        """Let a tensor be a view of what it has been so far; its new index."""
        slot = self.table.slot(tensor)
        index = self.table.register(
            tensor,
            name=f"{function}_{len(self._steps)}",
            role=TensorRole.ACTIVATION,
            value=slot.value,
            storage=slot.storage,
        )
        self._add_step(OpKind.VIEW, (slot.index,), (index,), {"function": function}, f"aten.{function}")
        return index

    def _record(
        self,
        plan: OpPlan,
        arguments: Mapping[str, Any],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        *,
        values: list[torch.Tensor] | None,
    ) -> None:
        if not outputs:
            return
        self._cut_off(inputs)
        self._see_views(tensor for tensor in inputs if any(output is tensor for output in outputs))
        rule = plan.rule
        read = [self.table.slot(tensor).index for tensor in inputs] if self.flow is not None else []
        known = [self.table.storage_of(tensor) for tensor in outputs]
        is_written = [any(output is tensor for tensor in inputs) for output in outputs]
        is_view = all(storage is not None for storage in known) and (plan.is_in_place_view or not any(is_written))
        operands: Iterable[Any] = inputs
        if not is_view and rule is not None and rule.inputs is not None:
            operands = (arguments.get(name) for name in rule.inputs)
        elif not is_view and arguments.get("out") is not None:
            # What is written alone stands last, as keyword arguments do.
            operands = inputs[:-1]
        indices = [self.table.slot(item).index if isinstance(item, torch.Tensor) else -1 for item in operands]
        while indices and indices[-1] == -1:
            indices.pop()
        attributes: dict[str, Attribute] = {}
        if is_view:
            kind = OpKind.VIEW
            attributes["function"] = plan.name
        elif rule is None:
            kind = OpKind.UNKNOWN
            self.unsupported[plan.source_op] = self.unsupported.get(plan.source_op, 0) + 1
        else:
            kind = kind_of(rule.kind, plan.name, arguments, is_weight=self._is_weight)
            if rule.function:
                attributes["mode" if kind is OpKind.RESIZE else "function"] = rule.function
            if rule.attributes:
                attributes.update(ATTRIBUTE_BUILDERS[rule.attributes](arguments, outputs))
            if FLOPS_PER_ELEMENT in attributes:
                self.assumptions.append(warn_of_decomposition(plan.source_op))
            if "raised" in self._switches and kind is OpKind.MATMUL:
                attributes[RAISED] = True
            is_lowered = "lowered" in self._switches and "raised" not in self._switches and kind in _LOWERED_KINDS
            if is_lowered:
                attributes[LOWERED] = True
            if kind is OpKind.LOG_SOFTMAX:
                attributes.update({_MARK_OF_LOGARITHMS[each]: True for each in self._switches & {*_MARK_OF_LOGARITHMS}})
            if is_lowered or kind in CAST_KINDS:
                attributes.update(self.autocast.marks)
        new: list[int] = []
        overwritten = [
            self.table.slot(output).index if written else None
            for output, written in zip(outputs, is_written, strict=True)
        ]
        for position, output in enumerate(outputs):
            value = values[position] if values is not None and position < len(values) else None
            if value is not None and not may_keep_values(value):
                value = None
            if is_written[position] and value is None:
                value = self.table.slot(output).value
            new.append(
                self.table.register(
                    output,
                    name=f"{plan.name}_{len(self._steps)}" + (f".{position}" if position else ""),
                    role=TensorRole.ACTIVATION,
                    value=value,
                    storage=self.table.slot(output).storage if is_written[position] else None,
                )
            )
        self._add_step(kind, tuple(indices), tuple(new), attributes, plan.source_op)
        if is_view_of_parts(plan.name, arguments):
            self._unseen_views.update(new)
        if values is not None:
            self.values.pass_on(inputs, new)
        if self.flow is not None and plan.name != _DETACH:
            made = zip(new, overwritten, outputs, strict=True)
            self.flow.note(read, [(index, old) for index, old, tensor in made if is_differentiable(tensor)])

    def _add_step(
        self,
        kind: OpKind,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        attributes: dict[str, Attribute],
        source_op: str,
    ) -> None:
        self._steps.append(RecordedStep(kind, inputs, outputs, attributes, self._scope(), source_op))

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is, or is a view of, a weight."""
        return self.table.specs[self.table.slot(tensor).storage.base].role is TensorRole.PARAMETER
