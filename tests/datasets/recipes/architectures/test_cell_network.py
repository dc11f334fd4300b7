from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.cell_network import CellNetwork  # noqa: E402


def test_a_reduction_halves_the_map_and_doubles_the_channels() -> None:
    module = CellNetwork(
        normal=("0:conv3+1:skip", "1:maxpool+2:separable5"),
        reduction=("0:skip+1:dilated3", "0:avgpool+2:conv1", "2:conv5+3:dilated5"),
        stages=3,
        cells=2,
        channels=8,
        dense=(16,),
        in_chans=3,
        classes=10,
    )
    older = newer = module.stem(torch.empty(2, 3, 32, 32))
    shapes = []
    for cell in module.cells:
        older, newer = newer, cell(older, newer)
        shapes.append(tuple(newer.shape[1:]))
    assert shapes == [
        (16, 32, 32), (16, 32, 32),
        (48, 16, 16), (32, 16, 16), (32, 16, 16),
        (96, 8, 8), (64, 8, 8), (64, 8, 8),
    ]  # fmt: skip
    assert module(torch.empty(2, 3, 32, 32)).shape == (2, 10)


def test_each_operation_of_a_cell_is_the_one_named(parameters: Callable[[torch.nn.Module], int]) -> None:
    def weights(operation: str) -> int:
        cell = (f"0:{operation}+1:{operation}",)
        network = CellNetwork(
            normal=cell, reduction=cell, stages=1, cells=1, channels=8, dense=(), in_chans=3, classes=10
        )
        return parameters(network.cells[0].nodes)

    norm = 2 * 8
    expected = {
        "conv1": 64 + norm,
        "conv3": 9 * 64 + norm,
        "conv5": 25 * 64 + norm,
        "separable3": 2 * (9 * 8 + 64 + 2 * norm),
        "separable5": 2 * (25 * 8 + 64 + 2 * norm),
        "dilated3": 9 * 8 + 64 + 2 * norm,
        "dilated5": 25 * 8 + 64 + 2 * norm,
        "maxpool": 0,
        "avgpool": 0,
        "skip": 0,
    }
    assert {operation: weights(operation) / 2 for operation in expected} == expected
