"""Outputs of every shape."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dippm.measuring.outputs import find_logits, floating_tensors, is_finite  # noqa: E402

ONE = torch.ones(2, 3)


@dataclass
class Wrapped:
    logits: torch.Tensor | None = None
    hidden: tuple[torch.Tensor, ...] = ()


def test_tensors_are_found_however_deep() -> None:
    output = {"a": [ONE, (ONE * 2, torch.ones(2, dtype=torch.int64))], "b": Wrapped(hidden=(ONE * 3,)), "c": None}
    assert [float(tensor.max()) for tensor in floating_tensors(output)] == [1, 2, 3]


def test_complex_numbers_are_two_real_ones() -> None:
    (parts,) = floating_tensors({"spectrum": torch.complex(ONE, ONE * 2)})
    assert parts.shape == (2, 3, 2)
    assert parts.unique().tolist() == [1, 2]
    assert find_logits(parts) is parts
    assert find_logits(torch.complex(ONE, ONE)) is None


@pytest.mark.parametrize(
    ("output", "is_found"),
    [
        (ONE, True),
        (torch.ones(2, 5, 7), True),
        (torch.ones(2, 3, 4, 4), False),
        (torch.ones(2, 1), False),
        (OrderedDict(logits=ONE), True),
        (Wrapped(logits=ONE), True),
        (Wrapped(hidden=(ONE,)), True),
        ((ONE, ONE), True),
        ((torch.ones(2, 3, 4, 4), ONE), False),
        ((torch.ones(2, 3, dtype=torch.int64), ONE), True),
        ((torch.complex(ONE, ONE), ONE), False),
        ((torch.ones(2, 3, 4, 4), ONE.clone().requires_grad_()), True),
        ((), False),
    ],
)
def test_logits(output: object, is_found: bool) -> None:
    assert (find_logits(output) is not None) is is_found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite(bad: float, dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 4, dtype=dtype)
    assert is_finite({"x": [tensor]})
    tensor[1, 2] = bad
    assert not is_finite({"x": [tensor]})


def test_nothing_to_check_is_finite() -> None:
    assert is_finite((None, torch.ones(2, dtype=torch.int64), torch.empty(0), "text", np.ones(2)))
    assert not is_finite([np.array([1.0, np.nan])])
