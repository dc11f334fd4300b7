"""Modules as users give them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import UsageError  # noqa: E402
from dippm.frontends.torch.given_module import check_initialised, unwrapped  # noqa: E402


def test_wrappers_are_taken_off_one_after_the_other_and_told_of() -> None:
    inner = nn.Linear(2, 2)
    module, told = unwrapped(nn.DataParallel(nn.DataParallel(inner)))
    assert module is inner
    assert [text.partition(" ")[0] for text in told] == ["DataParallel", "DataParallel"]
    assert unwrapped(inner) == (inner, ())


def test_a_lazy_module_that_was_never_called_is_refused_by_its_weights() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(UsageError, match=r"0\.weight") as caught:
        check_initialised(lazy, source="net")
    assert caught.value.code == "torch.lazy"
    lazy(torch.zeros(1, 5))
    check_initialised(lazy, source="net")
