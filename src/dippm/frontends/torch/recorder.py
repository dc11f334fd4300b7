"""Records every operator that a module runs, on tensors that have a shape and no data.

All tensors live on PyTorch's ``meta`` device: its kernels compute shapes, strides and types, and no memory. Two things
make modules believe that they run on an ordinary device: :class:`PretendedDevice` answers questions about the device,
and small tensors whose values follow from the program alone (``torch.arange(4)``, masks, index tables) carry those
values along, so that ``.item()`` and ``if`` on them work. What depends on the values of the model's inputs cannot be
known and raises :class:`DataDependentError`.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dippm.errors import ModelReadError
from dippm.frontends.torch.attributes import ATTRIBUTE_BUILDERS
from dippm.frontends.torch.dtypes import from_torch_dtype
from dippm.frontends.torch.expansions import EXPANSIONS
from dippm.frontends.torch.operators import KEPT_WHOLE, OPERATORS, OpRule
from dippm.frontends.torch.shapes import SHAPE_RULES, elementwise_result
from dippm.graph import Attribute, Node, OpKind, TensorRole, TensorSpec, fixed_shape

__all__ = ["DataDependentError", "FloatIndicesError", "PretendedDevice", "Recorder"]

_META = torch.device("meta")
_CPU = torch.device("cpu")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_SLOT = "_dippm_slot"
_VALUE_LIMIT = 2**22  # bytes up to which a tensor made by the program keeps its values
_CONSTANT_LIMIT = 4096  # elements up to which a tensor that the module holds unregistered counts as a constant
_WEIGHT_ROLES = (TensorRole.PARAMETER, TensorRole.BUFFER)
_DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
_SAME_TENSOR = frozenset({"detach", "lift", "lift_fresh", "alias", "resolve_conj", "resolve_neg"})
_REFUSED = frozenset({"from_file", "save", "read_file", "write_file"})
_VALUE_DEPENDENT = frozenset(
    {
        "_local_scalar_dense", "equal", "nonzero", "nonzero_numpy", "masked_select", "_unique2", "unique_dim",
        "unique_consecutive", "repeat_interleave", "bincount", "is_nonzero", "nms",
    }
)  # fmt: skip


class DataDependentError(Exception):
    """The program asks for a value that only the model's real input would give."""


class FloatIndicesError(Exception):
    """An embedding was asked for rows by numbers that are no integers.

    Args:
        tensor: Index of the tensor that owns the storage of the indices.
    """

    def __init__(self, tensor: int) -> None:
        super().__init__("an embedding takes integer indices and got floating-point numbers")
        self.tensor = tensor


@dataclass(slots=True, eq=False)
class _Storage:
    """A piece of memory: which tensor owns it, and whether the values in it are known."""

    base: int
    has_values: bool
    watcher: weakref.ref[torch.UntypedStorage] | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    """What the recorder knows of one tensor object."""

    recorder: Recorder
    index: int
    storage: _Storage
    value: torch.Tensor | None = None


@dataclass(slots=True)
class _Step:
    """A node while it can still gain releases."""

    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Attribute]
    scope: str
    source_op: str
    releases: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """What to do with one operator; worked out once per operator."""

    name: str
    source_op: str
    rule: OpRule | None
    argument_names: tuple[str, ...]
    defaults: Mapping[str, Any]
    is_ignored: bool
    is_composite: bool
    is_random: bool
    is_in_place: bool
    is_aliasing: bool
    has_device: bool


_PLANS: dict[torch._ops.OpOverload, _Plan] = {}


def _plan_for(func: torch._ops.OpOverload) -> _Plan:
    packet = func._schema.name.rpartition("::")[2]
    name = packet if packet.startswith("__") else packet.removesuffix("_")
    arguments = func._schema.arguments
    is_composite = (
        name not in KEPT_WHOLE
        and name not in _DROPOUTS
        and torch._C._dispatch_has_kernel_for_dispatch_key(func._name, "CompositeImplicitAutograd")
    )
    returns_tensor = any("Tensor" in str(item.type) for item in func._schema.returns)
    takes_tensor = any("Tensor" in str(item.type) for item in arguments)
    return _Plan(
        name=name,
        source_op=f"{func.namespace}.{packet}",
        rule=OPERATORS.get(name) or OPERATORS.get(packet),
        argument_names=tuple(argument.name for argument in arguments),
        defaults={item.name: item.default_value for item in arguments if item.has_default_value()},
        is_ignored=func.namespace in {"prim", "profiler"}
        or (not returns_tensor and name not in _VALUE_DEPENDENT and not is_composite and not func._schema.is_mutable)
        or (not returns_tensor and not takes_tensor),
        is_composite=is_composite,
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        is_in_place=bool(arguments)
        and arguments[0].name == "self"
        and arguments[0].alias_info is not None
        and arguments[0].alias_info.is_write,
        is_aliasing=any(item.alias_info is not None for item in (*arguments, *func._schema.returns))
        or name in {"_unsafe_view", "_reshape_alias"},
        has_device=any(argument.name == "device" for argument in arguments),
    )


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects nodes and tensors while it is entered.

    Args:
        scope: Called at each operator for the path of the module that runs.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would otherwise import its compiler, which takes longer than reading most models.
        return False

    def __init__(self, *, scope: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unsupported: dict[str, int] = {}
        self.assumptions: list[str] = []
        self._scope = scope
        self._tensors: list[TensorSpec] = []
        self._steps: list[_Step] = []
        self._storages: dict[int, _Storage] = {}
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._twins_by_storage: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._is_recording = True

    # Results

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors seen so far."""
        return tuple(self._tensors)

    @property
    def node_count(self) -> int:
        """Number of nodes recorded so far."""
        return len(self._steps)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes recorded so far, each with the storages given back right after it."""
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
            for step in self._steps
        )

    def index_of(self, tensor: torch.Tensor) -> int:
        """Index of a tensor object in the graph; one never seen becomes a constant."""
        return self._slot(self.adopt(tensor)).index

    def stop(self) -> None:
        """End the recording: let go of the module's weights, and count nothing as released from now on."""
        self._is_recording = False
        self._twins.clear()
        self._twins_by_storage.clear()

    # Tensors

    def add_weight(self, tensor: torch.Tensor, *, name: str, role: TensorRole) -> None:
        """Register a parameter or buffer of the module before the module runs."""
        if id(tensor) not in self._twins:
            self._make_twin(tensor, name=name, role=role)

    def add_input(self, *, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Make a model input.

        Returns:
            The tensor to call the module with.
        """
        tensor = torch.empty(tuple(shape), dtype=dtype, device=_META)
        self._register(tensor, name=name, role=TensorRole.INPUT, value=None)
        return tensor

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The recorded stand-in of any tensor: itself where the recorder made it."""
        slot = getattr(tensor, _SLOT, None)
        if slot is not None and slot.recorder is self:
            return tensor
        known = self._twins.get(id(tensor))
        if known is not None:
            return known[1]
        shared = self._twins_by_storage.get(tensor.untyped_storage()._cdata)
        if shared is not None:
            original, twin = shared[0]
            if original.dtype == tensor.dtype:
                view = twin.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
                self._attach(view, _Slot(self, self._slot(twin).index, self._slot(twin).storage))
                self._twins[id(tensor)] = (tensor, view)
                return view
        # A tensor that the module keeps without registering it is as lasting as a buffer; a small one is a constant.
        role = TensorRole.BUFFER if tensor.numel() > _CONSTANT_LIMIT else TensorRole.CONSTANT
        return self._make_twin(tensor, name=f"constant_{len(self._tensors)}", role=role)

    def _make_twin(self, tensor: torch.Tensor, *, name: str, role: TensorRole) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        first = tensor.storage_offset()
        span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        twin = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
        value = None
        if role is not TensorRole.PARAMETER and tensor.device.type == "cpu" and _is_small(tensor):
            value = tensor.detach().clone()
        base = None
        for other, other_twin in self._twins_by_storage.get(storage, ()):
            # Weights that share one storage without overlapping (cuDNN's flat recurrent weights) are separate weights.
            start = other.storage_offset()
            if first < start + other.numel() and start < first + span and tensor.numel():
                base = self._slot(other_twin).storage
        self._register(twin, name=name, role=role, value=value, storage=base)
        self._twins[id(tensor)] = (tensor, twin)
        self._twins_by_storage.setdefault(storage, []).append((tensor, twin))
        return twin

    def _register(
        self,
        tensor: torch.Tensor,
        *,
        name: str,
        role: TensorRole,
        value: torch.Tensor | None,
        storage: _Storage | None = None,
    ) -> int:
        """Give a tensor object an index; its storage is new unless one is given or already known."""
        index = len(self._tensors)
        memory = tensor.untyped_storage()
        if storage is None:
            storage = self._storages.get(memory._cdata)
        stated = None
        if storage is None:
            storage = _Storage(base=index, has_values=value is not None)
            if role is TensorRole.ACTIVATION:
                self._watch(memory, storage)
            self._storages[memory._cdata] = storage
            size = memory.nbytes()
            if size != tensor.numel() * tensor.element_size():
                stated = size
        self._tensors.append(
            TensorSpec(
                name=name,
                shape=fixed_shape(*tensor.shape),
                dtype=from_torch_dtype(tensor.dtype),
                role=role,
                alias_of=None if storage.base == index else storage.base,
                storage_bytes_per_sample=None if stated is None else 0,
                storage_bytes_fixed=stated,
            )
        )
        self._attach(tensor, _Slot(self, index, storage, value))
        return index

    def _watch(self, memory: torch.UntypedStorage, storage: _Storage) -> None:
        key = memory._cdata
        owner = weakref.ref(self)

        def forget(_: object) -> None:
            recorder = owner()
            if recorder is None:
                return
            recorder._storages.pop(key, None)
            if recorder._is_recording and recorder._steps:
                recorder._steps[-1].releases.append(storage.base)

        storage.watcher = weakref.ref(memory, forget)

    @staticmethod
    def _attach(tensor: torch.Tensor, slot: _Slot) -> None:
        setattr(tensor, _SLOT, slot)

    @staticmethod
    def _slot(tensor: torch.Tensor) -> _Slot:
        slot: _Slot = getattr(tensor, _SLOT)
        return slot

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        slot = self._slot(tensor)
        return slot.value if slot.storage.has_values else None

    def contains(self, tensor: torch.Tensor, element: Any) -> bool:
        """Whether a value is among a tensor's, assumed not where only the model's real input would tell.

        Language models look for padding among their tokens to warn about it. The assumption is reported.
        """
        with self:
            found = (tensor == element).any()
        value = self._value(self.adopt(found))
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
        kwargs = kwargs or {}
        plan = _PLANS.get(func)
        if plan is None:
            plan = _PLANS[func] = _plan_for(func)
        if plan.is_ignored:
            return func(*args, **kwargs)
        args = tuple(self._adopt_argument(value) for value in args)
        kwargs = {name: self._adopt_argument(value) for name, value in kwargs.items()}
        name = plan.name
        if name in _REFUSED:
            raise ModelReadError(
                f"The model runs {plan.source_op}, which opens files.",
                code="torch.file_operator",
                cure="Remove that from the model.",
            )
        if name in EXPANSIONS:
            with self:
                return EXPANSIONS[name](*args, **kwargs)
        if name in _SAME_TENSOR:
            return self._same_tensor(func, args, kwargs)
        if name in _DROPOUTS and not args[2]:
            return args[0]
        if plan.is_composite:
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        arguments = {**plan.defaults, **dict(zip(plan.argument_names, args, strict=False)), **kwargs}
        if name == "_to_copy" and self._changes_only_device(arguments):
            return arguments["self"]
        if name in {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}:
            indices = arguments["indices"]
            if indices.dtype.is_floating_point:
                raise FloatIndicesError(self._slot(indices).storage.base)
        return self._run(func, plan, args, kwargs, arguments)

    def _adopt_argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.adopt(value)
        if isinstance(value, (list, tuple)) and any(isinstance(item, (torch.Tensor, list, tuple)) for item in value):
            return [self._adopt_argument(item) for item in value]
        return value

    def _same_tensor(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        result = func(*args, **kwargs)
        if result is not source:
            slot = self._slot(source)
            self._attach(result, _Slot(self, slot.index, slot.storage, slot.value))
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
        self, func: Any, plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Mapping[str, Any]
    ) -> Any:
        inputs = list(_tensors_in(args))
        inputs.extend(_tensors_in(tuple(kwargs.values())))
        meta_kwargs = kwargs
        if plan.has_device and (not inputs or kwargs.get("device") is not None):
            meta_kwargs = {**kwargs, "device": _META}
            meta_kwargs.pop("pin_memory", None)
        values = self._compute_values(func, plan, args, kwargs, inputs)
        result: Any
        if plan.name in _VALUE_DEPENDENT or _is_mask_index(plan, arguments):
            if values is None:
                raise DataDependentError(plan.source_op)
            if not isinstance(values, (torch.Tensor, tuple, list)):
                return values
            result = _map_tensors(_without_values, values)
        elif values is not None and not plan.is_aliasing:
            result = _map_tensors(_without_values, values)
        elif plan.name in SHAPE_RULES:
            result = SHAPE_RULES[plan.name](arguments)
        else:
            result = elementwise_result(plan.name, arguments, is_in_place=plan.is_in_place)
        if result is None:
            result = _run_on_meta(func, args, meta_kwargs)
        outputs = list(_tensors_in((result,)))
        if values is None and func._schema.is_mutable:
            for position, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write and position < len(args):
                    for tensor in _tensors_in((args[position],)):
                        self._slot(tensor).storage.has_values = False
        if not inputs and values is None and _may_keep_values(plan, outputs):
            values = func(*args, **{**kwargs, **({"device": _CPU} if plan.has_device else {})})
        self._record(plan, arguments, inputs, outputs, values=None if values is None else list(_tensors_in((values,))))
        return result

    def _compute_values(
        self, func: Any, plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]
    ) -> Any:
        """Run the operator for real where the values of all its inputs are known and few."""
        if not inputs or plan.is_random:
            return None
        for tensor in inputs:
            if self._value(tensor) is None:
                return None
        if plan.has_device and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _CPU}

        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self._value(value)
            if isinstance(value, list):
                return [real(item) for item in value]
            return value

        return func(*(real(value) for value in args), **{name: real(value) for name, value in kwargs.items()})

    def _record(
        self,
        plan: _Plan,
        arguments: Mapping[str, Any],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        *,
        values: list[torch.Tensor] | None,
    ) -> None:
        if not outputs:
            return
        rule = plan.rule
        known = [self._storages.get(tensor.untyped_storage()._cdata) for tensor in outputs]
        is_written = [any(output is tensor for tensor in inputs) for output in outputs]
        is_view = all(storage is not None for storage in known) and not any(is_written)
        operands: Iterable[Any] = inputs
        if not is_view and rule is not None and rule.inputs is not None:
            operands = (arguments.get(name) for name in rule.inputs)
        indices = [self._slot(item).index if isinstance(item, torch.Tensor) else -1 for item in operands]
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
        new: list[int] = []
        for position, output in enumerate(outputs):
            value = values[position] if values is not None and position < len(values) else None
            if value is not None and not _is_small(value):
                value = None
            if is_written[position] and value is None:
                value = self._slot(output).value
            new.append(
                self._register(
                    output,
                    name=f"{plan.name}_{len(self._steps)}" + (f".{position}" if position else ""),
                    role=TensorRole.ACTIVATION,
                    value=value,
                    storage=self._slot(output).storage if is_written[position] else None,
                )
            )
        self._steps.append(
            _Step(
                kind=kind,
                inputs=tuple(indices),
                outputs=tuple(new),
                attributes=attributes,
                scope=self._scope(),
                source_op=plan.source_op,
            )
        )

    def _kind(self, rule: OpRule, plan: _Plan, arguments: Mapping[str, Any]) -> OpKind:
        if rule.kind is OpKind.CONV and arguments.get("transposed"):
            return OpKind.CONV_TRANSPOSE
        if rule.kind is OpKind.MATMUL and plan.name in {"addmm", "mm"}:
            # A product with a matrix that is, or is a view of, a weight is a linear layer however it is written.
            base = self._slot(arguments["mat2"]).storage.base
            if self._tensors[base].role is TensorRole.PARAMETER:
                return OpKind.LINEAR
        return rule.kind


class PretendedDevice(TorchFunctionMode):
    """Answers questions about a tensor's device and values as an ordinary device would.

    Args:
        recorder: The recorder that knows the values.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = _DEVICE_ANSWERS.get(func)
        if answer is not None:
            return answer
        recorder = self._recorder
        if func is torch.Tensor.__contains__ and isinstance(args[0], torch.Tensor):
            return recorder.contains(args[0], args[1])
        if func in _TO_PYTHON:
            value = recorder._value(recorder.adopt(args[0]))
            if value is None:
                raise DataDependentError(f"Tensor.{func.__name__}")
            with _disable_current_modes():
                return func(value, *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _getter(name: str) -> Any:
    """What PyTorch names as the function that runs where a property of a tensor is read."""
    return inspect.getattr_static(torch.Tensor, name).__get__


_DEVICE_ANSWERS: dict[Any, Any] = {
    _getter("device"): _CPU,
    _getter("is_meta"): False,
    _getter("is_cpu"): True,
    _getter("is_cuda"): False,
}
_TO_PYTHON = frozenset({torch.Tensor.tolist, torch.Tensor.numpy})


def _tensors_in(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)


def _map_tensors(convert: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(convert, item) for item in value)
    return value


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() <= _VALUE_LIMIT


def _is_mask_index(plan: _Plan, arguments: Mapping[str, Any]) -> bool:
    if plan.name not in {"index", "_unsafe_index"}:
        return False
    return any(item is not None and item.dtype in {torch.bool, torch.uint8} for item in arguments["indices"])


def _may_keep_values(plan: _Plan, outputs: list[torch.Tensor]) -> bool:
    return (
        not plan.is_random
        and bool(outputs)
        and plan.rule is not None
        and plan.name not in {"empty", "empty_strided", "empty_permuted"}
        and all(_is_small(output) for output in outputs)
    )


def _run_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return func(*args, **kwargs)
    except NotImplementedError:
        from torch._decomp import decomposition_table

        decomposition = decomposition_table.get(func)
        if decomposition is None:
            raise
        return decomposition(*args, **kwargs)
