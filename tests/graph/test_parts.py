"""Operators and tensors, by themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from dippm.graph.dim import Dim
from dippm.graph.dtype import DType
from dippm.graph.op_kind import OpKind
from dippm.graph.parts import MOST_DIMENSIONS, Node, TensorRole, TensorSpec

TENSOR = TensorSpec(name="x", shape=(Dim(1, 0), Dim(0, 3)), dtype=DType.FLOAT32)
NODE = Node(kind=OpKind.RELU, inputs=(0,), outputs=(1,))


def test_a_tensor_is_computed_and_owns_its_storage_unless_it_says_otherwise() -> None:
    assert TENSOR.role is TensorRole.ACTIVATION
    assert TENSOR.alias_of is TENSOR.storage_bytes_per_sample is TENSOR.storage_bytes_fixed is None


def test_a_node_has_no_attributes_and_gives_nothing_back_unless_it_says_so() -> None:
    assert (dict(NODE.attributes), NODE.releases, NODE.scope, NODE.source_op) == ({}, (), "", "")


@pytest.mark.parametrize(("part", "name", "value"), [(TENSOR, "name", "y"), (NODE, "inputs", (2,))])
def test_a_part_does_not_change(part: TensorSpec | Node, name: str, value: object) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(part, name, value)
    changed = replace(part, **{name: value})  # type: ignore[arg-type]
    assert getattr(changed, name) == value
    assert changed != part
    assert replace(changed, **{name: getattr(part, name)}) == part


def test_tensors_of_equal_parts_are_one_key() -> None:
    assert len({TENSOR, replace(TENSOR), replace(TENSOR, alias_of=0)}) == 2


@pytest.mark.parametrize("part", [TensorSpec, Node])
def test_what_a_part_holds_is_named(part: type) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        part("x", (), DType.FLOAT32)


def test_files_of_graphs_hold_the_roles_by_these_words() -> None:
    # They may become more; one that is called otherwise can no longer be read where it is written already.
    words = ("input", "parameter", "buffer", "constant", "activation", "gradient", "optimizer_state", "cache")
    assert [TensorRole(word).name for word in words] == [word.upper() for word in words]


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 takes 32 dimensions")
def test_the_most_dimensions_are_those_of_numpy() -> None:
    assert np.empty((1,) * MOST_DIMENSIONS).ndim == MOST_DIMENSIONS
    with pytest.raises(ValueError, match="dimension"):
        np.empty((1,) * (MOST_DIMENSIONS + 1))
