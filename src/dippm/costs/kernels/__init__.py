"""Kernel times on any GPU, learned from measured kernels and carried over by the data sheet's numbers."""

from dippm.costs.kernels.model import KernelModel, KernelSupport, load_kernel_model
from dippm.costs.kernels.problems import (
    ELEMENTWISE_OPERATORS,
    ConvProblem,
    ElementwiseProblem,
    Family,
    GemmProblem,
    Problem,
    RowProblem,
)

__all__ = [
    "ELEMENTWISE_OPERATORS",
    "ConvProblem",
    "ElementwiseProblem",
    "Family",
    "GemmProblem",
    "KernelModel",
    "KernelSupport",
    "Problem",
    "RowProblem",
    "load_kernel_model",
]
