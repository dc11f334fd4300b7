"""What is known of the published inference runs of timm models beside their tables.

The benchmark takes every error for a lack of memory and goes on with a smaller batch. Two kernels of the releases that
it ran with (PyTorch 1.13 to 2.4) refuse a batch long before memory ends:

- fused attention is launched with the batch, windows among it, as a dimension of its grid, which ends at 65,535
  (github.com/pytorch/pytorch, issue 146704);
- PyTorch's own depthwise convolution counts elements in 32 bits (issues 80020 and 155225). It serves channels-first
  images where cuDNN's does not: in FP32, under 32 channels, with filters other than 1, 3 or 5 pixels wide, with
  dilation, and with a stride of 2 and few channels.

And the runs had timm's "fast norm" set, which keeps layer and group norms in FP16 under autocast. The tables do not say
so; their borders do. It reaches timm's own norm modules and not those of PyTorch, which the vision transformers had in
timm 1.0.8, of the time of the newest tables.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dippm.costs.conditions import Layout
from dippm.costs.precision import LOWERED
from dippm.graph import Graph, Node, OpKind

__all__ = ["refuses_batch", "with_fast_norms"]

_LARGEST_GRID = 65_535
_MOST_ELEMENTS = 2**31 - 1
_LARGEST_NATIVE_CHANNELS = 32
_CUDNN_FILTERS = frozenset({1, 3, 5})
_SMALLEST_CUDNN_WIDTH = 7
# First words of the names of models whose layer norms were PyTorch's.
_TORCH_LAYER_NORMS = frozenset(
    ("cait", "crossvit", "deit", "deit3", "efficientvit", "inception", "mobilevit", "pit", "samvit", "swin", "swinv2",
     "tiny", "vit", "vitamin", "volo", "xcit")
)  # fmt: skip
_ALSO_TORCH = "eva_large"


def with_fast_norms(graph: Graph, model: str) -> Graph:
    """The graph with the norms that ran in autocast's format marked.

    Args:
        graph: The model's graph.
        model: Its name in timm.
    """
    has_torch_norms = model.partition("_")[0] in _TORCH_LAYER_NORMS or model.startswith(_ALSO_TORCH)
    lowered = {OpKind.GROUP_NORM} if has_torch_norms else {OpKind.GROUP_NORM, OpKind.LAYER_NORM, OpKind.RMS_NORM}
    if not any(node.kind in lowered for node in graph.nodes):
        return graph
    nodes = tuple(
        replace(node, attributes={**node.attributes, LOWERED: True}) if node.kind in lowered else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def refuses_batch(graph: Graph, batch: int, layout: Layout) -> bool:
    """Whether a kernel of the model refuses a batch in a run with 16-bit arithmetic, however much memory there is.

    Args:
        graph: The model's graph, with the attention that the run had.
        batch: The batch.
        layout: Memory order of images.
    """
    return any(
        (node.kind is OpKind.ATTENTION and _grid(node, graph, batch) > _LARGEST_GRID)
        or (
            node.kind is OpKind.CONV
            and layout is Layout.NCHW
            and _runs_natively(node, graph, batch)
            and max(_elements(graph, index, batch) for index in (node.inputs[0], node.outputs[0])) > _MOST_ELEMENTS
        )
        for node in graph.nodes
    )


def _shape(graph: Graph, index: int, batch: int) -> list[int]:
    return [dim.at(batch) for dim in graph.tensors[index].shape]


def _elements(graph: Graph, index: int, batch: int) -> int:
    return math.prod(_shape(graph, index, batch))


def _grid(node: Node, graph: Graph, batch: int) -> int:
    """Everything before heads, positions and channels."""
    return math.prod(_shape(graph, node.inputs[0], batch)[:-3])


def _runs_natively(node: Node, graph: Graph, batch: int) -> bool:
    """Whether PyTorch's own kernel serves a depthwise convolution of channels-first images in 16 bits."""
    image = _shape(graph, node.inputs[0], batch)
    if len(image) != 4 or image[1] == 1 or node.attributes.get("groups", 1) != image[1]:
        return False
    channels, width = image[1], image[3]
    kernel, stride, dilation = (_pair(node, name) for name in ("kernel", "stride", "dilation"))
    if (
        channels < _LARGEST_NATIVE_CHANNELS
        or width < _SMALLEST_CUDNN_WIDTH
        or kernel[0] != kernel[1]
        or kernel[1] not in _CUDNN_FILTERS
        or stride[0] != stride[1]
        or max(dilation) > 1
    ):
        return True
    if stride[1] == 1:
        return False
    return stride[1] != 2 or kernel[1] == 1 or not (channels >= 512 or (channels >= 256 and width >= 28))


def _pair(node: Node, name: str) -> tuple[int, int]:
    value = node.attributes.get(name, (1, 1))
    if isinstance(value, tuple) and len(value) == 2:
        return int(value[0]), int(value[1])
    return (int(value), int(value)) if isinstance(value, int) else (1, 1)
