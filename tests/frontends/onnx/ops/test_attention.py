from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.ops.registry import MICROSOFT
from dippm.graph import OpKind


@pytest.mark.parametrize("changed", [(), ("score_mod",), ("score_mod", "prob_mod")])
def test_flex_attention_is_one_kernel_until_its_scores_are_changed(build, kinds, changed: tuple[str, ...]) -> None:
    def change(name: str) -> object:
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, None) for end in (f"{name}_in", f"{name}_out")]
        return helper.make_graph([helper.make_node("Tanh", [ends[0].name], [ends[1].name])], name, ends[:1], ends[1:])

    attributes = {name: change(name) for name in changed}
    node = helper.make_node("FlexAttention", ["q", "k", "k"], ["y"], domain="ai.onnx.preview", **attributes)
    inputs = {"q": ["N", 4, 6, 8], "k": ["N", 2, 5, 8]}
    graph = read_onnx(build([node], inputs=inputs, domains=["ai.onnx.preview"]))
    if not changed:
        assert kinds(graph) == ["attention"]
    else:
        steps = ["copy", "copy", "matmul", "tanh", "softmax", *(["tanh"] if len(changed) > 1 else []), "matmul"]
        assert [kind for kind in kinds(graph) if kind != "view"] == steps
    assert graph.unsupported_ops == {}
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "4", "6", "8"]
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * 4 * 2 * 6 * 5 * 8


@pytest.mark.parametrize(("kv_heads", "is_causal"), [(4, 0), (2, 1)])
def test_flat_queries_are_split_into_heads_and_joined_again(one, shapes, kv_heads: int, is_causal: int) -> None:
    graph = one(
        "Attention",
        "q k k",
        inputs={"q": ["N", 6, 32], "k": ["N", 5, 8 * kv_heads]},
        opset=23,
        q_num_heads=4,
        kv_num_heads=kv_heads,
        is_causal=is_causal,
    )
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    assert [str(dim) for dim in graph.tensors[attention.inputs[1]].shape] == ["N", str(kv_heads), "5", "8"]
    assert attention.attributes["is_causal"] is bool(is_causal)
    assert shapes(graph) == [["N", "6", "32"]]
    # Two products of 4 heads, 6 queries, 5 keys and 8 features, however few heads the keys have.
    assert Workload.from_graph(graph).at([1]).macs.sum() == 2 * 4 * 6 * 5 * 8


def test_keys_of_earlier_steps_are_put_before_those_of_this_one(one, shapes) -> None:
    graph = one(
        "Attention",
        "q q q - p p",
        inputs={"q": ["N", 4, 1, 8], "p": ["N", 4, 9, 8]},
        outputs=["y", "keys", "values"],
        opset=23,
    )
    assert [node.kind.value for node in graph.nodes] == ["concat", "concat", "attention"]
    assert shapes(graph) == [["N", "4", "1", "8"], ["N", "4", "10", "8"], ["N", "4", "10", "8"]]


def test_one_tensor_may_hold_queries_keys_and_values(one, shapes) -> None:
    graph = one("GroupQueryAttention", "x", inputs={"x": ["N", 6, 48]}, domain=MICROSOFT, num_heads=4, kv_num_heads=1)
    assert shapes(graph) == [["N", "6", "32"]]
    packed = one("MultiHeadAttention", "x", inputs={"x": ["N", 6, 4, 3, 8]}, domain=MICROSOFT, num_heads=4)
    assert shapes(packed) == [["N", "6", "32"]]


def test_linear_attention_gathers_a_state(one, shapes) -> None:
    graph = one("LinearAttention", "q q v", inputs={"q": ["N", 4, 60, 8], "v": ["N", 4, 60, 5]}, opset=26)
    assert shapes(graph) == [["N", "4", "60", "5"]]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 2 * 4 * 60 * 8 * 5


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"q": ["N", 6, 30], "k": ["N", 5, 32]}, "does not split into 4 heads"),
        ({"q": ["N", 6, 32], "k": ["N", 5, 48]}, "do not fit"),
    ],
)
def test_heads_that_do_not_fit(refused, sizes: dict[str, list[object]], said: str) -> None:
    assert said in refused("Attention", "q k k", inputs=sizes, opset=23, q_num_heads=4, kv_num_heads=4)
