"""What DNNPerf's evaluation compares, by name; torch is imported when a network is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

from dippm.errors import MissingExtraError, UsageError
from dippm.features.dnnperf_scaling import Scaler

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ABLATIONS",
    "ANEE",
    "BASELINES",
    "DNNPERF_MODELS",
    "DNNPERF_NETWORKS",
    "TREES",
    "DnnperfVariant",
    "make_dnnperf_network",
]

ANEE = "anee"
"""DNNPerf's own network."""
TREES = "gbdt"
"""Gradient-boosted trees on summed costs, which are no network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DnnperfVariant:
    """A network and what it is given.

    Args:
        home: Module and class of the network.
        title: What it is, in words.
        scaler: How features are scaled.
        hides_costs: Whether sizes of tensors, FLOPs and temporary memory are kept from it.
    """

    home: tuple[str, str]
    title: str
    scaler: Scaler = Scaler.MIN_MAX
    hides_costs: bool = False


_ANEE_HOME = ("dippm.models.anee", "ANEE")
_ABLATED = "dippm.models.anee_ablations"

DNNPERF_NETWORKS: Mapping[str, DnnperfVariant] = MappingProxyType(
    {
        ANEE: DnnperfVariant(home=_ANEE_HOME, title="DNNPerf: attention over nodes and edges"),
        "birnn": DnnperfVariant(home=("dippm.models.birnn", "BiRNN"), title="bidirectional RNN over the nodes"),
        "arnn": DnnperfVariant(home=("dippm.models.arnn", "ARNN"), title="RNN over nodes and adjacency rows"),
        "mlp": DnnperfVariant(home=("dippm.models.dnnperf_mlp", "DnnperfMLP"), title="MLP over summed features"),
        "brp-nas": DnnperfVariant(home=("dippm.models.brp_nas", "BRPNAS"), title="GCN of BRP-NAS"),
        "anee-gat": DnnperfVariant(home=(_ABLATED, "ANEEWithGAT"), title="plain GAT in place of the rounds"),
        "anee-standard-scaler": DnnperfVariant(
            home=_ANEE_HOME, title="mean 0, deviation 1 in place of MinMax", scaler=Scaler.STANDARD
        ),
        "anee-no-costs": DnnperfVariant(home=_ANEE_HOME, title="no tensor and cost features", hides_costs=True),
        "anee-concatenated-edges": DnnperfVariant(
            home=(_ABLATED, "ANEEWithConcatenatedEdges"), title="edge features joined to the nodes'"
        ),
        "anee-average-readout": DnnperfVariant(
            home=(_ABLATED, "ANEEWithAverageReadout"), title="mean of the nodes as readout, no global state"
        ),
    }
)
"""Every network by name."""
BASELINES = ("birnn", "arnn", "mlp", TREES, "brp-nas")
"""What ANEE is compared with."""
ABLATIONS = tuple(name for name in DNNPERF_NETWORKS if name.startswith(f"{ANEE}-"))
"""ANEE with a part taken out or exchanged."""
DNNPERF_MODELS = (ANEE, *BASELINES, *ABLATIONS)
"""All that is trained: ANEE first."""


def make_dnnperf_network(
    name: str,
    *,
    hidden: int,
    dropout: float,
    outputs: int,
    node_features: int,
    edge_features: int,
    graph_features: int,
) -> nn.Module:
    """Make a network with fresh weights, drawn from torch's global generator.

    Args:
        name: One of :data:`DNNPERF_NETWORKS`.
        hidden: Width, at least 1.
        dropout: Share of values dropped in training, at least 0 and below 1.
        outputs: Results per graph, at least 1.
        node_features: Features per node.
        edge_features: Features per edge.
        graph_features: Features per graph.

    Raises:
        UsageError: ``network.unknown``, or ``network.settings`` where a number is out of its range.
        MissingExtraError: PyTorch or PyTorch Geometric is not installed.
    """
    if name not in DNNPERF_NETWORKS:
        raise UsageError(
            f"A network must be one of {', '.join(DNNPERF_NETWORKS)}. Got {name!r} instead.", code="network.unknown"
        )
    if not 0.0 <= dropout < 1.0 or min(hidden, outputs, node_features, edge_features, graph_features) < 1:
        raise UsageError(
            f"Widths must be at least 1 and the dropout at least 0 and below 1. Got a width of {hidden}, {outputs} "
            f"outputs and a dropout of {dropout} instead.",
            code="network.settings",
        )
    for package in ("torch", "torch_geometric"):
        if find_spec(package) is None:
            raise MissingExtraError(package=package, extra="train", purpose="make a network")
    module, class_name = DNNPERF_NETWORKS[name].home
    network: nn.Module = getattr(import_module(module), class_name)(
        hidden=hidden,
        dropout=dropout,
        outputs=outputs,
        node_features=node_features,
        edge_features=edge_features,
        graph_features=graph_features,
    )
    return network
