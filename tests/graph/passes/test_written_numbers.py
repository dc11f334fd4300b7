from __future__ import annotations

import math

import pytest
import torch

from dippm.graph.passes.written_numbers import is_about


@pytest.mark.parametrize("known", [math.sqrt(2.0 / math.pi), 0.044715, 1.0 / 6.0, 1.702, -3.0])
def test_a_number_is_known_in_every_format(known: float) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert is_about(float(torch.tensor(known, dtype=dtype)), known)


@pytest.mark.parametrize("number", [0.79, 0.806, -0.7979, 0.0])
def test_another_number_is_another(number: float) -> None:
    assert not is_about(number, math.sqrt(2.0 / math.pi))
