"""Outputs with a loss of their own, by what autograd recorded."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.measuring.trained_outputs import find_trained_outputs  # noqa: E402

X = torch.ones(2, 8)


def test_heads_count_and_what_leads_to_the_scores_does_not() -> None:
    body, scores, boxes = nn.Linear(8, 8), nn.Linear(8, 5), nn.Linear(8, 4)
    hidden = body(X)
    others = [hidden, boxes(hidden), hidden.softmax(1).mean(0), X]
    assert find_trained_outputs(scores(hidden), others) == [1]


def test_a_layer_used_again_counts_for_each_use() -> None:
    layer = nn.Linear(8, 8)
    steps = [X]
    for _ in range(3):
        steps.append(layer(steps[-1]))
    assert find_trained_outputs(steps[1], steps[2:]) == [0, 1]
    assert find_trained_outputs(steps[3], steps[1:3]) == []


def test_a_copy_of_a_weight_that_autocast_keeps_serves_many_uses() -> None:
    layer = nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = layer(X), layer(2 * X)
    assert find_trained_outputs(first, [second]) == [0]


def test_what_is_made_of_rows_that_were_looked_up_is_no_use_of_the_table() -> None:
    table, scores = nn.Embedding(10, 8), nn.Linear(8, 5)
    hidden = table(torch.ones(2, 3, dtype=torch.int64))
    assert find_trained_outputs(scores(hidden), [hidden.relu(), hidden.mean(1)]) == []
    assert find_trained_outputs(scores(X), [hidden.relu()]) == [0]


def test_weights_that_are_not_trained_do_not_count() -> None:
    body, frozen = nn.Linear(8, 8), nn.Linear(8, 4).requires_grad_(False)
    hidden = body(X)
    assert find_trained_outputs(hidden.sum(1, keepdim=True), [frozen(hidden)]) == []
