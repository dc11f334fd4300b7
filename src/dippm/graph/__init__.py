"""The computation graph: operators, tensors with a symbolic batch, and passes over them. Imports no framework."""

from dippm.graph.arrays import GraphArrays
from dippm.graph.dim import Dim, Shape, fixed_shape
from dippm.graph.dtype import DType
from dippm.graph.graph import MOST_RUNS, OWN_GRADIENT, Attribute, Graph, Node, OwnGradient, TensorRole, TensorSpec
from dippm.graph.op_kind import (
    ACTIVATION_KINDS,
    ARITHMETIC_KINDS,
    CONTRACTION_KINDS,
    NORM_KINDS,
    RECURRENT_KINDS,
    TRAINING_KINDS,
    OpKind,
)

__all__ = [
    "ACTIVATION_KINDS",
    "ARITHMETIC_KINDS",
    "CONTRACTION_KINDS",
    "MOST_RUNS",
    "NORM_KINDS",
    "OWN_GRADIENT",
    "RECURRENT_KINDS",
    "TRAINING_KINDS",
    "Attribute",
    "DType",
    "Dim",
    "Graph",
    "GraphArrays",
    "Node",
    "OpKind",
    "OwnGradient",
    "Shape",
    "TensorRole",
    "TensorSpec",
    "fixed_shape",
]
