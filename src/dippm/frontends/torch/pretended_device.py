"""Makes modules believe that their tensors lie on an ordinary device, whichever they ask for."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from dippm.errors import UnsupportedError
from dippm.frontends.torch.asked_values import DataDependentError
from dippm.frontends.torch.recorder import Recorder
from dippm.frontends.torch.watched_batch import BatchWatch
from dippm.graph import TensorRole

__all__ = ["PretendedDevice"]


class PretendedDevice(TorchFunctionMode):
    """Answers questions about a tensor's device and values as an ordinary device would.

    It is every device in one: what a module puts on a GPU by name stays where it is. What is to be
    done with a tensor's gradient in training is left out: there is none in a recording. Whether there would be one is
    answered as autograd would.

    Args:
        recorder: The recorder that knows the values.
        watch: Who is told what the batch in sizes of tensors is compared with; None for nobody.
    """

    def __init__(self, recorder: Recorder, *, watch: BatchWatch | None = None) -> None:
        super().__init__()
        self._recorder = recorder
        self._watch = watch

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
        if self._watch is not None and (func == _SHAPE or func is torch.Tensor.size):
            return _watched(func(*args, **(kwargs or {})), args, kwargs or {}, watch=self._watch)
        if self._watch is not None and func is torch.Tensor.__len__:
            self._watch.note_length(args[0].shape)
        recorder = self._recorder
        if func == _REQUIRES_GRAD and recorder.flow is not None:
            return func(*args) or recorder.requires_grad(args[0])
        if func in _GRADIENT_HOOKS and recorder.flow is not None:
            return RemovableHandle(OrderedDict())
        if func == _DATA:
            return args[0].detach()
        if func == _SET_DATA:
            return self._set_data(*args)
        if func is torch.Tensor.__contains__ and isinstance(args[0], torch.Tensor):
            return recorder.contains(args[0], args[1])
        if func in _TO_PYTHON:
            value = self._known_value(args[0], asked=f"Tensor.{func.__name__}")
            with _disable_current_modes():
                return func(value, *args[1:], **(kwargs or {}))
        if func in _MOVES:
            return args[0]
        kwargs = kwargs or {}
        if func is torch.Tensor.type:
            wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
            return _type_name(args[0].dtype) if wanted is None else args[0].to(_dtype_of(wanted))
        if func in _CHECKING:
            with recorder.checking():
                return func(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        if func is torch.Tensor.to:
            args = (args[0], *(_here(value) for value in args[1:]))
        if func is torch.tensor and args and isinstance(args[0], list | tuple):
            # PyTorch asks the tensors in a list for their values where nobody hears it.
            args = (self._with_numbers(args[0]), *args[1:])
        return func(*args, **kwargs)

    def _set_data(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Let a tensor be what another one is, which runs nothing.

        A weight stays where it is: memory of its size is given back, and that of the other one takes its place.
        """
        tensor, other = map(self._recorder.table.adopt, (tensor, other))
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            raise UnsupportedError(
                f"The model sets the data of a tensor of {tuple(tensor.shape)} in {tensor.dtype} to one of "
                f"{tuple(other.shape)} in {other.dtype}.",
                code="torch.data_set",
                cure="Give the new tensor a name of its own in the forward pass.",
            )
        slot = self._recorder.table.slot(tensor)
        if self._recorder.tensors[slot.storage.base].role is TensorRole.ACTIVATION:
            self._recorder.table.attach(tensor, self._recorder.table.slot(other))
        else:
            slot.storage.has_values = False

    def _known_value(self, tensor: torch.Tensor, *, asked: str) -> torch.Tensor:
        value = self._recorder.known_value(tensor)
        if value is None:
            value = self._recorder.routing.numbers(tensor)
        if value is None:
            raise DataDependentError(asked, (self._recorder.index_of(tensor),))
        return value

    def _with_numbers(self, data: Any) -> Any:
        """Nested lists with numbers in place of the tensors in them."""
        if isinstance(data, torch.Tensor):
            value = self._known_value(data, asked="Tensor.item")
            with _disable_current_modes():
                return value.tolist()
        return [self._with_numbers(item) for item in data] if isinstance(data, list | tuple) else data


def _watched(found: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, watch: BatchWatch) -> Any:
    """The shape of a tensor, or its size in the dimension that is asked for, as a watch wants it."""
    if isinstance(found, torch.Size):
        return watch.watch_shape(found)
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    return watch.watch_size(found, axis % args[0].dim()) if isinstance(axis, int) else found


def _here(value: Any) -> Any:
    """A device that is there in place of one that may not be; anything else as it is."""
    if isinstance(value, (str, torch.device)) and torch.device(value).type != "meta":
        return _CPU
    return _CPU if isinstance(value, int) and not isinstance(value, bool) else value


def _type_name(dtype: torch.dtype) -> str:
    """What tensors of an element type are called on an ordinary device, such as ``torch.FloatTensor``."""
    with _disable_current_modes():
        return torch.empty(0, dtype=dtype).type()


def _dtype_of(wanted: Any) -> torch.dtype:
    """The element type of a tensor type, which may be given by its name and belong to another device."""
    named = getattr(torch, wanted.rpartition(".")[2], None) if isinstance(wanted, str) else wanted
    dtype = getattr(named, "dtype", named)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"invalid type: {wanted!r}")
    return dtype


def _getter(name: str) -> Any:
    """What PyTorch names as the function that runs where a property of a tensor is read."""
    return inspect.getattr_static(torch.Tensor, name).__get__


_CPU = torch.device("cpu")
_DEVICE_ANSWERS: dict[Any, Any] = {
    _getter("device"): _CPU,
    _getter("is_meta"): False,
    _getter("is_cpu"): True,
    _getter("is_cuda"): False,
}
_GRADIENT_HOOKS = frozenset({torch.Tensor.register_hook, torch.Tensor.retain_grad})
_REQUIRES_GRAD = _getter("requires_grad")
_DATA = _getter("data")
_SET_DATA = inspect.getattr_static(torch.Tensor, "data").__set__
_SHAPE = _getter("shape")
# Losses that refuse values of their input.
_CHECKING = frozenset({torch.nn.functional.gaussian_nll_loss})
_MOVES = frozenset({torch.Tensor.cuda, torch.Tensor.xpu})
_TO_PYTHON = frozenset({torch.Tensor.tolist, torch.Tensor.numpy})
