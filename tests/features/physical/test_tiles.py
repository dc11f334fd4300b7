from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.features.physical.columns import SIZES
from dippm.features.physical.tiles import tile_columns, wave_columns
from dippm.graph import OpKind

_CONV = {"stride": (1, 1), "dilation": (1, 1), "padding": (1, 1)}
A100 = find_device("A100")


def _columns(graph: Any, *batches: int) -> dict[str, np.ndarray]:
    """Columns of the last node."""
    last = np.array([len(graph.nodes) - 1])
    columns, tiles = tile_columns(Workload.from_graph(graph).at(batches), last)
    return {name: values[:, 0] for name, values in (columns | wave_columns(tiles, A100)).items()}


def test_sizes_of_a_linear_layer(builder: Any) -> None:
    n = builder.N
    builder.node(OpKind.LINEAR, [builder.input(n, 96), builder.weight(1000, 96)], n, 1000)
    found = _columns(builder.graph(), 1, 256)
    for name, sizes in zip(SIZES, ((1, 1), (1, 256), (1000, 1000), (96, 96)), strict=True):
        assert np.exp(found[name]) == pytest.approx(sizes)
    assert found["rows_by_8"].tolist() == [False, True]
    assert found["depth_by_8"].all()
    # 128 x 128 tiles: 1 x 8 of them, and 2 x 8, over the multiprocessors.
    tiles = np.array([8, 16]) / A100.sm_count
    assert np.exp(found["waves"]) == pytest.approx(tiles)
    assert found["last_wave"] == pytest.approx(tiles / np.ceil(tiles))


def test_sizes_of_a_grouped_convolution(builder: Any) -> None:
    n = builder.N
    inputs = [builder.input(n, 32, 14, 14), builder.weight(64, 8, 3, 3)]
    builder.node(OpKind.CONV, inputs, n, 64, 14, 14, kernel=(3, 3), groups=4, **_CONV)
    found = _columns(builder.graph(), 2)
    sizes = {name: float(np.exp(found[name][0])) for name in SIZES}
    assert sizes == pytest.approx({"products": 4, "rows": 2 * 14 * 14, "columns": 16, "depth": 8 * 9})


def test_what_is_no_contraction_has_sizes_of_one(builder: Any) -> None:
    n = builder.N
    builder.node(OpKind.SOFTMAX, [builder.input(n, 6, 100)], n, 6, 100, axes=(2,))
    found = _columns(builder.graph(), 4)
    assert {name: float(found[name][0]) for name in SIZES} == dict.fromkeys(SIZES, 0.0)
    assert np.exp(found["row_width"]) == pytest.approx([100])
    assert found["window"] == pytest.approx([0])
