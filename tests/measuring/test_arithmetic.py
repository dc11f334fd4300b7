"""Precisions as PyTorch's switches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.costs.precision import Precision  # noqa: E402
from dippm.measuring.arithmetic import autocast, backend_switches, stored_dtype, whole_model_dtype  # noqa: E402


@pytest.mark.parametrize(
    ("precision", "cudnn", "matmul"),
    [
        (Precision.FP32, True, False),
        (Precision.FP32_STRICT, False, False),
        (Precision.TF32, True, True),
        (Precision.AMP, True, False),
        (Precision.BF16, True, False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*TF32.*")
def test_switches(precision: Precision, cudnn: bool, matmul: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> tuple[bool, bool, bool]:
        backends = torch.backends
        return backends.cudnn.benchmark, backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = now()
    with backend_switches(precision):
        assert now() == (False, cudnn, matmul)
    assert now() == before


@pytest.mark.parametrize(
    ("precision", "output"),
    [(Precision.AMP, torch.float16), (Precision.AMP_BF16, torch.bfloat16), (Precision.FP32, torch.float32)],
)
def test_autocast(precision: Precision, output: torch.dtype) -> None:
    with autocast(precision, "cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == output
    assert whole_model_dtype(precision) is None


def test_whole_models() -> None:
    assert whole_model_dtype(Precision.FP16) == torch.float16
    assert whole_model_dtype(Precision.BF16) == torch.bfloat16


def test_most_weights_say_what_a_module_is_stored_in() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    assert stored_dtype(module) is None
    module[0].bfloat16()
    assert stored_dtype(module) is torch.bfloat16
    module[1].half()
    assert stored_dtype(module) is torch.bfloat16
    assert stored_dtype(torch.nn.ReLU()) is None
