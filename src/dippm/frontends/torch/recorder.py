"""Records every operator that a module runs, on tensors that have a shape and no data.

All tensors live on PyTorch's ``meta`` device: its kernels compute shapes, strides and types, and no memory. Two things
make modules believe that they run on an ordinary device: ``PretendedDevice`` answers questions about the device, and
small tensors whose values follow from the program alone (``torch.arange(4)``, masks, index tables) carry those
values along, so that ``.item()`` and ``if`` on them work. What depends on the values of the model's inputs cannot be
known and raises :class:`~dippm.frontends.torch.asked_values.DataDependentError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from dippm.costs.autocast import CAST_KINDS, LOWERED, RAISED
from dippm.costs.decompositions import FLOPS_PER_ELEMENT, warn_of_decomposition
from dippm.costs.training_step.checkpointing import AUTOGRAD_FUNCTION
from dippm.errors import UnsupportedError
from dippm.frontends.torch.asked_values import (
    COMPARISONS,
    DRAWN_MEANS,
    FINITENESS,
    SEARCHES,
    DataDependentError,
    FloatIndicesError,
)
from dippm.frontends.torch.attributes import ATTRIBUTE_BUILDERS
from dippm.frontends.torch.autocast_regions import AutocastRegions
from dippm.frontends.torch.expansions import (
    DERIVED_WHOLE,
    EXPANSIONS,
    is_attention_fused,
    is_linear_whole,
    linear_of_copy,
)
from dippm.frontends.torch.gradient_flow import GradientFlow
from dippm.frontends.torch.higher_order import run_eagerly
from dippm.frontends.torch.known_values import MASK_TYPES, KnownValues
from dippm.frontends.torch.meta_tensors import is_differentiable, map_tensors, run_on_meta, tensors_in, without_values
from dippm.frontends.torch.one_number import fill_of
from dippm.frontends.torch.operators import OpRule
from dippm.frontends.torch.packed_sequences import FULL_LENGTH, PACKED
from dippm.frontends.torch.plans import DROPOUTS, SAME_TENSOR, VALUE_DEPENDENT, OpPlan, no_quantised, plan_for, refusal
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
_MATRIX_RANK = 2
_DIFFER = torch.ops.aten.ne.Tensor
_OF_TWO_MATRICES = frozenset({"addmm", "mm", "_scaled_mm", "_scaled_mm_v2", "_int_mm"})
# What asks for a value to refuse others.
_CHECKS = frozenset({"equal", "_local_scalar_dense"})
# What asks for one value.
_ASKS_ONE = frozenset({"_local_scalar_dense", "is_nonzero"})
_MASK_INDEXES = frozenset({"index", "_unsafe_index"})
# Compositions that compare values only to refuse windows that no signal comes back from.
_CHECKING = frozenset({"istft"})
# Operators on autocast's list of FP32 that are recorded as what they run.
_RAISED = frozenset({"_euclidean_dist"})
# Compositions whose operands autocast casts before anything of them runs, and what they run beside products.
_LOWERED = frozenset({"matmul", "einsum"})
_LOWERED_KINDS = frozenset({OpKind.COPY, OpKind.MUL})


@dataclass(slots=True)
class _Step:
    """A node while it can still gain releases."""

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Attribute]
    scope: str
    source_op: str
    releases: list[int] = field(default_factory=list)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects nodes and tensors while it is entered.

    Args:
        scope: Called at each operator for the path of the module that runs.
        has_registered_weights: Whether tensors that are met without having been added are no trained weights; a
            frozen TorchScript program has all of its weights as constants.
        is_differentiated: Whether a backward pass follows what is recorded.

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
        self, *, scope: Callable[[], str], has_registered_weights: bool = True, is_differentiated: bool = False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = GradientFlow() if is_differentiated else None
        self._is_raised = False
        self._is_lowered = False
        self._is_checking = False
        self.unsupported: dict[str, int] = {}
        self.assumptions: list[str] = []
        self.autocast = AutocastRegions(self.assumptions)
        self._scope = scope
        self._steps: list[_Step] = []
        self.own_gradients: list[OwnGradient] = []
        self._apart: set[int] = set()
        # What is recorded whole and is a view of what its last part makes.
        self._unseen_views: set[int] = set()
        self._count = 0
        self.raised: Exception | None = None
        self.table = TensorTable(release=self._release, has_registered_weights=has_registered_weights)
        self.values = KnownValues(self.table, self.assumptions)
        self.routing = Routing(self.table, self.assumptions)

    # Results

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors seen so far."""
        return tuple(self.table.specs)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes recorded so far, each with the storages given back right after it."""
        return _as_nodes(self._steps)

    @property
    def step_count(self) -> int:
        """Number of nodes recorded so far."""
        return len(self._steps)

    def mark_function(self, start: int, name: str) -> None:
        """Mark the nodes from one on as those of an autograd function of the model's own, which keeps its arguments."""
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
            return results, _as_nodes(self._steps)
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
            if func in FINITENESS:
                self.values.assume_finite(result, FINITENESS[func])
            elif func is _DIFFER:
                self.values.assume_apart(result, *map(self.table.adopt, args))
            elif func in COMPARISONS:
                self.values.note_compared(func, result, self.table.adopt(args[0]), args[1])
            elif func in SEARCHES:
                self.values.assume_compared(func, result, self.table.adopt(args[0]))
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
            raise UnsupportedError(
                f"The model has run {_OPERATOR_LIMIT} operators and has not ended.",
                code="torch.too_many_operators",
                cure="It loops without end, or far longer than a model does; give it without that loop.",
            )
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
            with self, self._raised(name in _RAISED):
                result = EXPANSIONS[name](*args, **kwargs)
                return args[0].copy_(result) if plan.is_in_place else result
        if func in PACKED:
            self.assumptions.append(FULL_LENGTH)
            with self:
                return PACKED[func](*args, **kwargs)
        if name in SAME_TENSOR and not (name == _DETACH and self.requires_grad(args[0])):
            return self._same_tensor(func, args, kwargs)
        if name in DROPOUTS:
            return self._drop_out(func, plan, *args)
        if name == "linear" and not is_linear_whole(args[0]):
            with self, self._lowered(True):
                return linear_of_copy(*args, **kwargs)
        if plan.is_composite:
            with self, self._lowered(name in _LOWERED), self.checking(name in _CHECKING):
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        arguments = {**plan.defaults, **dict(zip(plan.argument_names, args, strict=False)), **kwargs}
        if name == "scaled_dot_product_attention" and not _is_fused(arguments):
            return self._attend(func, args, kwargs)
        if name == "_to_copy" and self._changes_only_device(arguments):
            return arguments["self"]
        if name in {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}:
            indices = arguments["indices"]
            if indices.dtype.is_floating_point:
                raise FloatIndicesError(self.table.slot(indices).storage.base)
        return self._run(func, plan, args, kwargs, arguments)

    def _attend(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Attention written out, whose products PyTorch computes in FP32 where their operands have 16 bits."""
        with self, self._raised(True):
            return func._op_dk(_COMPOSITE, *args, **kwargs)

    @contextmanager
    def _raised(self, is_raised: bool) -> Iterator[None]:
        """Whether autocast leaves matrix products in FP32 meanwhile."""
        before, self._is_raised = self._is_raised, self._is_raised or is_raised
        try:
            yield
        finally:
            self._is_raised = before

    @contextmanager
    def checking(self, is_checking: bool = True) -> Iterator[None]:
        """Whether what asks for a value meanwhile only refuses others."""
        before, self._is_checking = self._is_checking, self._is_checking or is_checking
        try:
            yield
        finally:
            self._is_checking = before

    @contextmanager
    def _lowered(self, is_lowered: bool) -> Iterator[None]:
        """Whether autocast has cast the operands already of what runs meanwhile beside products."""
        before, self._is_lowered = self._is_lowered, self._is_lowered or is_lowered
        try:
            yield
        finally:
            self._is_lowered = before

    def _drop_out(self, func: Any, plan: OpPlan, x: torch.Tensor, share: float, is_active: bool) -> torch.Tensor:
        """Dropout as it runs on a GPU: one kernel that also writes the mask, unless it works in place."""
        if not is_active or share == 0 or not x.numel():
            return x
        with self:
            if plan.name == "dropout" and not plan.is_in_place and share < 1:
                result: torch.Tensor = torch.ops.aten.native_dropout.default(x, share, True)[0]
            else:
                result = func._op_dk(_COMPOSITE, x, share, is_active)
        return result

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

    @staticmethod
    def _changes_only_device(arguments: Mapping[str, Any]) -> bool:
        source = arguments["self"]
        return (
            arguments["device"] is not None
            and arguments["dtype"] in {None, source.dtype}
            and arguments["memory_format"] is None
        )

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
        is_mask_index = _is_mask_index(plan, arguments)
        if plan.name in VALUE_DEPENDENT or is_mask_index:
            self.values.note_asked(inputs)
            values = self.values.compute(func, plan, args, kwargs, inputs)
            result = self.values.pick_by_masks(func, arguments) if values is None and is_mask_index else None
            if values is None and result is None:
                values, result = self._assume_routed(func, plan, arguments)
            if values is None and plan.name in _CHECKS and self._is_checking:
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

    def _assume_routed(self, func: Any, plan: OpPlan, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """The values, or the result alone, of what asks for choices of the model's own; None and None for all else."""
        name = plan.name
        if name in _ASKS_ONE:
            return self.routing.answer(arguments["self"]), None
        if name == "nonzero":
            return None, self.routing.places(arguments["self"])
        if name == "bincount" and arguments["weights"] is None:
            return self.routing.counts(arguments["self"], arguments["minlength"]), None
        if name in _MASK_INDEXES:
            places = [
                [item] if item is None or item.dtype not in MASK_TYPES else self._places_of(item)
                for item in arguments["indices"]
            ]
            if all(found is not None for found in places):
                return None, func(arguments["self"], [item for found in places for item in found or ()])
        return None, None

    def _places_of(self, mask: torch.Tensor) -> list[torch.Tensor] | None:
        places = self.routing.places(mask)
        return None if places is None else list(places.unbind(1))

    def _cut_off(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let no gradient go back from tensors that were made where none was wanted, now that they are used."""
        flow = self.flow
        if flow is None or not flow.is_on:
            return
        for tensor in tensors:
            slot = self.table.slot(tensor)
            if flow.is_cut(slot.index):
                index = self.table.register(
                    tensor,
                    name=f"detach_{len(self._steps)}",
                    role=TensorRole.ACTIVATION,
                    value=slot.value,
                    storage=slot.storage,
                )
                self._add_step(OpKind.VIEW, (slot.index,), (index,), {"function": _DETACH}, f"aten.{_DETACH}")

    def _see_views(self, written: Iterable[torch.Tensor]) -> None:
        """Let tensors be the views that PyTorch makes them, now that they are written to: autograd copies for that."""
        flow = self.flow
        if flow is None or not flow.is_on:
            return
        for tensor in written:
            slot = self.table.slot(tensor)
            if slot.index in self._unseen_views:
                index = self.table.register(
                    tensor,
                    name=f"view_{len(self._steps)}",
                    role=TensorRole.ACTIVATION,
                    value=slot.value,
                    storage=slot.storage,
                )
                self._add_step(OpKind.VIEW, (slot.index,), (index,), {"function": "view"}, "aten.view")
                flow.note([slot.index], [(index, None)])

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
            kind = self._kind(rule, plan, arguments)
            if rule.function:
                attributes["mode" if kind is OpKind.RESIZE else "function"] = rule.function
            if rule.attributes:
                attributes.update(ATTRIBUTE_BUILDERS[rule.attributes](arguments, outputs))
            if FLOPS_PER_ELEMENT in attributes:
                self.assumptions.append(warn_of_decomposition(plan.source_op))
            if self._is_raised and kind is OpKind.MATMUL:
                attributes[RAISED] = True
            is_lowered = self._is_lowered and not self._is_raised and kind in _LOWERED_KINDS
            if is_lowered:
                attributes[LOWERED] = True
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
        if _is_view_of_parts(plan, arguments):
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
        self._steps.append(_Step(kind, inputs, outputs, attributes, self._scope(), source_op))

    def _kind(self, rule: OpRule, plan: OpPlan, arguments: Mapping[str, Any]) -> OpKind:
        if rule.kind is OpKind.CONV and arguments.get("transposed"):
            return OpKind.CONV_TRANSPOSE
        if rule.kind is OpKind.MATMUL and plan.name in _OF_TWO_MATRICES:
            # A product with a matrix that is, or is a view of, a weight is a linear layer however it is written.
            base = self.table.slot(arguments["mat2"]).storage.base
            if self.table.specs[base].role is TensorRole.PARAMETER:
                return OpKind.LINEAR
        return rule.kind


def _as_nodes(steps: Iterable[_Step]) -> tuple[Node, ...]:
    return tuple(
        Node(
            kind=step.kind,
            inputs=step.inputs,
            outputs=step.outputs,
            attributes=step.attributes,
            scope=step.scope,
            source_op=step.source_op,
            releases=tuple(step.releases),
        )
        for step in steps
    )


def _is_fused(arguments: Mapping[str, Any]) -> bool:
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    return is_attention_fused(query, key, value, enable_gqa=arguments["enable_gqa"])


def _is_view_of_parts(plan: OpPlan, arguments: Mapping[str, Any]) -> bool:
    """Whether a composition that is recorded whole ends in a view: of rows and of channels as one dimension."""
    if plan.name == "linear":
        return arguments["bias"] is not None and arguments["input"].dim() > _MATRIX_RANK
    return plan.name == "instance_norm"


def _is_mask_index(plan: OpPlan, arguments: Mapping[str, Any]) -> bool:
    if plan.name not in _MASK_INDEXES:
        return False
    return any(item is not None and item.dtype in MASK_TYPES for item in arguments["indices"])
