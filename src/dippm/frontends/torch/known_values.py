"""What is known of tensors' values while a module is recorded, and what is assumed of them.

A value is known where it follows from the program alone: ``torch.arange(4)``, masks, index tables. Of some that are not
known a model asks all the same, and one answer is taken: numbers are finite, a random number is its mean, no
padding is among an input's integers, and a check of the input passes. Each is reported where the model decides by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from dippm.frontends.torch.asked_values import COMPARISONS, DRAWN_MEANS, FINITENESS, SEARCHES
from dippm.frontends.torch.meta_tensors import tensors_in, without_values
from dippm.frontends.torch.one_number import everywhere, filled, same_everywhere
from dippm.frontends.torch.plans import OpPlan
from dippm.frontends.torch.tensor_table import TensorTable, is_countable, may_keep_values
from dippm.graph import TensorRole

__all__ = ["MASK_TYPES", "KnownValues"]

MASK_TYPES = frozenset({torch.bool, torch.uint8})
"""Types of tensors that pick elements by being true."""

_FINITE = "Numbers are taken to be finite, where the model decides by whether they are."
_APART = (
    "The numbers of input '{}' that stand beside each other are taken to differ, where the model picks by whether they "
    "do: no edge goes from a node to itself."
)
_CHECKED = "The input is taken to pass the checks of its values that the model makes."
_ABSENT = "Input '{}' is taken not to contain {}, which the model looks for: padding, in most cases."
_CPU = torch.device("cpu")
_DIFFER = torch.ops.aten.ne.Tensor
_UNINITIALISED = frozenset({"empty", "empty_strided", "empty_permuted", "empty_like", "new_empty", "new_empty_strided"})


class KnownValues:
    """The values that tensors of a table are known to have.

    Args:
        table: The tensors, each with its value where that is known.
        assumptions: Where to report what is assumed.
    """

    def __init__(self, table: TensorTable, assumptions: list[str]) -> None:
        self._table = table
        self._assumptions = assumptions
        # Tensors whose values follow from the program alone if what is assumed of others holds: what that is.
        self._assumed: dict[int, str] = {}
        # Of results of comparisons: what may ask about them, what is answered, and what is said of it.
        self._compared: dict[int, tuple[Any, bool, str]] = {}

    def keep(
        self,
        func: Any,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        *,
        fill: Any,
    ) -> Any:
        """The values of what an operator makes, where they follow from the program alone and take little memory."""
        are_small = all(map(may_keep_values, outputs))
        if fill is not None and not func._schema.is_mutable:
            return filled(outputs[0], fill) if are_small else everywhere(fill, outputs[0])
        if not are_small and not self._has_one_number(inputs):
            return None
        return self.compute(func, plan, args, kwargs, inputs, outputs)

    def _has_one_number(self, tensors: Iterable[torch.Tensor]) -> bool:
        return any(self._table.slot(tensor).storage.is_one_number for tensor in tensors)

    def note(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Look whether an operator asks of values what one answer is taken for."""
        if func in FINITENESS:
            self.assume_finite(result, FINITENESS[func])
        elif func is _DIFFER:
            self.assume_apart(result, *map(self._table.adopt, args))
        elif func in COMPARISONS:
            self.note_compared(func, result, self._table.adopt(args[0]), args[1])
        elif func in SEARCHES:
            self.assume_compared(func, result, self._table.adopt(args[0]))

    def assume_finite(self, found: torch.Tensor, answer: bool) -> None:
        """Take numbers that nobody knows to be finite, for a model that asks whether they are."""
        self._assume(found, answer, _FINITE)

    def assume_apart(self, found: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
        """Take integers of one input to differ from one another, for a model that asks where they do.

        Graph networks leave out the edges from a node to itself, before they add one for each node.
        """
        slots = [self._table.slot(tensor) for tensor in (one, other)]
        base = slots[0].storage.base
        are_of_one_input = slots[1].storage.base == base and self._table.specs[base].role is TensorRole.INPUT
        are_integers = not any(item.is_floating_point() or item.is_complex() for item in (one, other))
        if are_of_one_input and are_integers and one.shape == other.shape:
            self._assume(found, True, _APART.format(self._table.specs[base].name))

    def note_compared(self, func: Any, found: torch.Tensor, one: torch.Tensor, other: Any) -> None:
        """Note where an operator compares an input's integers with a number, or a part of computed ones with others."""
        spec = self._table.specs[self._table.slot(one).storage.base]
        told = ""
        if isinstance(other, torch.Tensor):
            is_other = one is not other and one.is_floating_point() and one.shape == other.shape
            # Loops that end where nothing changes any more compare whole tensors.
            told = _CHECKED if is_other and self._has_part((one, self._table.adopt(other))) else ""
        elif spec.role is TensorRole.INPUT and not one.is_floating_point() and one.dtype not in MASK_TYPES:
            told = _ABSENT.format(spec.name, other)
        if told:
            self._compared[self._table.slot(found).index] = (*COMPARISONS[func], told)

    def _has_part(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether any of some tensors is a part of a larger one."""
        return any(tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() for tensor in tensors)

    def assume_compared(self, search: Any, found: torch.Tensor, compared: torch.Tensor) -> None:
        """Answer a model that asks whether a number is anywhere in its input, or whether all numbers agree.

        Language models leave out what padding needs where there is none. Models that write into a larger tensor check
        that what they wrote is there.
        """
        searched, answer, told = self._compared.get(self._table.slot(compared).index, (None, False, ""))
        if searched is search:
            self._assume(found, answer, told)

    def _assume(self, found: torch.Tensor, answer: bool, told: str) -> None:
        slot = self._table.slot(found)
        if self._table.value(found) is None:
            slot.value = everywhere(answer, found)
            slot.storage.has_values = slot.storage.is_one_number = True
            self._assumed[slot.index] = told

    def pass_on(self, read: Iterable[torch.Tensor], made: Iterable[int]) -> None:
        """Note that new tensors, by their indices, rest on what is assumed of those that were read."""
        told = self._what_is_assumed(read)
        if told:
            self._assumed.update(dict.fromkeys(made, told[0]))

    def _what_is_assumed(self, tensors: Iterable[torch.Tensor]) -> list[str]:
        if not self._assumed:
            return []
        indices = [self._table.slot(tensor).index for tensor in tensors]
        return [self._assumed[index] for index in indices if index in self._assumed]

    def note_asked(self, tensors: Iterable[torch.Tensor]) -> None:
        """Report it where the model decides by what is assumed."""
        self._assumptions.extend(self._what_is_assumed(tensors))

    def assume_draw(self, plan: OpPlan, arguments: Mapping[str, Any], drawn: torch.Tensor) -> torch.Tensor | None:
        """The mean in place of one random number, by which models decide which layers run or where to cut."""
        if plan.is_in_place:
            storage = self._table.slot(drawn).storage
            if drawn.untyped_storage().nbytes() != drawn.element_size():
                return None
            storage.has_values = True
        self._assumptions.append(
            "A random number of the forward pass is taken as its mean, where it decides what runs."
        )
        return torch.full(drawn.shape, DRAWN_MEANS[plan.name](arguments), dtype=drawn.dtype)

    def pick_by_masks(self, func: Any, name: str, arguments: Mapping[str, Any]) -> torch.Tensor | None:
        """What masks of known values pick of a tensor of unknown ones; None where a mask is not known."""
        if name == "masked_select":
            return self._select_by_mask(arguments["self"], arguments["mask"])
        indices: list[torch.Tensor | None] = []
        for item in arguments["indices"]:
            if item is None or item.dtype not in MASK_TYPES:
                indices.append(item)
                continue
            mask = self._table.value(item)
            if mask is None:
                return None
            indices += [without_values(places) for places in mask.nonzero().unbind(1)]
        picked: torch.Tensor = func(arguments["self"], indices)
        return picked

    def _select_by_mask(self, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """The elements that a mask of known values picks, in one row."""
        value = self._table.value(mask)
        if value is None:
            return None
        shape = torch.broadcast_shapes(tensor.shape, value.shape)  # type: ignore[no-untyped-call]
        return tensor.new_empty(int(value.expand(shape).sum()))

    def assume_check(self) -> torch.Tensor:
        """What a model's check of its own input finds: nothing else in PyTorch asks whether all is true this way."""
        self._assumptions.append(_CHECKED)
        return torch.tensor(True)

    def forget_written(self, func: Any, args: tuple[Any, ...]) -> None:
        """Forget the values of what an operator writes to."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in((value,)):
                    self._table.slot(tensor).storage.has_values = False

    def compute(
        self,
        func: Any,
        plan: OpPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor] | None = None,
    ) -> Any:
        """Run the operator for real where its result follows from the program alone; None where it does not.

        ``outputs`` have the sizes of what it makes, where these are known before.
        """
        if plan.is_random or (plan.rule is None and not inputs) or plan.name in _UNINITIALISED:
            return None
        if any(self._table.value(tensor) is None for tensor in inputs):
            return None
        if plan.has_device and (not inputs or kwargs.get("device") is not None):
            kwargs = {**kwargs, "device": _CPU}

        def real(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                known = self._table.value(value)
                # Other tensors may share the value, and keep their shape.
                return known.detach() if known is not None and plan.is_in_place_view else known
            if isinstance(value, list):
                return [real(item) for item in value]
            return value

        args, kwargs = tuple(map(real, args)), {name: real(value) for name, value in kwargs.items()}
        if self._has_one_number(inputs):
            same = None if outputs is None else same_everywhere(func, plan, args, kwargs, outputs)
            if same is not None or plan.is_aliasing or not all(map(is_countable, inputs)):
                return same
            if outputs is not None and not all(map(may_keep_values, outputs)):
                return None
        return func(*args, **kwargs)
