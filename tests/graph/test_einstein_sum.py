from __future__ import annotations

import numpy as np
import pytest

from dippm.graph import Dim, Shape
from dippm.graph.einstein_sum import Rearrangement, plan_contraction, product_of

BATCH = 3
SIZES = {"b": Dim(1, 0), "c": Dim(2, 1), "h": Dim(0, 4), "t": Dim(0, 5), "d": Dim(0, 6), "e": Dim(0, 7), "o": Dim(0, 1)}


def shape_of(term: str) -> Shape:
    return tuple(SIZES[letter] for letter in term)


def run(x: np.ndarray, steps: tuple[Rearrangement, ...]) -> np.ndarray:
    for step in steps:
        shape = tuple(dim.at(BATCH) for dim in step.shape)
        if step.function == "transpose":
            x = x.transpose(step.perm)
            assert x.shape == shape
        else:
            x = x.reshape(shape)
    return x


@pytest.mark.parametrize(
    "equation",
    [
        "bthd,hde->bthe",
        "btd,de->bte",
        "bhtd,bhed->bhte",
        "bth,th->bt",
        "td,btd->b",
        "bd,bd->",
        "boht,bhod->btd",
        "hde,bthd->ebth",
        "bt,ht->bht",
        "htd,tdb->bh",
    ],
)
def test_the_layout_computes_the_sum(equation: str) -> None:
    left, right = equation.partition("->")[0].split(",")
    generator = np.random.default_rng(0)
    a, b = (generator.random(tuple(dim.at(BATCH) for dim in shape_of(term))) for term in (left, right))
    plan = plan_contraction(equation, shape_of(left), shape_of(right))
    assert plan is not None
    product = run(a, plan.left) @ run(b, plan.right)
    assert product.shape == tuple(dim.at(BATCH) for dim in plan.product)
    assert np.allclose(run(product, plan.result), np.einsum(equation, a, b))


def test_what_both_keep_is_stacked() -> None:
    plan = plan_contraction("bthd,hde->bthe", shape_of("bthd"), shape_of("hde"))
    assert plan is not None
    assert [str(dim) for dim in plan.product] == ["4", "5N", "7"]
    assert [step.function for step in plan.left] == ["unsqueeze", "transpose", "transpose", "reshape"]
    assert [step.function for step in plan.right] == ["unsqueeze", "unsqueeze", "transpose", "transpose", "reshape"]


def test_dimensions_that_both_grow_do_not_join() -> None:
    assert plan_contraction("bch,hd->bcd", shape_of("bch"), shape_of("hd")) is None
    assert plan_contraction("bh,ch->bc", shape_of("bh"), shape_of("ch")) is not None


def test_products_of_dimensions() -> None:
    assert product_of([]) == Dim(0, 1)
    assert product_of([Dim(0, 3), Dim(2, 1), Dim(0, 5)]) == Dim(30, 15)
    assert product_of([Dim(1, 0), Dim(1, 0)]) is None
