"""The table of aten operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.frontends.torch.operators import KEPT_WHOLE, OPERATORS  # noqa: E402
from dippm.graph import OpKind  # noqa: E402

FOREIGN = {"nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d", "grouped_mm_fallback"}


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - FOREIGN))
def test_every_name_is_an_operator_of_pytorch(name: str) -> None:
    assert hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, f"{name}_")


def test_names_of_inputs_are_arguments_of_the_operator() -> None:
    for name, rule in OPERATORS.items():
        if rule.inputs is None or name in FOREIGN:
            continue
        packet = getattr(torch.ops.aten, name, None)
        assert packet is not None, name
        known = {item.name for overload in packet.overloads() for item in getattr(packet, overload)._schema.arguments}
        assert set(rule.inputs) <= known, name


def test_kinds_that_need_a_function_have_one() -> None:
    for name, rule in OPERATORS.items():
        if rule.kind in {OpKind.UNARY, OpKind.BINARY, OpKind.REDUCE, OpKind.COPY, OpKind.RESIZE}:
            assert rule.function, name


def test_kept_whole_is_in_the_table() -> None:
    assert set(OPERATORS) >= KEPT_WHOLE


class _Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return self.function(x, self.norm)


def _of_norm(norm):
    return norm.weight, norm.bias, norm.running_mean, norm.running_var


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (
            lambda x, norm: torch.ops.aten._native_batch_norm_legit_no_training(x, *_of_norm(norm), 0.1, 1e-5)[0],
            [OpKind.BATCH_NORM],
        ),
        (
            lambda x, norm: torch.ops.aten._batch_norm_with_update(x, *_of_norm(norm), 0.1, 1e-5)[0],
            [OpKind.BATCH_NORM],
        ),
        (lambda x, _: torch.ops.aten._adaptive_avg_pool2d(x, (2, 2)), [OpKind.GLOBAL_POOL]),
        (lambda x, _: torch.linalg.cross(x[:, :3], x[:, 3:6], dim=1), [OpKind.VIEW, OpKind.VIEW, OpKind.BINARY]),
        (lambda x, _: torch.special.i0e(x), [OpKind.UNARY]),
        (lambda x, _: torch.special.chebyshev_polynomial_t(x, 3), [OpKind.BINARY]),
        (lambda x, _: torch.transpose_copy(x, 1, 2), [OpKind.COPY]),
        (lambda x, _: torch.split_with_sizes_copy(x, [4, 4], 1), [OpKind.COPY]),
        (lambda x, _: torch.nn.functional.fractional_max_pool2d(x, 2, 4), [OpKind.RANDOM, OpKind.MAX_POOL]),
    ],
)
def test_operators_of_programs_that_were_taken_apart_and_rare_ones_are_known(function, kinds) -> None:
    graph = read_module(_Call(function), input=parse_input_shapes("8,16,16"))
    assert not graph.unsupported_ops
    assert [node.kind for node in graph.nodes] == kinds


def test_what_is_pooled_and_put_back_is_known() -> None:
    def pool(x, _):
        values, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        return torch.nn.functional.max_unpool2d(values, places, 2)

    graph = read_module(_Call(pool), input=parse_input_shapes("8,16,16"))
    assert [node.kind for node in graph.nodes] == [OpKind.MAX_POOL, OpKind.SCATTER]
    assert not graph.unsupported_ops


def test_norms_of_the_batch_say_so() -> None:
    def norm(x, of):
        return torch.ops.aten._native_batch_norm_legit(x, *_of_norm(of), True, 0.1, 1e-5)[0]

    (node,) = read_module(_Call(norm), input=parse_input_shapes("8,16,16")).nodes
    assert node.attributes["is_training"] is True
