"""The networks by name; torch is imported when one is made."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

from dippm.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["NETWORKS", "make_network"]

#: Each network's module and class.
NETWORKS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pmgns": ("dippm.models.pmgns", "PMGNS"),
        "gat": ("dippm.models.gat", "GAT"),
        "gcn": ("dippm.models.gcn", "GCN"),
        "gin": ("dippm.models.gin", "GIN"),
        "mlp": ("dippm.models.mlp", "MLP"),
    }
)


def make_network(
    name: str,
    *,
    hidden: int = 512,
    dropout: float = 0.05,
    outputs: int = 3,
    node_features: int = 32,
    static_features: int = 5,
) -> nn.Module:
    """Make a network with fresh weights, drawn from torch's global generator.

    Args:
        name: One of :data:`NETWORKS`.
        hidden: Width of embeddings and fully connected blocks, at least 1.
        dropout: Share of values dropped in training, at least 0 and below 1.
        outputs: Results per graph, at least 1.
        node_features: Features per node.
        static_features: Static features per graph.

    Raises:
        UsageError: ``network.unknown``, or ``network.settings`` where a number is out of its range.
        MissingExtraError: PyTorch or PyTorch Geometric is not installed.
    """
    if name not in NETWORKS:
        raise UsageError(
            f"A network must be one of {', '.join(NETWORKS)}. Got {name!r} instead.", code="network.unknown"
        )
    if not 0.0 <= dropout < 1.0:
        raise UsageError(f"Dropout must be at least 0 and below 1. Got {dropout} instead.", code="network.settings")
    widths = {"hidden": hidden, "outputs": outputs, "node_features": node_features, "static_features": static_features}
    for setting, width in widths.items():
        if width < 1:
            raise UsageError(f"The setting {setting} must be at least 1. Got {width} instead.", code="network.settings")
    for package in ("torch", "torch_geometric"):
        if find_spec(package) is None:
            raise MissingExtraError(package=package, extra="train", purpose="make a network")
    module, class_name = NETWORKS[name]
    network: nn.Module = getattr(import_module(module), class_name)(
        hidden=hidden,
        dropout=dropout,
        outputs=outputs,
        node_features=node_features,
        static_features=static_features,
    )
    return network
