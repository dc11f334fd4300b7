"""A model as plain operators over numbered values: what is left of an ONNX file once protobuf is out of the way.

It does not depend on the batch size; :mod:`dippm.frontends.onnx.evaluation` runs it at one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from dippm.graph import DType, TensorRole
from dippm.graph.passes.fuse_layer_norm import WrittenNorms
from dippm.graph.passes.fuse_noted_operators import NotedOperator

__all__ = ["ABSENT", "Array", "AttributeValue", "Block", "InputDeclaration", "Op", "Program", "Weight", "describe_node"]

Array = npt.NDArray[Any]

_LONGEST_NAME = 200

ABSENT = -1
"""Number of an optional input or output that is left out."""


@dataclass(kw_only=True, slots=True)
class Weight:
    """A tensor stored in the file.

    Args:
        name: Its name in the file.
        shape: Its sizes.
        dtype: Its element type.
        data: Its values where they are small and were kept, else None.
        role: Parameter, buffer or constant.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: Array | None = None
    role: TensorRole = TensorRole.CONSTANT


@dataclass(kw_only=True, slots=True)
class Op:
    """One operator after inlining.

    Args:
        op_type: Its name, such as ``"Conv"``.
        domain: ``""`` for the standard operators, else the domain.
        version: Opset version that it follows.
        inputs: Numbers of the values that it reads, ``ABSENT`` where left out.
        outputs: Numbers of the values that it makes, ``ABSENT`` where nobody wants one.
        attributes: Its attributes by name.
        scope: Path of the module it came from, parts joined by dots.
        name: Its own name in the file, for messages.
    """

    op_type: str
    domain: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, AttributeValue]
    scope: str = ""
    name: str = ""

    def blocks(self) -> Iterator[Block]:
        """The subgraphs among its attributes."""
        for value in self.attributes.values():
            if isinstance(value, Block):
                yield value
            elif isinstance(value, list):
                yield from (item for item in value if isinstance(item, Block))


@dataclass(kw_only=True, slots=True)
class Block:
    """A subgraph of a control-flow operator; its values share the numbers of the whole program."""

    ops: list[Op]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


AttributeValue = int | float | str | list[int] | list[float] | list[str] | Weight | list[Weight] | Block | list[Block]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputDeclaration:
    """A model input as the file declares it.

    Args:
        value: Its number.
        name: Its name.
        dtype: Element type.
        dims: Each dimension as a size, a name, or ``""`` where the file says nothing; None where not even the rank is
            given.
        is_tensor: False for sequences, maps and optional values.
    """

    value: int
    name: str
    dtype: DType
    dims: tuple[int | str, ...] | None
    is_tensor: bool = True


@dataclass(kw_only=True, slots=True)
class Program:
    """A whole model.

    Args:
        ops: Operators in an order in which they can run, none of them without use.
        names: Name of each value by number.
        weights: Stored tensors by value number.
        constants: Tensors written in the code, by value number.
        inputs: The model's inputs in order.
        outputs: Numbers of the model's outputs.
        trained: Numbers of values that stand where a layer has its weights.
        untrained: Numbers of stored tensors that the exporter says are no parameters.
        declared: Type and shape that the file states for values between operators; -1 for an open dimension.
        opset: Version of the standard opset.
        norms: Which norms that stand written out were one operator of the framework.
        noted: Which other operators were part of one, by the names of what they write.
        warnings: What to tell the user.
        is_training: Whether it is run as in training, where dropout is active.
    """

    ops: list[Op]
    names: list[str]
    weights: dict[int, Weight]
    inputs: list[InputDeclaration]
    outputs: list[int]
    constants: dict[int, Weight] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    untrained: set[int] = field(default_factory=set)
    declared: dict[int, tuple[DType, tuple[int, ...] | None]] = field(default_factory=dict)
    opset: int = 0
    norms: WrittenNorms = field(default_factory=WrittenNorms)
    noted: dict[str, NotedOperator] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    is_training: bool = False


def describe_node(op_type: str, name: str, outputs: Sequence[str]) -> str:
    """What messages call an operator: by its name in the file, without one by the first value that it makes."""
    made = next((output for output in outputs if output), "")
    if name or not made:
        return f"node '{name[:_LONGEST_NAME]}' ({op_type})"
    return f"the {op_type} node that makes '{made[:_LONGEST_NAME]}'"
