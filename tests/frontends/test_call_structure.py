from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dippm.frontends.call_structure import CallStructure, Fixed, Group, Leaf


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Batch:
    tokens: object
    mask: object


def test_tensors_come_to_their_places() -> None:
    structure = CallStructure(
        positional=(
            Leaf(position=2),
            Group(kind=list, parts=(Leaf(position=0), Group(kind=tuple, parts=(Leaf(position=1), Fixed(value=None))))),
        ),
        named={
            "pair": Group(kind=Pair, names=("first", "second"), parts=(Leaf(position=3), Fixed(value=0.5))),
            "batch": Group(kind=Batch, names=("tokens", "mask"), parts=(Leaf(position=0), Leaf(position=3))),
            "options": Group(kind=dict, names=("a", "b"), parts=(Fixed(value=True), Leaf(position=1))),
            "flag": Fixed(value="yes"),
        },
    )
    positional, named = structure.fill(["t0", "t1", "t2", "t3"])
    assert positional == ("t2", ["t0", ("t1", None)])
    assert named == {
        "pair": Pair("t3", 0.5),
        "batch": Batch(tokens="t0", mask="t3"),
        "options": {"a": True, "b": "t1"},
        "flag": "yes",
    }
    assert isinstance(named["pair"], Pair)


def test_a_call_without_arguments() -> None:
    assert CallStructure().fill([]) == ((), {})
