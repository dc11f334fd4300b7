"""What the networks use of PyTorch Geometric.

Its import compiles classes by way of ``torch.jit``, and PyTorch 2.13 warns everyone who does that this is deprecated.
The users of dippm cannot help it, so they are not told.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import (
        GATConv,
        GCNConv,
        GINConv,
        SAGEConv,
        global_add_pool,
        global_max_pool,
        global_mean_pool,
    )

__all__ = ["GATConv", "GCNConv", "GINConv", "SAGEConv", "global_add_pool", "global_max_pool", "global_mean_pool"]
