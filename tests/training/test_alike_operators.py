"""Operators that a graph network cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.training.alike_operators import find_alike

# Two graphs: a -> b -> b -> b -> b, and a -> b -> c beside a lone b.
_A, _B, _C = [1.0, 0.0], [2.0, 0.5], [2.0, 0.7]
_FEATURES = np.array([_A, _B, _B, _B, _B, _A, _B, _C, _B])
_EDGES = np.array([[0, 1, 2, 3, 5, 6], [1, 2, 3, 4, 6, 7]])


def test_classes_of_two_chains_by_hand() -> None:
    alike = find_alike(_FEATURES, _EDGES, rounds=2)
    # Before any message: a, b without input, b with one, c with one.
    assert len(alike.first) == 4
    # After one: a, the lone b, b behind a, b behind b, c behind b.
    assert len(alike.rounds[0].own) == 5
    # After two: b behind b behind a differs from b behind b behind b.
    assert len(alike.rounds[1].own) == 6
    classes = alike.classes
    assert classes[0] == classes[5]
    assert classes[1] == classes[6]
    assert classes[3] == classes[4]
    assert len(set(classes.tolist())) == 6
    assert len({classes[i] for i in (0, 1, 2, 3, 7, 8)}) == 6


def test_rounds_lead_back_to_features() -> None:
    """Own classes, followed to before any message, have the features of the operator, and so have its producers."""
    alike = find_alike(_FEATURES, _EDGES, rounds=2)
    for operator, last in enumerate(alike.classes):
        after, before = alike.rounds[1], alike.rounds[0]
        assert np.array_equal(_FEATURES[alike.first[before.own[after.own[last]]]], _FEATURES[operator])
        heard = after.producers[after.producer_offsets[last] : after.producer_offsets[last + 1]]
        sources = _EDGES[0, _EDGES[1] == operator]
        assert [_FEATURES[alike.first[before.own[each]]].tolist() for each in heard] == _FEATURES[sources].tolist()
        assert after.degrees[after.own[last]] == len(sources)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rounds", [1, 3])
def test_classes_are_those_of_the_definition(seed: int, rounds: int) -> None:
    random = np.random.default_rng(seed)
    features = random.integers(0, 2, (60, 2)).astype(np.float32)
    pairs = np.sort(random.integers(0, 60, (2, 70)), axis=0)
    edges = pairs[:, pairs[0] < pairs[1]]
    known: list[object] = [(tuple(row), int((edges[1] == node).sum())) for node, row in enumerate(features.tolist())]
    for _ in range(rounds):
        known = [
            (known[node], tuple(sorted((known[source] for source in edges[0, edges[1] == node]), key=repr)))
            for node in range(60)
        ]
    alike = find_alike(features, edges, rounds=rounds)
    pairs_found = {(a, repr(b)) for a, b in zip(alike.classes.tolist(), known, strict=True)}
    assert len(pairs_found) == len(set(alike.classes.tolist())) == len({repr(each) for each in known})
    assert len(alike.rounds[-1].own) == len(pairs_found)


def test_edges_count_as_often_as_they_occur_and_in_any_order() -> None:
    features = np.zeros((7, 1))
    features[:3, 0] = 1, 2, 1
    # Operators 3 to 6 hear {1, 2}, {2, 1}, {1, 1, 2} and {1, 2, 2}, by features.
    edges = np.array([[0, 1, 1, 2, 0, 2, 1, 0, 1, 1], [3, 3, 4, 4, 5, 5, 5, 6, 6, 6]])
    classes = find_alike(features, edges, rounds=1).classes
    assert classes[3] == classes[4]
    assert len(set(classes[3:].tolist())) == 3


def test_no_operator_and_no_edge() -> None:
    none = np.zeros((2, 0), dtype=np.int64)
    alike = find_alike(np.zeros((3, 4), dtype=np.float32), none, rounds=3)
    assert alike.classes.tolist() == [0, 0, 0]
    assert [len(each.own) for each in alike.rounds] == [1, 1, 1]
    nothing = find_alike(np.zeros((0, 4), dtype=np.float32), none, rounds=3)
    assert len(nothing.classes) == len(nothing.first) == 0


def test_many_columns_of_many_values() -> None:
    """The product of the numbers of values overflows 64 bits many times over."""
    random = np.random.default_rng(0)
    features = random.standard_normal((50, 40))
    features = np.concatenate([features, features[::-1]])
    classes = find_alike(features, np.zeros((2, 0), dtype=np.int64), rounds=1).classes
    assert len(set(classes.tolist())) == 50
    assert np.array_equal(classes[:50], classes[:49:-1])
