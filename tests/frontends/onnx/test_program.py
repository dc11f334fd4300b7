from __future__ import annotations

from dippm.frontends.onnx.program import ABSENT, Block, Op, describe_node


def test_subgraphs_are_found_among_all_attributes() -> None:
    blocks = [Block(ops=[], inputs=(), outputs=(number,)) for number in range(3)]
    op = Op(
        op_type="If",
        domain="",
        version=17,
        inputs=(ABSENT,),
        outputs=(0,),
        attributes={"then_branch": blocks[0], "axis": 1, "names": ["a"], "others": blocks[1:], "sizes": [1, 2]},
    )
    assert list(op.blocks()) == blocks
    assert list(Op(op_type="Relu", domain="", version=17, inputs=(0,), outputs=(1,), attributes={}).blocks()) == []


def test_an_operator_without_a_name_is_called_after_what_it_makes() -> None:
    assert describe_node("Relu", "stem", ["y"]) == "node 'stem' (Relu)"
    assert describe_node("Split", "", ["", "right"]) == "the Split node that makes 'right'"
    assert describe_node("Relu", "", []) == "node '' (Relu)"
    assert len(describe_node("Relu", "a" * 10_000, [])) < 300
