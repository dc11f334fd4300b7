"""Norms of the published runs of timm models.

timm's benchmark can set "fast norm", which keeps layer and group norms in FP16 under autocast. The tables of inference
on RTX 3090 and 4090 do not say that it was set. Their borders do, where a batch fitted that would not have with norms
in FP32, and so do their times: with group norms in FP32 an EfficientNet-B3 would have to move twice what an RTX 4090's
memory can in the time that was measured. A table of 2025 on an RTX 5090 was measured without: networks that took the
others for FP32 called ConvNeXt 17 to 22 % too fast on it and Swin, whose norms are PyTorch's, 1 %.

It reaches timm's own norm modules and not those of PyTorch, which the families below had in timm 1.0.8, of the time of
the newest of these tables. It is off by default, and off for a model that is read by its name.
"""

from __future__ import annotations

from dataclasses import replace

from dippm.costs.autocast import LOWERED
from dippm.graph import Graph, OpKind

__all__ = ["with_fast_norms"]

# First words of the names of models whose layer norms were PyTorch's, all or nearly all of them.
_TORCH_LAYER_NORMS = frozenset(
    ("cait", "crossvit", "deit", "deit3", "edgenext", "efficientformer", "efficientvit", "flexivit", "gmixer", "gmlp",
     "inception", "mixer", "mobilevit", "pit", "samvit", "sequencer2d", "swin", "swinv2", "tiny", "tnt", "twins", "vit",
     "vitamin", "volo", "xcit")
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
