"""How many boxes torchvision's detectors are taken to go on with, which choose them by their scores.

A detector keeps the boxes whose scores pass a threshold, drops those that lie on better ones, and cuts what is left off
at a number that it was built with. What passes only the image tells. Its memory, and nearly all of its time, are those
of the layers before; what comes after is counted for that number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from dippm.frontends.torch.tensor_table import TensorTable

__all__ = ["Detections", "Detectors", "boxes_as_counted", "find_detectors"]

_KEPT = (
    "Of the boxes that the detector chooses by their scores as many are counted as it goes on with at most, {:,} of an "
    "image: how many pass, only the image tells, and one that shows less takes less time. With such steps a model "
    "cannot be captured as a graph, and a compiler runs it in pieces, which is not counted."
)
_PASTED = "Masks are taken to be as large as their image."
_DRAWN = "Boxes of which keypoints are sought are taken to fill their image side by side: those that overlap take more."
_LEVELS = "Boxes are taken to be spread evenly over the levels of the detector's pyramid."
_DETECTORS = "torchvision.models.detection."
_BOXES, _HEADS, _PROPOSALS = "torchvision.ops.boxes", f"{_DETECTORS}roi_heads", f"{_DETECTORS}rpn"
_BY_CLASS, _AT_ONCE, _PASTE = "_batched_nms_vanilla", "_batched_nms_coordinate_trick", "paste_mask_in_image"
_SEEK = "heatmaps_to_keypoints"
_COUNTS, _PROPOSED, _TESTING = ("topk_candidates", "detections_per_img"), "_post_nms_top_n", "testing"
_THRESHOLDS = frozenset({"gt", "ge", "lt", "le"})
_BOTH = frozenset({"logical_and", "bitwise_and", "__and__"})
_CLAMP, _NMS, _SUB = "clamp", "torchvision::nms", "sub"


@dataclass(frozen=True, kw_only=True, slots=True)
class Detectors:
    """What of a module is a detector of torchvision.

    Args:
        most: How many boxes of an image it goes on with at most: of two stages what the first one proposes, of one
            stage how many candidates of a level, or of a class, it compares, or how many it returns.
        paths: Its modules, and those inside of it.
        proposing: Those of the first of two stages, which has cut its boxes off before it looks at their scores.
    """

    most: int
    paths: frozenset[str]
    proposing: frozenset[str]


def find_detectors(module: nn.Module) -> Detectors | None:
    """The detectors that a module is, or holds; None where it has none.

    Args:
        module: The module.
    """
    paths, proposing, counts = set(), set(), []
    for path, each in module.named_modules():
        sources = {base.__module__ for base in type(each).__mro__}
        if any(source.startswith(_DETECTORS) for source in sources):
            paths.add(path)
            proposed = getattr(each, _PROPOSED, None)
            counts += [getattr(each, name, None) for name in _COUNTS]
            counts.append(proposed.get(_TESTING) if isinstance(proposed, Mapping) else None)
        if _PROPOSALS in sources:
            proposing.add(path)
    most = max((int(float(count)) for count in counts if isinstance(count, Real)), default=None)
    if most is None:
        return None
    return Detectors(most=most, paths=frozenset(paths), proposing=frozenset(proposing))


@contextmanager
def boxes_as_counted(detectors: Detectors | None, assumptions: list[str]) -> Iterator[None]:
    """Have a detector of torchvision go on with boxes as it does on a GPU, and with boxes and masks of known sizes.

    On a CPU it drops boxes class by class, which takes more launches. On a GPU it does where their coordinates are many
    numbers, more than 100,000 in most releases, as of SSD's 36,000 boxes: those launches are not counted. A mask is
    resized to its box, and so are the maps of its keypoints; only the image tells the size.

    Args:
        detectors: Those of what is run inside of this; nothing is changed where it has none.
        assumptions: Where to report what is assumed.
    """
    with ExitStack() as changes:
        if detectors is not None:
            boxes, heads = sys.modules.get(_BOXES), sys.modules.get(_HEADS)
            at_once, paste = getattr(boxes, _AT_ONCE, None), getattr(heads, _PASTE, None)
            if at_once is not None and hasattr(boxes, _BY_CLASS):
                changes.enter_context(patch.object(boxes, _BY_CLASS, at_once))
            if paste is not None:
                changes.enter_context(patch.object(heads, _PASTE, partial(_paste_over_image, paste, assumptions)))
            if hasattr(heads, _SEEK) and hasattr(heads, "RoIHeads"):
                changes.enter_context(_sought_side_by_side(heads, assumptions))
        yield


@contextmanager
def _sought_side_by_side(heads: Any, assumptions: list[str]) -> Iterator[None]:
    """Have keypoints sought in boxes that fill their image side by side."""
    seek, forward = getattr(heads, _SEEK), heads.RoIHeads.forward
    # Sizes of the images whose boxes are not looked at yet.
    images: list[tuple[int, int]] = []

    def noting(self: nn.Module, features: Any, proposals: Any, image_shapes: Any, *more: Any, **named: Any) -> Any:
        images[:] = image_shapes
        return forward(self, features, proposals, image_shapes, *more, **named)

    def seek_in_known(maps: torch.Tensor, boxes: torch.Tensor) -> Any:
        if not images:
            return seek(maps, boxes)
        assumptions.append(_DRAWN)
        height, width = images.pop(0)
        a_side = math.sqrt(max(len(boxes), 1))
        return seek(maps, torch.tensor([[0.0, 0.0, width / a_side, height / a_side]]).repeat(len(boxes), 1))

    with patch.object(heads, _SEEK, seek_in_known), patch.object(heads.RoIHeads, "forward", noting):
        yield


def _paste_over_image(
    paste: Callable[..., torch.Tensor],
    assumptions: list[str],
    mask: torch.Tensor,
    _: torch.Tensor,
    height: int,
    width: int,
) -> torch.Tensor:
    assumptions.append(_PASTED)
    return paste(mask, torch.tensor([0, 0, width - 1, height - 1]), height, width)


class Detections:
    """Which tensors say what boxes a detector keeps; nothing of what is run outside of detectors.

    Args:
        table: The tensors.
        assumptions: Where to report what is assumed.
        detectors: The detectors of the module; None where it has none.
        scope: Tells the path of the module that runs.
    """

    def __init__(
        self, table: TensorTable, assumptions: list[str], detectors: Detectors | None, *, scope: Callable[[], str]
    ) -> None:
        self._table = table
        self._assumptions = assumptions
        self._detectors = detectors
        self._scope = scope
        # What says which boxes pass.
        self._masks: set[int] = set()

    @property
    def _running(self) -> Detectors | None:
        """The detectors, while one of them runs."""
        detectors = self._detectors
        return detectors if detectors is not None and self._is_inside(detectors.paths) else None

    def _is_inside(self, paths: frozenset[str]) -> bool:
        path = self._scope()
        return any(not each or path == each or path.startswith(f"{each}.") for each in paths)

    def note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Look whether an operator says which boxes pass.

        Args:
            name: The operator's.
            args: What it is given.
            result: What it returns.
        """
        is_compared, is_joined = name in _THRESHOLDS, name in _BOTH
        if (not is_compared and not is_joined) or self._running is None:
            return
        tensors = [value for value in args[:2] if isinstance(value, torch.Tensor)]
        if (is_compared and tensors and tensors[0].is_floating_point()) or (
            is_joined and self._masks.issuperset(map(self._index, tensors))
        ):
            self._masks.add(self._index(result))

    def levels(self, name: str, args: tuple[Any, ...]) -> int | None:
        """Of how many levels of its pyramid an operator makes a box one; None where it does something else.

        Args:
            name: The operator's.
            args: What it is given.
        """
        if name != _CLAMP or len(args) < 3 or args[0].dim() != 1 or self._running is None:
            return None
        first, last = args[1:3]
        return last - first + 1 if isinstance(first, int) and isinstance(last, int) else None

    def moves_levels(self, name: str) -> bool:
        """Whether an operator says of a box's level which one it is, counted from the first."""
        return name == _SUB and self._running is not None

    @property
    def evenly(self) -> str | None:
        """What is said of boxes that are spread evenly over levels; None while no detector runs."""
        return None if self._running is None else _LEVELS

    def count(self, mask: torch.Tensor) -> int | None:
        """How many boxes pass; None for tensors that say something else."""
        running = self._running
        if running is None or self._index(mask) not in self._masks:
            return None
        self._assumptions.append(_KEPT.format(running.most))
        are_cut = self._is_inside(running.proposing)
        return mask.numel() if are_cut else min(mask.numel(), running.most)

    def keep(self, func: Any, arguments: Mapping[str, Any]) -> torch.Tensor | None:
        """The boxes that do not lie on better ones, as which all are counted; None for any other operator."""
        running = self._running
        if running is None or func._schema.name != _NMS:
            return None
        self._assumptions.append(_KEPT.format(running.most))
        return torch.empty(len(arguments["dets"]), dtype=torch.int64, device="meta")

    def _index(self, tensor: torch.Tensor) -> int:
        return self._table.slot(self._table.adopt(tensor)).index
