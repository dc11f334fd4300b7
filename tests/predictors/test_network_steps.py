from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dippm.features.physical import Messages
from dippm.predictors import network_steps
from dippm.predictors.network_steps import Layer, Neighbours, begin, listen, multiply

needs_compiled = pytest.mark.skipif(not network_steps._IS_COMPILED, reason="dippm was installed without a C compiler")
WIDTHS = (4, 8, 16)


def _has(width: int) -> bool:
    try:
        network_steps._network.use(width)
    except ValueError:
        return False
    return True


def _use_widest() -> None:
    for width in WIDTHS:
        _has(width)


@pytest.fixture(params=["numpy", *WIDTHS])
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each way in which a step is worked out."""
    if request.param == "numpy":
        monkeypatch.setattr(network_steps, "_IS_COMPILED", False)
        yield
        return
    if not network_steps._IS_COMPILED or not _has(request.param):
        pytest.skip("not on this processor")
    yield
    _use_widest()


def _draw(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


def _neighbours(random: np.random.Generator, *, count: int, edges: int) -> Neighbours:
    target = np.sort(random.integers(count, size=edges))
    source = random.integers(count, size=edges)
    return Neighbours.of(Messages(source=source, target=target, weight=_draw(random, edges)), count=count)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("count", [0, 1, 3, 12, 13, 64, 131])
@pytest.mark.parametrize("columns", [1, 2, 16, 17, 64])
def test_a_layer_of_each_member(count: int, columns: int) -> None:
    random = np.random.default_rng(count)
    weights, bias = _draw(random, 2, 7, columns), _draw(random, 2, columns)
    shared, own = _draw(random, 3, count, 7), _draw(random, 3, 2, count, 7)
    result = multiply(shared, Layer.of(weights, bias))
    assert result.shape == (3, 2, count, columns)
    assert result.dtype == np.float32
    assert result == pytest.approx(np.einsum("bnk,mkj->bmnj", shared, weights) + bias[:, None], abs=1e-4)
    expected = np.einsum("bmnk,mkj->bmnj", own, weights) + bias[:, None]
    assert multiply(own, Layer.of(weights, bias)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize("count", [0, 1, 13, 131])
@pytest.mark.parametrize("columns", [1, 16, 20])
def test_a_first_layer_of_which_a_part_is_known(count: int, columns: int) -> None:
    random = np.random.default_rng(count)
    values, weights, bias = _draw(random, 3, count, 7), _draw(random, 2, 7, columns), _draw(random, 2, columns)
    known, number = _draw(random, 2, 5, columns), random.integers(5, size=count)
    result = begin(values, Layer.of(weights, bias), known, number)
    assert result.shape == (3, 2, count, columns)
    assert result.dtype == np.float32
    whole = np.einsum("bnk,mkj->bmnj", values, weights) + bias[:, None] + known[:, number]
    assert result == pytest.approx(np.maximum(whole, 0.0), abs=1e-4)


@pytest.mark.usefixtures("language")
@pytest.mark.parametrize(("count", "edges"), [(1, 0), (1, 3), (5, 0), (13, 20), (70, 400), (3, 300)])
@pytest.mark.parametrize("width", [1, 16, 20])
def test_a_round_of_messages(count: int, edges: int, width: int) -> None:
    random = np.random.default_rng(edges)
    values, bias = _draw(random, 3, 2, count, width), _draw(random, 2, width)
    weights = _draw(random, 2, 3 * width, width)
    producers, consumers = (_neighbours(random, count=count, edges=edges) for _ in range(2))
    told = np.zeros((3, 2, count, 3 * width), dtype=np.float64)
    for first, heard in ((0, producers), (width, consumers)):
        for own in range(count):
            for edge in range(heard.start[own], heard.start[own + 1]):
                told[:, :, own, first : first + width] += heard.weight[edge] * values[:, :, heard.source[edge]]
    told[..., 2 * width :] = values
    expected = values + np.maximum(np.einsum("bmnk,mkj->bmnj", told, weights) + bias[:, None], 0.0)
    result = listen(values, producers, consumers, Layer.of(weights, bias))
    assert result.dtype == np.float32
    assert result == pytest.approx(expected, rel=1e-4, abs=1e-3)


@needs_compiled
@pytest.mark.parametrize("width", WIDTHS)
def test_an_operator_gets_the_same_alone_and_beside_others(width: int) -> None:
    if not _has(width):
        pytest.skip("not on this processor")
    random = np.random.default_rng(width)
    layer = Layer.of(_draw(random, 2, 141, 64), _draw(random, 2, 64))
    values = _draw(random, 1, 100, 141)
    together = multiply(values, layer)
    for first, stop in ((0, 1), (7, 20), (99, 100), (3, 100)):
        assert (multiply(values[:, first:stop], layer) == together[:, :, first:stop]).all()
    known, number = _draw(random, 2, 9, 64), random.integers(9, size=100)
    begun = begin(values, layer, known, number)
    assert (begin(values[:, 7:20], layer, known, number[7:20]) == begun[:, :, 7:20]).all()
    _use_widest()


def test_values_need_not_lie_side_by_side() -> None:
    random = np.random.default_rng(1)
    values, weights, bias = _draw(random, 40, 2, 9), _draw(random, 1, 9, 4), _draw(random, 1, 4)
    turned, of_weights = values.transpose(1, 0, 2), np.asfortranarray(weights)
    expected = multiply(np.ascontiguousarray(turned), Layer.of(weights, bias))
    assert (multiply(turned, Layer.of(of_weights, bias)) == expected).all()


@pytest.mark.usefixtures("language")
def test_operators_that_hear_need_not_lie_side_by_side() -> None:
    random = np.random.default_rng(3)
    values, weights, bias = _draw(random, 4, 3, 5, 8), _draw(random, 3, 24, 8), _draw(random, 3, 8)
    heard = _neighbours(random, count=5, edges=9)
    expected = listen(values, heard, heard, Layer.of(weights, bias))
    for turned, of_weights in ((np.asfortranarray(values), weights), (values, np.asfortranarray(weights))):
        assert listen(turned, heard, heard, Layer.of(of_weights, bias)) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def _call(**changed: Any) -> None:
    random = np.random.default_rng(2)
    start = np.array([0, 1, 3])
    given: dict[str, Any] = {
        "values": _draw(random, 4, 2, 8),
        "producers_start": start,
        "producers_source": np.array([1, 0, 1]),
        "producers_weight": _draw(random, 3),
        "consumers_start": start,
        "consumers_source": np.array([1, 0, 1]),
        "consumers_weight": _draw(random, 3),
        "panels": _draw(random, 2, 1, 24, 16),
        "starts": _draw(random, 2, 1, 16),
        "result": _draw(random, 4, 2, 8),
    } | changed
    network_steps._network.listen(*given.values())


@needs_compiled
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("producers_start", np.array([0, 3, 1])),
        ("producers_start", np.array([0, 1, 4])),
        ("producers_start", np.array([1, 1, 3])),
        ("producers_start", np.array([0, 3])),
        ("consumers_source", np.array([1, 0, 2])),
        ("consumers_source", np.array([1, -1, 0])),
        ("consumers_weight", np.zeros(2, dtype=np.float32)),
        ("values", np.zeros((3, 2, 8), dtype=np.float32)),
        ("values", np.zeros((4, 3, 8), dtype=np.float32)),
        ("values", np.zeros((4, 2, 7), dtype=np.float32)),
        ("panels", np.zeros((2, 1, 8, 16), dtype=np.float32)),
        ("panels", np.zeros((2, 2, 24, 16), dtype=np.float32)),
        ("panels", np.zeros((2, 1, 24, 8), dtype=np.float32)),
        ("panels", np.zeros((0, 1, 24, 16), dtype=np.float32)),
        ("starts", np.zeros((1, 1, 16), dtype=np.float32)),
        ("starts", np.zeros((2, 2, 16), dtype=np.float32)),
        ("starts", np.zeros((2, 1, 8), dtype=np.float32)),
        ("result", np.zeros((5, 2, 8), dtype=np.float32)),
        ("result", np.zeros((4, 2, 17), dtype=np.float32)),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, value: np.ndarray) -> None:
    _call()
    with pytest.raises(ValueError, match="sizes that fit"):
        _call(**{name: value})


@needs_compiled
@pytest.mark.parametrize("name", ["values", "producers_source", "consumers_weight", "panels", "starts"])
def test_a_result_within_what_is_read_is_refused(name: str) -> None:
    shape, dtype = {
        "values": ((4, 2, 8), np.float32),
        "producers_source": ((3,), np.int64),
        "consumers_weight": ((3,), np.float32),
        "panels": ((2, 1, 24, 16), np.float32),
        "starts": ((2, 1, 16), np.float32),
    }[name]
    memory = np.zeros(1000, dtype=np.float32)
    read = memory[32:].view(dtype)[: int(np.prod(shape))].reshape(shape)
    _call(**{name: read})
    with pytest.raises(ValueError, match="shares no memory"):
        _call(**{name: read, "result": memory[:64].reshape(4, 2, 8)})


@needs_compiled
def test_sizes_of_a_layer_that_do_not_fit_are_refused() -> None:
    good = {
        "values": np.zeros((3, 5, 7), dtype=np.float32),
        "panels": np.zeros((2, 1, 7, 16), dtype=np.float32),
        "starts": np.zeros((2, 1, 16), dtype=np.float32),
        "result": np.zeros((6, 5, 4), dtype=np.float32),
    }
    network_steps._network.multiply(*good.values())
    for name, shape in (("values", (2, 5, 7)), ("values", (3, 5, 6)), ("values", (3, 4, 7)), ("result", (6, 5, 17))):
        with pytest.raises(ValueError, match="sizes that fit"):
            network_steps._network.multiply(*(good | {name: np.zeros(shape, dtype=np.float32)}).values())


@needs_compiled
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("values", np.zeros((6, 5, 7), dtype=np.float32)),
        ("values", np.zeros((3, 4, 7), dtype=np.float32)),
        ("panels", np.zeros((2, 1, 6, 16), dtype=np.float32)),
        ("panels", np.zeros((2, 0, 7, 16), dtype=np.float32)),
        ("starts", np.zeros((2, 1, 12), dtype=np.float32)),
        ("known", np.zeros((1, 3, 4), dtype=np.float32)),
        ("known", np.zeros((2, 3, 5), dtype=np.float32)),
        ("known", np.zeros((2, 2, 4), dtype=np.float32)),
        ("known", np.zeros((2, 0, 4), dtype=np.float32)),
        ("number", np.array([0, 1, 2, -1, 0])),
        ("number", np.array([0, 1, 2, 3, 0])),
        ("number", np.array([0, 1, 2, 1])),
        ("result", np.zeros((5, 5, 4), dtype=np.float32)),
    ],
)
def test_parts_of_a_first_layer_that_do_not_fit_are_refused(name: str, value: np.ndarray) -> None:
    given = {
        "values": np.zeros((3, 5, 7), dtype=np.float32),
        "panels": np.zeros((2, 1, 7, 16), dtype=np.float32),
        "starts": np.zeros((2, 1, 16), dtype=np.float32),
        "known": np.zeros((2, 3, 4), dtype=np.float32),
        "number": np.array([0, 1, 2, 1, 0]),
        "result": np.zeros((6, 5, 4), dtype=np.float32),
    }
    network_steps._network.begin(*given.values())
    with pytest.raises(ValueError, match="sizes that fit"):
        network_steps._network.begin(*(given | {name: value}).values())


@needs_compiled
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("values", np.zeros((4, 2, 8))),
        ("values", np.zeros((4, 8), dtype=np.float32)),
        ("producers_source", np.zeros(3, dtype=np.int32)),
        ("producers_source", np.zeros(3)),
        ("panels", b"1234"),
    ],
)
def test_only_arrays_of_their_format_are_taken(name: str, value: Any) -> None:
    with pytest.raises(TypeError):
        _call(**{name: value})


@needs_compiled
def test_a_processor_has_no_other_widths() -> None:
    with pytest.raises(ValueError, match="5 numbers at a time"):
        network_steps._network.use(5)
    with pytest.raises(TypeError):
        network_steps._network.multiply(np.zeros((1, 1, 1), dtype=np.float32))


def test_biases_of_another_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="make no layer"):
        Layer.of(np.zeros((2, 7, 4), dtype=np.float32), np.zeros((2, 1), dtype=np.float32))
