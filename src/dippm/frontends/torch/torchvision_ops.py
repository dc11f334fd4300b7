"""Lets torchvision be imported beside a torch that its compiled operators were not built for.

A CPU build of torch beside a CUDA build of torchvision is common, and importing torchvision, or anything that imports
it, such as timm, then fails with "operator torchvision::nms does not exist". Reading a model needs the operators'
names and output shapes alone, and those are given here.
"""

from __future__ import annotations

import sys
import threading
from importlib import import_module

import torch

from dippm.frontends.torch.late_compiler import compiler_postponed

__all__ = ["import_torchvision_ops"]

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> "
    "(Tensor, Tensor)",
    "ps_roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "ps_roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) -> "
    "(Tensor, Tensor)",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
}
_LOCK = threading.Lock()
_LIBRARIES: list[torch.library.Library] = []


def _pooled(x: torch.Tensor, rois: torch.Tensor, _scale: float, height: int, width: int, *_: object) -> torch.Tensor:
    return x.new_empty((rois.shape[0], x.shape[1], height, width))


def _pooled_with_argmax(
    x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    result = _pooled(x, rois, scale, height, width)
    return result, torch.empty_like(result, dtype=torch.int32)


def _position_sensitive(
    x: torch.Tensor, rois: torch.Tensor, _scale: float, height: int, width: int, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    result = x.new_empty((rois.shape[0], x.shape[1] // (height * width), height, width))
    return result, torch.empty_like(result, dtype=torch.int32)


def _deformed(x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, *_: object) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0], *offset.shape[-2:]))


_KERNELS = {
    "roi_align": _pooled,
    "roi_pool": _pooled_with_argmax,
    "ps_roi_align": _position_sensitive,
    "ps_roi_pool": _position_sensitive,
    "deform_conv2d": _deformed,
}


def import_torchvision_ops() -> None:
    """Import torchvision, declaring its operators first where its compiled library does not load.

    Raises:
        ImportError: torchvision is not installed.
    """
    with _LOCK:
        if _LIBRARIES:
            return
        try:
            _import_torchvision()
        except RuntimeError as exc:
            if "torchvision::" not in str(exc):
                raise
        else:
            return
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name, schema in _SCHEMAS.items():
            try:
                getattr(torch.ops.torchvision, name)
            except AttributeError:
                library.define(name + schema)  # type: ignore[no-untyped-call]
                if name in _KERNELS:
                    library.impl(name, _KERNELS[name], "Meta")  # type: ignore[no-untyped-call]
        # The library must outlive this call: its operators go when it does.
        _LIBRARIES.append(library)
        _import_torchvision()
        for name, module in list(sys.modules.items()):
            # torchvision's functions ask this before they call an operator; each of its modules has its own reference.
            if name.startswith("torchvision.") and hasattr(module, "_has_ops"):
                vars(module)["_has_ops"] = _has_ops


def _import_torchvision() -> None:
    with compiler_postponed():
        import_module("torchvision")


def _has_ops() -> bool:
    return True
