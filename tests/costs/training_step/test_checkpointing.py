"""Which nodes are computed again, and what that saves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.costs import Workload
from dippm.costs.training_step.training_graph import Phase
from dippm.errors import UnsupportedError
from dippm.graph import OpKind, TensorRole


def test_checkpointing_computes_each_block_again(blocks, train, kinds, live):
    graph = blocks()
    plain, checkpointed = (train(graph, is_checkpointed=value) for value in (False, True))
    assert kinds(plain, Phase.BACKWARD).count(OpKind.GELU) == 0
    assert kinds(checkpointed, Phase.BACKWARD).count(OpKind.GELU) == 4
    works = [Workload.from_graph(training.graph).at([1024]).macs.sum() for training in (plain, checkpointed)]
    assert works[1] - works[0] == 4 * 2 * 1024 * 256 * 256
    # Each block keeps what flows into it instead of its three results.
    peaks = [live(training, 1024) for training in (plain, checkpointed)]
    assert peaks[1].activation_bytes[0] < 0.65 * peaks[0].activation_bytes[0]
    gradients = [
        sum(t.role is TensorRole.GRADIENT for t in training.graph.tensors) for training in (plain, checkpointed)
    ]
    assert gradients == [9, 9]


def test_checkpointing_needs_numbered_blocks(network, train):
    with pytest.raises(UnsupportedError) as caught:
        train(network(), is_checkpointed=True)
    assert caught.value.code == "training.no_blocks"


def test_a_single_layer_is_no_block(blocks, train, kinds):
    graph = blocks()
    flat = replace(graph, nodes=tuple(replace(n, scope=f"features.{i}") for i, n in enumerate(graph.nodes)))
    with pytest.raises(UnsupportedError):
        train(flat, is_checkpointed=True)
    whole = replace(graph, nodes=tuple(replace(n, scope=f"0.{n.scope}") for n in graph.nodes))
    assert kinds(train(whole, is_checkpointed=True), Phase.BACKWARD).count(OpKind.GELU) == 4
