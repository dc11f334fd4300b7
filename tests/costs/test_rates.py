import pytest

from dippm.costs.rates import Rates
from dippm.errors import DippmError


@pytest.mark.parametrize("value", [-0.1, float("nan"), 1e6])
def test_a_rate_that_cannot_be_is_refused(value: float) -> None:
    with pytest.raises(DippmError, match="tensor_gemm"):
        Rates(tensor_gemm=value)
