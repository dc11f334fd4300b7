"""What is assumed of choices that a model makes itself, where it asks how many of them are which.

A mixture of experts sends each token to the experts with the highest scores, and asks for each expert which tokens are
its own. How many these are only the data tells; they are taken to be spread evenly, as training such a model aims for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dippm.frontends.torch.call_forms import MASK_INDEXES
from dippm.frontends.torch.detections import Detections
from dippm.frontends.torch.known_values import MASK_TYPES
from dippm.frontends.torch.meta_tensors import tensors_in
from dippm.frontends.torch.tensor_table import TensorTable

__all__ = ["Routing"]

_EVEN = (
    "What the model chooses for its tokens, as experts of a mixture, is taken to be spread evenly over all choices: "
    "how many go to which, only its input tells."
)
_GOES_ON = "No token that the model generates is taken to be the one that ends its text, which it looks for."
_MIDDLE = (
    "What the model chooses itself is taken to be the middle one of its choices, where its number decides what runs."
)
_SPREAD = (
    "What the model chooses itself is taken to be spread evenly over its choices, where their numbers decide what runs."
)
# What asks for one value.
_ASKS_ONE = frozenset({"_local_scalar_dense", "is_nonzero"})
# More choices than a model has experts: what is picked then is a word, or a place.
_MOST_CHOICES = 512
# Where the dimension stands among the arguments of what picks, and where the choices stand in what that returns.
_PICKS: Mapping[str, tuple[int, int]] = {"topk": (2, 1), "sort": (1, 1), "max": (1, 1), "argmax": (1, 0)}
_SAME_NUMBERS = frozenset(
    {
        "view", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "slice", "expand",
        "clone", "_to_copy", "alias", "detach", "unbind", "split",
    }
)  # fmt: skip
# What takes one place of a dimension, each in the form of one result.
_TAKES_ONE = frozenset({"select", "unbind"})
# What may be asked about whether texts end.
_ABOUT_ENDS = frozenset({"all", "any", "bitwise_or", "logical_or"})


@dataclass(frozen=True, slots=True)
class _Places:
    """Where choices were made, as the true elements of a tensor say.

    Args:
        made: How many choices these are; of all choices, where the tensor tells of one of them alone.
        choices: How many there are to choose from.
        number: Which of these the tensor tells of, None where of several.
    """

    made: float
    choices: int
    number: int | None = None

    def count(self, size: int) -> int:
        """How many of a number of elements are true."""
        if self.number is None:
            return min(size, max(1, round(self.made)))
        if not 0 <= self.number < self.choices:
            return 0
        made = round(self.made)
        return min(size, made * (self.number + 1) // self.choices - made * self.number // self.choices)


class Routing:
    """Which tensors hold choices, and which say where a choice was made.

    Args:
        table: The tensors.
        assumptions: Where to report what is assumed.
        detections: Which tensors say what boxes a detector keeps.
    """

    def __init__(self, table: TensorTable, assumptions: list[str], detections: Detections) -> None:
        self._table = table
        self._detections = detections
        self._assumptions = assumptions
        # Of how many choices each element is one, and where they were made.
        self._choices: dict[int, int] = {}
        self._places: dict[int, _Places] = {}
        # Words that were picked, and what says whether they end the text.
        self._words: dict[int, int] = {}
        self._ends: set[int] = set()

    def note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Look whether an operator chooses, or passes on what was chosen."""
        name = func._schema.name.rpartition("::")[2]
        self._detections.note(name, args, result)
        levels = self._detections.levels(name, args)
        if levels is not None:
            self._choices.update(dict.fromkeys(self._indices(result), levels))
        elif name in _PICKS:
            self._note_choice(name, args, kwargs, result)
        elif name == "multinomial":
            self._words.update(dict.fromkeys(self._indices(result), args[0].shape[-1]))
        elif self._words and args and isinstance(args[0], torch.Tensor) and self._note_words(name, args, result):
            return
        elif self._choices and args and isinstance(args[0], torch.Tensor):
            source = self._index(args[0])
            if source in self._choices:
                self._pass_choices(name, args, self._choices[source], result)
            elif source in self._places:
                self._pass_places(name, args, self._places[source], result)

    def places(self, mask: torch.Tensor) -> torch.Tensor | None:
        """Places where a choice was made, as many as there are if choices are spread evenly; None for other tensors."""
        places = self._places.get(self._index(mask))
        count = self._detections.count(mask) if places is None else places.count(mask.numel())
        if count is None:
            return None
        if places is not None:
            self._assumptions.append(self._detections.evenly or _EVEN)
        return torch.empty((count, mask.dim()), dtype=torch.int64, device="meta")

    def counts(self, chosen: torch.Tensor, least: int) -> torch.Tensor | None:
        """How often each of the choices was made, that is evenly; None for other tensors."""
        choices = self._choices.get(self._index(chosen))
        if choices is None:
            return None
        self._assumptions.append(_EVEN)
        ends = torch.arange(choices + 1) * chosen.numel() // choices
        return torch.nn.functional.pad(ends.diff(), (0, max(0, least - choices)))

    def answer(self, asked: torch.Tensor) -> bool | int | None:
        """What one element holds that is, or that tells of, a choice of the model's own; None for all else.

        A choice is made somewhere where enough are made, and no text ends; one alone is the middle one.
        """
        index = self._index(asked)
        if asked.numel() != 1:
            return None
        answer: bool | int | None = None
        told = ""
        if asked.dtype is torch.bool and index in self._places:
            answer, told = self._places[index].count(1) > 0, _EVEN
        elif index in self._ends:
            answer, told = False, _GOES_ON
        elif index in self._choices or index in self._words:
            answer, told = (self._choices.get(index) or self._words[index]) // 2, _MIDDLE
        if told:
            self._assumptions.append(told)
        return answer

    def numbers(self, chosen: torch.Tensor) -> torch.Tensor | None:
        """The numbers of choices of the model's own, spread evenly over all there are; None for other tensors."""
        choices = self._choices.get(self._index(chosen))
        if choices is None:
            return None
        count = chosen.numel()
        self._assumptions.append(_MIDDLE if count == 1 else _SPREAD)
        with _disable_current_modes():
            spread = torch.arange(1, count + 1) * choices // (count + 1)
            return spread.to(chosen.dtype).view(chosen.shape)

    def assume(self, func: Any, name: str, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """The values, or the result alone, of what asks for choices of the model's own; None and None for all else.

        Args:
            func: The operator.
            name: Its name.
            arguments: What it is given.
        """
        if name in _ASKS_ONE:
            return self.answer(arguments["self"]), None
        if name == "nonzero":
            return None, self.places(arguments["self"])
        if name == "masked_select":
            tensor, mask = arguments["self"], arguments["mask"]
            places = self.places(mask)
            if places is None:
                return None, None
            shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
            return None, tensor.new_empty(len(places) * prod(shape) // max(1, mask.numel()))
        if name == "bincount" and arguments["weights"] is None:
            return self.counts(arguments["self"], arguments["minlength"]), None
        if name in MASK_INDEXES:
            picked: list[torch.Tensor | None] = []
            for item in arguments["indices"]:
                is_mask = item is not None and item.dtype in MASK_TYPES
                places = self.places(item) if is_mask else None
                if is_mask and places is None:
                    return None, None
                picked += [item] if places is None else places.unbind(1)
            return None, func(arguments["self"], picked)
        return None, self._detections.keep(func, arguments)

    def _index(self, tensor: torch.Tensor) -> int:
        return self._table.slot(self._table.adopt(tensor)).index

    def _note_choice(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        scores, (place, position) = args[0], _PICKS[name]
        whole = None if place == 1 and name != "sort" else -1
        dim = kwargs.get("dim", args[place] if len(args) > place else whole)
        found = list(tensors_in((result,)))
        if isinstance(dim, int) and scores.is_floating_point() and scores.dim() and position < len(found):
            choices = scores.shape[dim]
            if 1 < choices <= _MOST_CHOICES:
                self._choices[self._index(found[position])] = choices
            elif choices > _MOST_CHOICES and name == "argmax":
                self._words[self._index(found[position])] = choices

    def _note_words(self, name: str, args: tuple[Any, ...], result: Any) -> bool:
        indices = {self._index(value) for value in args[:2] if isinstance(value, torch.Tensor)}
        words = next((self._words[index] for index in indices if index in self._words), None)
        if name == "eq" and self._is_known(args[1]) and words is not None:
            self._ends.update(self._indices(result))
        elif name in _SAME_NUMBERS and words is not None:
            self._words.update(dict.fromkeys(self._indices(result), words))
        elif (name in _SAME_NUMBERS or name in _ABOUT_ENDS) and indices & self._ends:
            self._ends.update(self._indices(result))
        else:
            return False
        return True

    def _pass_choices(self, name: str, args: tuple[Any, ...], choices: int, result: Any) -> None:
        if name in _SAME_NUMBERS or self._detections.moves_levels(name):
            self._choices.update(dict.fromkeys(self._indices(result), choices))
        elif name == "one_hot" or (name == "eq" and self._is_known(args[1])):
            number = _as_number(args[1], self._table) if name == "eq" else None
            if number is None:
                places = _Places(result.numel() / choices, choices)
            else:
                places = _Places(result.numel(), choices, number)
            # What looks for a choice that there is not is not understood. Of a pyramid all levels are asked for.
            if number is None or 0 <= number < choices or self._detections.evenly:
                self._places[self._index(result)] = places

    def _pass_places(self, name: str, args: tuple[Any, ...], places: _Places, result: Any) -> None:
        size = args[0].numel()
        is_count = name in {"any", "max", "sum"} and isinstance(result, torch.Tensor)
        is_said = name in {"ne", "gt"} and self._is_zero(args[1])
        if not is_count and not is_said and name not in _SAME_NUMBERS:
            return
        dim = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
        is_of_one = name in _TAKES_ONE and places.number is None and args[0].shape[dim] == places.choices
        for position, made in enumerate(tensors_in((result,))):
            here = places
            if is_of_one:
                here = replace(places, number=args[2] % places.choices if name == "select" else position)
            elif name in _SAME_NUMBERS and size:
                here = replace(places, made=places.made * made.numel() / size)
            self._places[self._index(made)] = here

    def _is_zero(self, value: Any) -> bool:
        known = self._table.value(self._table.adopt(value)) if isinstance(value, torch.Tensor) else value
        return known is not None and not bool((known != 0).any() if isinstance(known, torch.Tensor) else known)

    def _is_known(self, value: Any) -> bool:
        return not isinstance(value, torch.Tensor) or self._table.value(self._table.adopt(value)) is not None

    def _indices(self, result: Any) -> Iterable[int]:
        return [self._index(tensor) for tensor in tensors_in((result,))]


def _as_number(value: Any, table: TensorTable) -> int | None:
    """A known value that is one number."""
    if not isinstance(value, torch.Tensor):
        return int(value)
    known = table.value(table.adopt(value))
    return int(known) if known is not None and known.numel() == 1 else None
