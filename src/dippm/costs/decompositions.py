"""Decompositions of matrices, what is solved by them, and distances: their arithmetic, and what is said of their time.

Counts are leading terms of the real operations, from Golub and Van Loan, Matrix Computations, 4th edition: LU (3.2),
Cholesky (4.2), Householder QR (5.2), the SVD (8.6), symmetric (8.3) and other eigenvalues (7.5). Iterations converge
as quickly there as they usually do. The kernels go column by column, often matrix by matrix, and reach a small part of
a GPU's peak: what the arithmetic takes at the peak is the least that they take, and nothing here says how much more.
Nor does it of distances of all rows to all others, of which PyTorch has a block of threads work out each
(``DistanceKernel.cu``).
"""

from __future__ import annotations

from collections.abc import Mapping

from dippm.graph import Attribute

__all__ = [
    "COUNTED",
    "FLOPS_OF_A_DISTANCE",
    "FLOPS_PER_ELEMENT",
    "MOST_TIMES",
    "count_flops",
    "flops_of",
    "warn_of_decomposition",
]

FLOPS_PER_ELEMENT = "flops_per_element"
"""Attribute of such an operator: its operations for each element of its first input."""

FLOPS_OF_A_DISTANCE = 3.0
"""Operations for each number of two rows whose distance is taken: the difference, its size, and the sum."""

MOST_TIMES = 1000.0
"""How many times its least time such an operator may take: assumed, not measured."""

_Terms = tuple[float, float, float]

# Multiples of m n^2, of n^3 and of n^2 k for a matrix of m by n, not wider than it is high, and k right-hand sides:
# where values alone are computed, or R, and where vectors are as well, or Q.
_TERMS: Mapping[str, tuple[_Terms, _Terms]] = {
    "cholesky": ((0, 1 / 3, 0),) * 2,
    "ldl": ((0, 1 / 3, 0),) * 2,
    "lu": ((1, -1 / 3, 0),) * 2,
    "inverse": ((0, 2, 0),) * 2,
    "cholesky_inverse": ((0, 2 / 3, 0),) * 2,
    "solve": ((0, 2 / 3, 2),) * 2,
    "solve_factored": ((0, 0, 2),) * 2,
    "householder": ((2, -2 / 3, 0),) * 2,
    "qr": ((2, -2 / 3, 0), (4, -4 / 3, 0)),
    # A QR decomposition, and of a square matrix its product with each side and the triangular system of that (5.3).
    "least_squares": ((2, -2 / 3, 3),) * 2,
    "eigh": ((0, 4 / 3, 0), (0, 9, 0)),
    "eig": ((0, 10, 0), (0, 25, 0)),
    "svd": ((4, -4 / 3, 0), (14, 8, 0)),
    "pinv": ((16, 8, 0),) * 2,
    # Five products at least, of the polynomial alone.
    "exponential": ((0, 10, 0),) * 2,
}

COUNTED = frozenset(_TERMS)
"""Names of what is counted."""


def count_flops(name: str, rows: int, columns: int, *, sides: float = 0.0, has_vectors: bool = True) -> float:
    """Operations for one matrix.

    Args:
        name: One of :data:`COUNTED`.
        rows: Its rows.
        columns: Its columns.
        sides: Right-hand sides of what is solved.
        has_vectors: Whether vectors are computed beside values, and Q beside R.
    """
    m, n = max(rows, columns), min(rows, columns)
    tall, cubic, solved = _TERMS[name][has_vectors]
    return tall * m * n**2 + cubic * n**3 + solved * n**2 * sides


def flops_of(attributes: Mapping[str, Attribute]) -> float:
    """Operations for each element of the first input, as a node's attributes say; 0 where they do not."""
    found = attributes.get(FLOPS_PER_ELEMENT, 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def warn_of_decomposition(source_op: str) -> str:
    """What is said of a model with such an operator."""
    return (
        f"The time of {source_op} is a lower bound, its arithmetic at the device's peak: decompositions of matrices, "
        "what is solved by them, and distances of all rows to all others run far below that. The interval is open to "
        f"{MOST_TIMES:,.0f} times of it."
    )
