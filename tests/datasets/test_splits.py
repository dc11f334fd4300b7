import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dippm.datasets.splits import Split, leave_family_out, split_by_graph
from dippm.datasets.store.label import Label
from dippm.errors import UsageError

Maker = Callable[..., Label]
SETTINGS = settings(max_examples=40, deadline=None)

drawn_labels = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([1, 8]), st.sampled_from(["", "g0", "g1", "g2", "g3"])),
    max_size=60,
)


def parts(split: Split) -> tuple[tuple[Label, ...], ...]:
    return split.training, split.validation, split.test


def made(drawn: list[tuple[int, int, str]], make_label: Maker) -> list[Label]:
    return [
        make_label(model, batch=batch, graph_hash=graph, family=f"family {model % 3}") for model, batch, graph in drawn
    ]


@SETTINGS
@given(drawn=drawn_labels, seed=st.integers(0, 1000))
def test_no_graph_and_no_model_is_in_two_parts(make_label: Maker, drawn: list[tuple[int, int, str]], seed: int) -> None:
    labels = made(drawn, make_label)
    split = split_by_graph(labels, seed=seed)
    assert sorted(label.key for part in parts(split) for label in part) == sorted(label.key for label in labels)
    for name in (lambda label: label.recipe.model_key, lambda label: label.graph_hash or label.recipe.model_key):
        seen = [{name(label) for label in part} for part in parts(split)]
        assert not seen[0] & seen[1]
        assert not seen[0] & seen[2]
        assert not seen[1] & seen[2]


@SETTINGS
@given(drawn=drawn_labels, seed=st.integers(0, 1000))
def test_the_order_of_the_labels_does_not_matter(
    make_label: Maker, drawn: list[tuple[int, int, str]], seed: int
) -> None:
    labels = made(drawn, make_label)
    again = labels.copy()
    random.Random(seed).shuffle(again)  # noqa: S311
    for one, other in zip(
        parts(split_by_graph(labels, seed=seed)), parts(split_by_graph(again, seed=seed)), strict=True
    ):
        assert sorted(label.key for label in one) == sorted(label.key for label in other)


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.9, 0.0, 0.1), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_come_in_proportion_in_every_family(
    make_label: Maker, fractions: tuple[float, float, float], seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311
    labels = [
        make_label(model, batch=batch, family=f"family {model % 4}")
        for model in range(400)
        for batch in range(1, draw.randint(2, 9))
    ]
    split = split_by_graph(labels, fractions=fractions, seed=seed)
    for family in range(4):
        of_family = [[label for label in part if label.recipe.family == f"family {family}"] for part in parts(split)]
        total = sum(map(len, of_family))
        for part, fraction in zip(of_family, fractions, strict=True):
            assert abs(len(part) - fraction * total) <= 24
            assert fraction > 0 or not part


def test_the_seed_decides(make_label: Maker) -> None:
    labels = [make_label(model) for model in range(100)]
    assert split_by_graph(labels, seed=1) == split_by_graph(labels, seed=1)
    assert set(split_by_graph(labels, seed=1).test) != set(split_by_graph(labels, seed=2).test)


def test_models_linked_by_way_of_others_stay_together(make_label: Maker) -> None:
    # model 1 - graph a - model 2 - graph b - model 3
    chain = [
        make_label(1, graph_hash="a"),
        make_label(2, batch=1, graph_hash="a"),
        make_label(2, batch=2, graph_hash="b"),
        make_label(3, graph_hash="b"),
    ]
    for seed in range(20):
        split = split_by_graph([*chain, *(make_label(10 + other) for other in range(10))], seed=seed)
        assert any(set(chain) <= set(part) for part in parts(split))


@pytest.mark.parametrize("fractions", [(0.5, 0.5, 0.5), (-0.1, 0.6, 0.5), (1.0, 0.0), (float("nan"), 0.5, 0.5)])
def test_fractions_that_make_no_sense(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError) as caught:
        split_by_graph([], fractions=fractions)
    assert caught.value.code == "split.fractions"


def test_leaving_a_family_out_leaves_its_graphs_out(make_label: Maker) -> None:
    held = [make_label(1, family="vgg", graph_hash="a"), make_label(2, family="vgg")]
    twins = [make_label(3, family="resnet", graph_hash="a"), make_label(2, family="resnet", batch=3)]
    others = [make_label(4, family="resnet"), make_label(5, family="vit", graph_hash="b")]
    split = leave_family_out([*held, *twins, *others], {"vgg"})
    assert split.test == tuple(held)
    assert split.training == tuple(others)
    assert split.validation == ()


def test_leaving_out_what_is_not_there_or_all_there_is(make_label: Maker) -> None:
    labels = [make_label(1), make_label(2)]
    for family, empty in (("vgg", "test"), ("resnet", "training")):
        with pytest.raises(UsageError, match=f"family {family} leaves no labels for {empty}") as caught:
            leave_family_out(labels, {family})
        assert caught.value.code == "split.empty"
