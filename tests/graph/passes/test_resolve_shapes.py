from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.errors import UsageError
from dippm.graph import Dim, OpKind, fixed_shape
from dippm.graph.passes.resolve_shapes import resolve_shapes


def test_number_in_the_place_of_the_batch(sketch) -> None:
    graph = sketch.input("x", Dim(2, 1), 4).node("y", OpKind.RELU, "x").graph("y")
    resolved = resolve_shapes(graph, 8)
    assert resolved.tensors[0].shape == fixed_shape(17, 4)
    assert resolved.fixed_batch == 8


def test_stated_storage(sketch) -> None:
    graph = sketch.input("x", Dim(1, 0)).node("y", OpKind.RELU, "x").graph("y")
    tensors = (replace(graph.tensors[0], storage_bytes_per_sample=8, storage_bytes_fixed=100), *graph.tensors[1:])
    resolved = resolve_shapes(replace(graph, tensors=tensors), 5)
    assert (resolved.tensors[0].storage_bytes_per_sample, resolved.tensors[0].storage_bytes_fixed) == (0, 140)


@pytest.mark.parametrize(("fixed", "batch", "code"), [(None, 0, "batch.invalid"), (4, 8, "batch.fixed")])
def test_batches_that_do_not_hold(sketch, fixed, batch, code) -> None:
    graph = replace(sketch.input("x", Dim(1, 0)).node("y", OpKind.RELU, "x").graph("y"), fixed_batch=fixed)
    with pytest.raises(UsageError) as caught:
        resolve_shapes(graph, batch)
    assert caught.value.code == code
