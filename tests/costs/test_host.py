from typing import Any

from dippm.costs.host import host_dispatch_us
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind


def test_every_kind_has_a_host_time(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    for kind in OpKind:
        builder.node(kind, [x], builder.N, 4)
    times = dict(zip(OpKind, host_dispatch_us(GraphSizes.from_graph(builder.graph())), strict=True))
    assert min(times.values()) > 0
    assert times[OpKind.VIEW] < times[OpKind.ADD] < times[OpKind.CONV]
