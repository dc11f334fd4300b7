"""The tensors of a recording: their indices, the memory that they share, and when it is given back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dippm.frontends.torch.dtypes import from_torch_dtype
from dippm.frontends.torch.wrapped_tensors import inner_tensors, is_wrapper
from dippm.graph import TensorRole, TensorSpec, fixed_shape

__all__ = ["Slot", "Storage", "TensorTable", "is_countable", "is_small", "may_keep_values"]

_META = torch.device("meta")
_ATTRIBUTE = "_dippm_slot"
_VALUE_LIMIT = 2**22  # bytes up to which a tensor made by the program keeps its values
_REPEATED_LIMIT = 2**28  # elements up to which it does so where it repeats those of a smaller one
_CONSTANT_LIMIT = 4096  # elements up to which a tensor that the module holds unregistered counts as a constant


def is_small(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor take little memory, wherever they lie."""
    return tensor.numel() * tensor.element_size() <= _VALUE_LIMIT


def is_countable(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor that repeats those of a smaller one are few enough to go through."""
    return tensor.numel() <= _REPEATED_LIMIT


def may_keep_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor that the program makes may keep its values: a mask that is expanded takes no memory."""
    repeats = tensor.untyped_storage().nbytes() <= _VALUE_LIMIT and is_countable(tensor)
    return repeats or is_small(tensor)


def _stored_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a tensor lies in memory as: itself, or the indices and values of a sparse one, or what it wraps."""
    if is_wrapper(type(tensor)):
        return inner_tensors(tensor)
    if tensor.layout is torch.strided:
        return {"": tensor}
    if tensor.layout is torch.sparse_coo:
        return {".indices": tensor._indices(), ".values": tensor._values()}
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return {".rows": tensor.crow_indices(), ".columns": tensor.col_indices(), ".values": tensor.values()}
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return {".columns": tensor.ccol_indices(), ".rows": tensor.row_indices(), ".values": tensor.values()}
    return {}


@dataclass(slots=True, eq=False)
class Storage:
    """A piece of memory.

    Args:
        base: Index of the tensor that owns it.
        has_values: Whether the values in it are known.
        is_one_number: Whether these are one number everywhere, which is kept once.
        watcher: Reports when it is given back.
    """

    base: int
    has_values: bool
    is_one_number: bool = False
    watcher: weakref.ref[torch.UntypedStorage] | None = None


@dataclass(slots=True, eq=False)
class Slot:
    """What is known of one tensor object.

    Args:
        table: The table that it is in.
        index: Its index in the graph.
        storage: The memory that it lies in.
        value: Its values where they follow from the program alone; valid while ``storage.has_values``.
    """

    table: TensorTable
    index: int
    storage: Storage
    value: torch.Tensor | None = None


class TensorTable:
    """Gives every tensor object of a recording an index.

    Tensors with data (weights, constants) get a stand-in on the meta device, the first time they are met.

    Args:
        release: Called with the index of a storage's owner when the storage is given back.
        has_registered_weights: Whether tensors that are met without having been added are no trained weights; a
            frozen TorchScript program has all of its weights as constants.
    """

    def __init__(self, *, release: Callable[[int], None], has_registered_weights: bool = True) -> None:
        self.specs: list[TensorSpec] = []
        self._release = release
        self._has_registered_weights = has_registered_weights
        self._storages: dict[int, Storage] = {}
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._twins_by_storage: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._is_open = True

    def close(self) -> None:
        """Let go of the module's weights, and report nothing as given back from now on."""
        self._is_open = False
        self._twins.clear()
        self._twins_by_storage.clear()

    def storage_of(self, tensor: torch.Tensor) -> Storage | None:
        """The known storage that a tensor lies in, whether it is in the table or not."""
        return self._storages.get(tensor.untyped_storage()._cdata)

    def add_weights_of(self, module: torch.nn.Module) -> None:
        """Register all parameters and buffers of a module before it runs."""
        for name, parameter in module.named_parameters():
            role = TensorRole.PARAMETER
            for part, tensor in inner_tensors(parameter).items():
                self.add_weight(tensor, name=f"{name}{part}", role=role)
                role = TensorRole.BUFFER  # of what a weight is wrapped in, the rest is its scales
        for name, buffer in module.named_buffers():
            for part, tensor in _stored_parts(buffer).items():
                self.add_weight(tensor, name=f"{name}{part}", role=TensorRole.BUFFER)

    def indices_of(self, parameter: torch.Tensor) -> list[int]:
        """The tensors that a parameter lies in memory as."""
        return [self.slot(self.adopt(tensor)).index for tensor in inner_tensors(parameter).values()]

    def add_weight(self, tensor: torch.Tensor, *, name: str, role: TensorRole) -> None:
        """Register a parameter or buffer of the module before the module runs."""
        if id(tensor) not in self._twins:
            self._make_twin(tensor, name=name, role=role)

    def add_input(
        self, *, name: str, shape: Sequence[int], dtype: torch.dtype, values: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Make a model input.

        Args:
            name: Name for people.
            shape: Its size.
            dtype: Its element type.
            values: What each entry of its first dimension holds, in order; None where that is not known.

        Returns:
            The tensor to call the module with.
        """
        tensor = torch.empty(tuple(shape), dtype=dtype, device=_META)
        value = None
        if values is not None and is_small(tensor):
            value = torch.tensor(values, dtype=dtype).reshape(1, *shape[1:]).repeat(shape[0], *[1] * (len(shape) - 1))
        self.register(tensor, name=name, role=TensorRole.INPUT, value=value)
        return tensor

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in of any tensor: itself where it is in the table."""
        slot = getattr(tensor, _ATTRIBUTE, None)
        if slot is not None and slot.table is self:
            return tensor
        known = self._twins.get(id(tensor))
        if known is not None:
            return known[1]
        shared = self._twins_by_storage.get(tensor.untyped_storage()._cdata)
        if shared is not None:
            original, twin = shared[0]
            if original.dtype == tensor.dtype:
                view = twin.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
                self.attach(view, Slot(self, self.slot(twin).index, self.slot(twin).storage))
                self._twins[id(tensor)] = (tensor, view)
                return view
        # A tensor that the module keeps without registering it is as lasting as a buffer; a small one is a constant.
        role = TensorRole.BUFFER if tensor.numel() > _CONSTANT_LIMIT else TensorRole.CONSTANT
        if not self._has_registered_weights and tensor.dtype.is_floating_point and tensor.dim():
            role = TensorRole.PARAMETER
        return self._make_twin(tensor, name=f"constant_{len(self.specs)}", role=role)

    def _make_twin(self, tensor: torch.Tensor, *, name: str, role: TensorRole) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        first = tensor.storage_offset()
        span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        # PyTorch lets a view of an ordinary tensor be an ordinary one alone, also where nothing is differentiated.
        with torch.inference_mode(tensor.is_inference()):
            twin = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)
        value = None
        if role is not TensorRole.PARAMETER and tensor.device.type == "cpu" and is_small(tensor):
            value = tensor.detach().clone()
        base, shared = None, 0
        for other, other_twin in self._twins_by_storage.get(storage, ()):
            # Weights that share one storage without overlapping (cuDNN's flat recurrent weights) are separate weights.
            start = other.storage_offset()
            common = int(min(first + span, start + other.numel()) - max(first, start))
            if common <= 0 or not tensor.numel():
                continue
            if TensorRole.PARAMETER in {role, self.specs[self.slot(other_twin).index].role}:
                # Each parameter has a gradient of its own, whatever memory it lies in.
                shared = max(shared, common)
            else:
                base = self.slot(other_twin).storage
        self.register(twin, name=name, role=role, value=value, storage=base, shared=shared * tensor.element_size())
        self._twins[id(tensor)] = (tensor, twin)
        self._twins_by_storage.setdefault(storage, []).append((tensor, twin))
        return twin

    def register(
        self,
        tensor: torch.Tensor,
        *,
        name: str,
        role: TensorRole,
        value: torch.Tensor | None,
        storage: Storage | None = None,
        shared: int = 0,
    ) -> int:
        """Give a tensor object an index; its storage is new unless one is given or already known.

        Args:
            tensor: On the meta device.
            name: Name for people.
            role: What it is to the model.
            value: Its values where they are known.
            storage: The storage that it is a part of, where that does not show.
            shared: Bytes of its own storage that it has in common with another tensor's, which are counted there.

        Returns:
            The index.
        """
        index = len(self.specs)
        memory = tensor.untyped_storage()
        if storage is None:
            storage = self._storages.get(memory._cdata)
        stated = None
        if storage is not None:
            self._storages[memory._cdata] = storage
        else:
            storage = Storage(base=index, has_values=value is not None)
            storage.is_one_number = value is not None and value.untyped_storage().nbytes() < memory.nbytes()
            if role is TensorRole.ACTIVATION:
                self._watch(memory, storage)
            self._storages[memory._cdata] = storage
            size = max(memory.nbytes() - shared, 0)
            if size != tensor.numel() * tensor.element_size():
                stated = size
        self.specs.append(
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
        self.attach(tensor, Slot(self, index, storage, value))
        return index

    def _watch(self, memory: torch.UntypedStorage, storage: Storage) -> None:
        key = memory._cdata
        owner = weakref.ref(self)

        def forget(_: object) -> None:
            table = owner()
            if table is not None:
                table._storages.pop(key, None)
                if table._is_open:
                    table._release(storage.base)

        storage.watcher = weakref.ref(memory, forget)

    @staticmethod
    def attach(tensor: torch.Tensor, slot: Slot) -> None:
        """Note what is known of a tensor object on the object itself."""
        setattr(tensor, _ATTRIBUTE, slot)

    @staticmethod
    def slot(tensor: torch.Tensor) -> Slot:
        """What is known of an adopted tensor."""
        slot: Slot = getattr(tensor, _ATTRIBUTE)
        return slot

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of an adopted tensor where they follow from the program alone, else None."""
        slot = self.slot(tensor)
        return slot.value if slot.storage.has_values else None
