from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw, Sampler
from dippm.datasets.recipes.spaces.cells import sample_cells, sample_chain


@pytest.mark.parametrize("sampler", [sample_cells, sample_chain])
def test_draws(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    check_sampler(sampler, near=(0.75, 1.05))


def test_a_node_joins_two_different_states_before_it(draws: Callable[..., list[Draw]]) -> None:
    for draw in draws(sample_cells):
        for cell in (draw.arguments["normal"], draw.arguments["reduction"]):
            for node, edges in enumerate(cell):
                sources = [int(edge.partition(":")[0]) for edge in edges.split("+")]
                assert sources[0] < sources[1] < node + 2


def test_a_chain_leaves_something_of_the_image(draws: Callable[..., list[Draw]]) -> None:
    for draw in draws(sample_chain, is_small=True):
        rows, columns = draw.arguments["height"], draw.arguments["width"]
        for layer in draw.arguments["layers"]:
            kind, *numbers = layer.split(":")
            stride = int(numbers[2] if kind == "conv" else numbers[0])
            rows, columns = rows // stride, columns // stride
        assert min(rows, columns) >= 1
