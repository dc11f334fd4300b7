from __future__ import annotations

import pytest

from dippm.cli.options import parse_batches, parse_inputs, parse_one_batch
from dippm.errors import UsageError


@pytest.mark.parametrize(
    ("text", "sizes"), [("1", [1]), ("1,8,32", [1, 8, 32]), (" 4 , 2 ", [4, 2]), ("1_024", [1024]), ("0,-3", [0, -3])]
)
def test_batches(text: str, sizes: list[int]) -> None:
    assert parse_batches(text) == sizes


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1.5", "8 16", "1,"])
def test_batches_must_be_whole_numbers(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_batches(text)
    assert caught.value.code == "batch.invalid"
    assert f"'{text}'" in str(caught.value)


def test_one_batch() -> None:
    assert parse_one_batch("7") == 7
    with pytest.raises(UsageError) as caught:
        parse_one_batch("7,8")
    assert caught.value.code == "batch.invalid"


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        (None, None),
        ([], None),
        (["3,224,224"], "3,224,224"),
        (["384:int64", "384:int64"], ["384:int64", "384:int64"]),
        (["ids=384:int64", "mask=384"], {"ids": "384:int64", "mask": "384"}),
        (["a=b=3,4"], {"a=b": "3,4"}),
    ],
)
def test_inputs(given: list[str] | None, inputs: object) -> None:
    assert parse_inputs(given) == inputs


@pytest.mark.parametrize(
    ("given", "code"), [(["ids=384", "384"], "input.mixed"), (["ids=384", "ids=128"], "input.repeated")]
)
def test_inputs_that_contradict(given: list[str], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_inputs(given)
    assert caught.value.code == code
