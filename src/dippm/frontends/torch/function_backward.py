"""The backward pass that a ``torch.autograd.Function`` defines, recorded on gradients without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import Function
from torch.utils._python_dispatch import _disable_current_modes

from dippm.frontends.torch.gradient_flow import GradientFlow
from dippm.frontends.torch.meta_tensors import is_differentiable, tensors_in
from dippm.frontends.torch.recorder import Recorder
from dippm.frontends.torch.tensor_table import Slot
from dippm.frontends.torch.wrapped_tensors import is_wrapper
from dippm.graph import OwnGradient, TensorRole

__all__ = ["FunctionCall", "record_backward", "take_arguments", "view_arguments"]


@dataclass(kw_only=True, slots=True, eq=False)
class FunctionCall:
    """One call of a function.

    Args:
        cls: Its class.
        start: Operators that were recorded before it.
        is_on: Whether it is differentiated.
        saved: What it saves for its backward pass.
        context: What it is given to keep something in.
        inputs: Its arguments, -1 for those that are no tensors.
        needs: Whether each of them needs a gradient.
    """

    cls: Any
    start: int
    is_on: bool
    saved: list[torch.Tensor | None] = field(default_factory=list)
    context: Any = None
    inputs: tuple[int, ...] = ()
    needs: tuple[bool, ...] = ()


class _Context:
    """What a function's backward pass is given: the context of its forward pass, with what that has kept."""

    def __init__(self, call: FunctionCall) -> None:
        self._context = call.context
        self.saved_tensors = self.saved_variables = tuple(call.saved)
        self.needs_input_grad = call.needs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def take_arguments(recorder: Recorder, flow: GradientFlow, call: FunctionCall, arguments: Sequence[Any]) -> None:
    """Take note of what a function is called with, before it runs.

    Args:
        recorder: Where its operators are recorded.
        flow: Its gradients.
        call: The call.
        arguments: Of its forward pass.
    """
    slots = [_slots(recorder, (each,)) for each in arguments]
    call.inputs = tuple(slot[0].index if slot else -1 for slot in slots)
    call.needs = tuple(call.is_on and flow.depends(index) and not flow.is_cut(index) for index in call.inputs)


def view_arguments(recorder: Recorder, call: FunctionCall, result: Any) -> Any:
    """What a function returns, with a view in the place of each argument that it passes on.

    PyTorch makes these views too, but when gradients are off for it: they would cut off what stands before.

    Args:
        recorder: Where the views are recorded.
        call: The call.
        result: What the function returned.
    """

    def view(value: Any) -> Any:
        slots = _slots(recorder, (value,))
        return value.view_as(value) if slots and slots[0].index in call.inputs else value

    return tuple(map(view, result)) if isinstance(result, tuple) else view(result)


def record_backward(recorder: Recorder, flow: GradientFlow, call: FunctionCall, result: Any) -> bool:
    """Run the backward pass of a function that has just run, and record it apart.

    Args:
        recorder: Where the operators are recorded; it is told of a backward pass that cannot be run.
        flow: Its gradients.
        call: The call.
        result: What it returned.

    Returns:
        Whether the function is differentiated, and its backward pass could be run.
    """
    returned = result if isinstance(result, tuple) else (result,)
    outputs, kept = list(filter(_is_stored, returned)), list(filter(_is_stored, call.saved))
    held = list(filter(_is_stored, tensors_in(vars(call.context).values())))
    made, kept_slots, held_slots = (_slots(recorder, tensors) for tensors in (outputs, kept, held))
    trained = [slot.index for slot, tensor in zip(made, outputs, strict=True) if is_differentiable(tensor)]
    if not any(call.needs) or not trained or recorder.step_count == call.start:
        return False
    given: list[int] = []

    def run() -> list[torch.Tensor | None]:
        gradients = [_stand_in(recorder, each, given) if _is_stored(each) else None for each in returned]
        with flow.inside_function(is_on=False), torch.no_grad():
            found = _backward_of(call.cls)(_Context(call), *gradients)
        found = found if isinstance(found, (tuple, list)) else (found,)
        found = (*found, *[None] * (len(call.needs) - len(found)))
        return [gradient for gradient, is_needed in zip(found, call.needs, strict=False) if is_needed]

    try:
        results, nodes = recorder.record_apart(run)
    except Exception as exc:  # noqa: BLE001 - a model's own code may raise anything on tensors without data
        said = next(iter(str(exc).strip().splitlines()), "").strip()[:100]
        recorder.assumptions.append(
            f"The backward pass that {call.cls.__name__} defines cannot be read ({type(exc).__name__}: {said}): its "
            "gradient is taken to be that of the operators that it runs."
        )
        return False
    finally:
        # It may have written to what it was given.
        for tensor, slot in zip((*outputs, *kept, *held), (*made, *kept_slots, *held_slots), strict=True):
            recorder.table.attach(recorder.table.adopt(tensor), slot)
    inputs = [index for index, is_needed in zip(call.inputs, call.needs, strict=True) if is_needed]
    pairs = [(index, gradient) for index, gradient in zip(inputs, results, strict=True) if gradient >= 0]
    gradient = OwnGradient(
        name=f"{call.cls.__name__}_{call.start}",
        outputs=tuple(slot.index for slot in made),
        given=tuple(given),
        inputs=tuple(index for index, _ in pairs),
        results=tuple(result for _, result in pairs),
        kept=tuple(slot.index for slot in kept_slots),
        held=tuple(slot.index for slot in held_slots),
        nodes=nodes,
    )
    recorder.mark_own_gradient(call.start, gradient)
    flow.note_function(gradient.inputs, trained)
    return True


def _backward_of(cls: Any) -> Any:
    """What a class has as its backward pass, by either of the two names that it may have."""
    return cls.vjp if cls.backward is Function.backward else cls.backward


def _is_stored(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not is_wrapper(type(value))


def _slots(recorder: Recorder, values: Sequence[Any]) -> list[Slot]:
    """What is known of the tensors among some values."""
    with _disable_current_modes():
        return [recorder.table.slot(recorder.table.adopt(each)) for each in values if _is_stored(each)]


def _stand_in(recorder: Recorder, output: torch.Tensor, given: list[int]) -> torch.Tensor:
    """A gradient of an output, of which nothing but its shape and type is known."""
    with _disable_current_modes():
        gradient = torch.empty_like(recorder.table.adopt(output))
    given.append(recorder.table.register(gradient, name="gradient", role=TensorRole.ACTIVATION, value=None))
    return gradient
