"""ReLU and dropout in one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.models.dropped_rectifier import DroppedRectifier  # noqa: E402

TYPES = [torch.float32, torch.bfloat16, torch.float64]


def test_it_only_rectifies_where_nothing_is_to_be_dropped():
    values = torch.linspace(-2.0, 2.0, 9)
    for module in (DroppedRectifier(0.5).eval(), DroppedRectifier(0.0).train()):
        torch.testing.assert_close(module(values), values.clamp(min=0.0))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_share_is_dropped_and_the_rest_scaled(dtype):
    torch.manual_seed(0)
    values = torch.ones(999, 333, dtype=dtype)
    result = DroppedRectifier(0.25).train()(values)
    kept = result != 0
    # A quarter of 256 draws: the scale is 4/3, and 332,667 values leave 0.2 % of chance.
    torch.testing.assert_close(result[kept], torch.full_like(result[kept], 4 / 3))
    assert kept.double().mean().item() == pytest.approx(0.75, abs=0.004)
    # Neither whole rows nor whole columns.
    assert kept.double().mean(dim=0).std() > 0.005
    assert kept.double().mean(dim=1).std() > 0.01


@pytest.mark.parametrize("share", [0.05, 0.001])
def test_a_share_between_draws_is_met_on_average(share):
    torch.manual_seed(0)
    module = DroppedRectifier(share).train()
    results = [module(torch.ones(20_000)) for _ in range(1000)]
    assert sum((each == 0).double().mean().item() for each in results) / 1000 == pytest.approx(share, abs=2e-4)
    assert sum(each.double().mean().item() for each in results) / 1000 == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_flow_where_values_do(dtype):
    torch.manual_seed(0)
    values = torch.randn(64, 65, dtype=dtype, requires_grad=True)
    result = DroppedRectifier(0.5).train()(values)
    told = torch.randn(64, 65, dtype=dtype)
    result.backward(told)
    torch.testing.assert_close(values.grad, torch.where(result > 0, 2.0 * told, 0.0))
    assert ((result == 0) & (values > 0)).any()


def test_every_place_of_a_word_is_dropped_alike():
    torch.manual_seed(0)
    kept = DroppedRectifier(0.5).train()(torch.ones(50_000, 8)) > 0
    assert kept.double().mean(dim=0).tolist() == pytest.approx([0.5] * 8, abs=0.015)
    pairs = torch.corrcoef(kept.double().T) - torch.eye(8)
    assert pairs.abs().max() < 0.03


def test_the_seed_decides_what_is_dropped():
    def drawn(seed):
        torch.manual_seed(seed)
        return DroppedRectifier(0.5).train()(torch.ones(7, 3))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_next_to_all_may_be_dropped():
    torch.manual_seed(0)
    result = DroppedRectifier(0.999999).train()(torch.ones(100, 100))
    assert torch.isfinite(result).all()
