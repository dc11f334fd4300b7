"""Every operator of the standard, on the standard's own examples: output shapes are those of its reference outputs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dippm.errors import DippmError, UsageError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.onnx.evaluation import Evaluator
from dippm.frontends.onnx.external_data import ExternalFiles
from dippm.frontends.onnx.input_sizes import plan_inputs
from dippm.frontends.onnx.lowering import lower
from dippm.frontends.onnx.ops import known_operators
from dippm.graph import Graph
from dippm.graph.passes.canonicalize import canonicalize

pytestmark = pytest.mark.slow  # collecting the examples takes ten seconds

# Operators that need values at run time to tell their output's size, or that work on the host.
DATA_DEPENDENT = {
    "Compress", "ImageDecoder", "NonMaxSuppression", "NonZero", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    "Unique",
}  # fmt: skip
# Training steps, trees and text: no network that runs on a GPU holds them.
NOT_READ = {"Adagrad", "Adam", "Gradient", "Momentum", "LabelEncoder", "Binarizer", "TreeEnsemble"}
NOT_READ |= {"ArrayFeatureExtractor"}


@cache
def examples() -> dict[str, list]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    by_operator = defaultdict(list)
    for case in found:
        if case.model is not None and case.data_sets and len(case.model.graph.node) == 1:
            by_operator[case.model.graph.node[0].op_type].append(case)
    return by_operator


def read(case) -> tuple[Graph, list[tuple[int, ...]]] | None:
    """The graph and the expected shapes; None for examples whose inputs or outputs are not plain arrays."""
    inputs, outputs = case.data_sets[0]
    flat = [array for item in outputs for array in (item if isinstance(item, list) else [item])]
    if any(not isinstance(array, np.ndarray | np.generic) for array in flat) or any(
        not isinstance(array, np.ndarray | np.generic) for array in inputs
    ):
        return None
    if any(np.asarray(value).dtype.kind == "V" for value in inputs):
        return None  # a type that numpy itself does not have
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for declared, value in zip(model.graph.input, inputs, strict=False):
        array = np.asarray(value)
        is_argument = array.dtype.kind in "iub" or array.ndim == 0 or declared.name in {"scales", "roi", "sizes"}
        if is_argument and array.dtype.kind in "iubf":
            model.graph.initializer.append(numpy_helper.from_array(array, declared.name))
    program = lower(model, ExternalFiles(None))
    plan = plan_inputs(program.inputs, InputShapes())
    evaluator = Evaluator(program, plan.at(plan.native_batch or 1), plan.dtypes)
    evaluator.run()
    return canonicalize(evaluator.graph("example")), [np.asarray(array).shape for array in flat]


@pytest.mark.parametrize("operator", sorted({name for domain, name in known_operators() if domain == ""}))
def test_shapes_of_the_standards_examples(operator: str) -> None:
    cases = examples().get(operator, [])
    checked = 0
    for case in cases:
        try:
            found = read(case)
        except UsageError:
            continue  # an input of size 0 or a sequence
        except DippmError as error:
            if operator in DATA_DEPENDENT or "opset" in str(error) or "batched Scan" in str(error):
                continue
            if case.name.endswith(("allowzero_reordered", "_zero_size_splits_opset13", "_zero_size_splits_opset18")):
                continue  # their inputs are empty, which the reader takes for an open dimension
            raise
        if found is None:
            continue
        graph, expected = found
        shapes = [tuple(dim.fixed for dim in graph.tensors[index].shape) for index in graph.outputs]
        if operator in DATA_DEPENDENT:
            pairs = zip(shapes, expected, strict=True)
            assert all(len(a) == len(b) for a, b in pairs if operator not in {"StringSplit"}), case.name
        else:
            assert shapes == expected, case.name
        assert graph.unsupported_ops == {}, case.name
        checked += 1
    if not checked and operator not in DATA_DEPENDENT:
        pytest.skip(f"the installed onnx has no plain example of {operator}")


def test_every_standard_operator_has_a_rule() -> None:
    known = {name for domain, name in known_operators() if domain == ""}
    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert standard - known - NOT_READ - {"TfIdfVectorizer"} == set()
