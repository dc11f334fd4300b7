from __future__ import annotations

import random

import pytest

from dippm.graph.passes import strides


def test_row_order() -> None:
    assert strides.contiguous((2, 3, 4)) == (12, 4, 1)
    assert strides.is_contiguous((2, 3, 4), (12, 4, 1))
    assert strides.is_contiguous((2, 1, 4), (4, 99, 1))
    assert not strides.is_contiguous((2, 3, 4), (12, 1, 3))


def test_channels_last() -> None:
    assert strides.channels_last((2, 3, 4, 5)) == (60, 1, 15, 3)


@pytest.mark.parametrize("seed", range(40))
def test_views_agree_with_pytorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = random.Random(seed)  # noqa: S311 (shapes, not secrets)
    for _ in range(20):
        shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(1, 5))]
        tensor = torch.empty(shape).permute(rng.sample(range(len(shape)), len(shape)))
        if rng.random() < 0.3 and tensor.shape[0] > 1:
            tensor = tensor[::2]
        if rng.random() < 0.3:
            tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
        rest, target = tensor.numel(), []
        while rest > 1:
            divisor = rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
            target.append(divisor)
            rest //= divisor
        try:
            expected = tensor.view(target).stride()
        except RuntimeError:
            expected = None
        found = strides.view(tuple(tensor.shape), tensor.stride(), tuple(target))
        if expected is None or found is None:
            assert found == expected
        else:
            assert all(size == 1 or a == b for size, a, b in zip(target, found, expected, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_results_of_elementwise_operators_agree_with_pytorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = random.Random(seed)  # noqa: S311 (shapes, not secrets)
    for _ in range(20):
        rank = rng.randrange(1, 5)
        shape = [rng.choice([1, 2, 3, 5]) for _ in range(rank)]
        operands = []
        for _ in range(rng.randrange(1, 4)):
            order = rng.sample(range(rank), rank)
            dense = torch.empty([shape[axis] for axis in order]).permute([order.index(axis) for axis in range(rank)])
            if rng.random() < 0.3:
                dense = dense[tuple(slice(0, 1) if rng.random() < 0.4 else slice(None) for _ in shape)]
            operands.append(dense)
        result = operands[0].add(1) if len(operands) == 1 else operands[0].add(operands[1])
        used = operands[:2]
        found = strides.elementwise(tuple(result.shape), [(tuple(t.shape), t.stride()) for t in used])
        pairs = zip(result.shape, found, result.stride(), strict=True)
        assert all(size == 1 or a == b for size, a, b in pairs), [(t.shape, t.stride()) for t in used]


def test_an_operand_that_cannot_be_broadcast_tells_nothing() -> None:
    wide, fitting = ((1, 2, 3, 4), (24, 12, 4, 1)), ((3, 4), (1, 3))
    assert strides.elementwise((3, 4), [wide, fitting]) == strides.elementwise((3, 4), [fitting])
    assert strides.elementwise((3, 4), [wide]) == (4, 1)
