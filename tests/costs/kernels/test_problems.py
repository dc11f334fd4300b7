import numpy as np
import pytest

from dippm.costs.kernels import ConvProblem, ElementwiseProblem, GemmProblem, RowProblem
from dippm.errors import UsageError


def test_gemm_counts_two_flops_per_product_and_each_matrix_once() -> None:
    problem = GemmProblem.of(m=[2, 3], n=5, k=7, b=[1, 4])
    assert problem.flops.tolist() == [2 * 2 * 5 * 7, 4 * 2 * 3 * 5 * 7]
    assert problem.bytes.tolist() == [4 * (14 + 35 + 10), 4 * 4 * (21 + 35 + 15)]


def test_conv_is_square_without_width_and_counts_direct_flops() -> None:
    problem = ConvProblem.of(batch=2, in_channels=3, out_channels=4, height=8)
    assert problem.width.tolist() == [8]
    assert problem.flops.tolist() == [2 * 9 * 2 * 8 * 8 * 3 * 4]
    assert problem.bytes.tolist() == [4 * (2 * 64 * 7 + 9 * 12)]


def test_elementwise_bytes_follow_the_operands() -> None:
    problem = ElementwiseProblem.of(elements=[10, 10], operator=["add", "relu"])
    assert problem.bytes.tolist() == [4 * 10 * 3, 4 * 10 * 2]


def test_one_operator_serves_all_rows() -> None:
    assert len(set(ElementwiseProblem.of(elements=[1, 2, 3], operator="tanh").operator.tolist())) == 1


def test_unknown_operator_is_named() -> None:
    with pytest.raises(UsageError, match="sigmoid"):
        ElementwiseProblem.of(elements=1, operator="sigmoid")


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_sizes_below_one_or_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="'width'"):
        RowProblem.of(rows=4, width=bad)


def test_lengths_must_fit_together() -> None:
    with pytest.raises(UsageError, match="one length"):
        GemmProblem.of(m=[1, 2], n=[1, 2, 3], k=1)


def test_empty_problems_are_fine() -> None:
    assert len(RowProblem.of(rows=np.empty(0), width=np.empty(0))) == 0
