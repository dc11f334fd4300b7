"""What is typed twice is taken twice, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dippm.cli import main


def test_lists_are_joined(net: str, run_columns: Callable[..., list[dict[str, str]]]) -> None:
    rows = run_columns("predict", net, "-d", "A100", "-b", "1", "-d", "T4", "--batch", "8")
    assert [(row["device"], row["batch"]) for row in rows] == [
        ("A100-SXM4-40GB", "1"), ("A100-SXM4-40GB", "8"), ("Tesla T4", "1"), ("Tesla T4", "8"),
    ]  # fmt: skip
    rows = run_columns("fits", net, "-d", "A100", "-d", "T4", "--price", "T4=1", "--price", "A100=9")
    assert [row["price_per_hour"] for row in rows] == ["1.0", "9.0"]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["inspect", "NET", "-b", "1", "-b", "8"], "--batch"),
        (["inspect", "NET", "-d", "A100", "--device", "T4"], "--device"),
        (["predict", "NET", "-p", "amp", "-p", "fp32"], "--precision"),
        (["max-batch", "NET", "--latency-ms", "5", "--latency-ms=6"], "--latency-ms"),
        (["pack", "NET", "--gpus", "1", "--gpus", "1"], "--gpus"),
        (["dataset", "recipes", "--seed", "1", "--seed", "2"], "--seed"),
        (["explore", "-d", "A100", "-d", "T4", "--space", "a.py", "--objective", "latency"], "--device"),
    ],
)
def test_what_takes_one_value_refuses_the_second(
    words: list[str], option: str, net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("NET", net) for word in words]
    assert main(words) == 2
    assert f"The option {option} takes one value here, and is given twice." in capsys.readouterr().err
    assert main([*words, "--json"]) == 2
    error: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "option.repeated"


def test_what_takes_no_value_or_several_may_be_repeated(net: str, run_json: Callable[..., dict[str, Any]]) -> None:
    answer = run_json("predict", net, "--json", "-i", "3,32,32", "--trust-pickle", "--trust-pickle")
    assert len(answer["predictions"]) == 1
