"""How many boxes torchvision's detectors are taken to keep, which choose them by their scores: the most that they may.

A detector keeps the boxes whose scores pass a threshold, drops those that lie on better ones, and cuts what is left off
at a number that it was built with. What passes only the image tells. Its memory, and nearly all of its time, are those
of the layers before; what comes after is counted for that number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from dippm.frontends.torch.tensor_table import TensorTable

__all__ = ["Detections", "boxes_as_counted", "most_boxes"]

_KEPT = (
    "Of the boxes that the detector chooses by their scores the most that it may keep are counted, {:,} of an image in "
    "one step, and masks as large as it: what passes, only the image tells. One that shows less takes less time."
)
_LEVELS = "Boxes are taken to be spread evenly over the levels of the detector's pyramid."
_DETECTORS = "torchvision.models.detection."
_BOXES, _HEADS = "torchvision.ops.boxes", f"{_DETECTORS}roi_heads"
_BY_CLASS, _AT_ONCE, _PASTE = "_batched_nms_vanilla", "_batched_nms_coordinate_trick", "paste_mask_in_image"
_TESTING = "testing"
_THRESHOLDS = frozenset({"gt", "ge", "lt", "le"})
_BOTH = frozenset({"logical_and", "bitwise_and", "__and__"})
_CLAMP, _NMS, _SUB = "clamp", "nms", "sub"


def most_boxes(module: nn.Module) -> int | None:
    """How many boxes of an image a detector of torchvision goes on with at most, None where a module holds none.

    Of two stages that is what the first one proposes (``rpn_post_nms_top_n_test``), of one stage how many candidates of
    a level, or of a class, it compares (``topk_candidates``).
    """
    found: list[Any] = []
    for each in module.modules():
        if type(each).__module__.startswith(_DETECTORS):
            proposed = getattr(each, "_post_nms_top_n", {})
            found += [getattr(each, "topk_candidates", None), proposed.get(_TESTING)]
    return max((count for count in found if isinstance(count, int)), default=None)


@contextmanager
def boxes_as_counted(module: nn.Module) -> Iterator[None]:
    """Have a detector of torchvision go on with boxes as it does on a GPU, and with masks as large as their image.

    On a CPU it drops boxes class by class, on a GPU only where there are more than 25,000, which takes more launches
    than are counted then. A mask is resized to its box, of which only the image tells the size.

    Args:
        module: What is run inside of this; nothing is changed where it holds no detector.
    """
    with ExitStack() as changes:
        if most_boxes(module) is not None:
            boxes, heads = sys.modules.get(_BOXES), sys.modules.get(_HEADS)
            at_once, paste = getattr(boxes, _AT_ONCE, None), getattr(heads, _PASTE, None)
            if at_once is not None and hasattr(boxes, _BY_CLASS):
                changes.enter_context(patch.object(boxes, _BY_CLASS, at_once))
            if paste is not None:
                changes.enter_context(patch.object(heads, _PASTE, partial(_paste_over_image, paste)))
        yield


def _paste_over_image(
    paste: Callable[..., torch.Tensor], mask: torch.Tensor, _: torch.Tensor, height: int, width: int
) -> torch.Tensor:
    return paste(mask, torch.tensor([0, 0, width - 1, height - 1]), height, width)


class Detections:
    """Which tensors say what boxes a detector keeps.

    Args:
        table: The tensors.
        assumptions: Where to report what is assumed.
        most: How many boxes it keeps at most, see :func:`most_boxes`; None where the module is no detector.
    """

    def __init__(self, table: TensorTable, assumptions: list[str], most: int | None) -> None:
        self._table = table
        self._assumptions = assumptions
        self._most = most
        # What says which boxes pass.
        self._masks: set[int] = set()

    def note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Look whether an operator says which boxes pass.

        Args:
            name: The operator's.
            args: What it is given.
            result: What it returns.
        """
        if self._most is None or not isinstance(result, torch.Tensor) or result.dtype is not torch.bool:
            return
        is_mask = name in _THRESHOLDS and args[0].is_floating_point()
        if is_mask or (name in _BOTH and self._masks.issuperset(map(self._index, args[:2]))):
            self._masks.add(self._index(result))

    def levels(self, name: str, args: tuple[Any, ...]) -> int | None:
        """Of how many levels of its pyramid an operator makes a box one; None where it does something else.

        Args:
            name: The operator's.
            args: What it is given.
        """
        if self._most is None or name != _CLAMP or len(args) < 3 or args[0].dim() != 1:
            return None
        first, last = args[1:3]
        return last - first + 1 if isinstance(first, int) and isinstance(last, int) else None

    def moves_levels(self, name: str) -> bool:
        """Whether an operator says of a box's level which one it is, counted from the first."""
        return self._most is not None and name == _SUB

    @property
    def evenly(self) -> str | None:
        """What is said of boxes that are spread evenly over levels; None where the module is no detector."""
        return None if self._most is None else _LEVELS

    def count(self, mask: torch.Tensor) -> int | None:
        """How many boxes pass; None for tensors that say something else."""
        if self._most is None or self._index(mask) not in self._masks:
            return None
        return self._at_most(mask.numel(), self._most)

    def keep(self, name: str, arguments: Mapping[str, Any]) -> torch.Tensor | None:
        """The boxes that do not lie on better ones, as which all are counted; None for any other operator."""
        if self._most is None or name != _NMS:
            return None
        return torch.empty(self._at_most(len(arguments["dets"]), self._most), dtype=torch.int64, device="meta")

    def _at_most(self, count: int, most: int) -> int:
        self._assumptions.append(_KEPT.format(most))
        return min(count, most)

    def _index(self, tensor: torch.Tensor) -> int:
        return self._table.slot(self._table.adopt(tensor)).index
