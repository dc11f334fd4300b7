from __future__ import annotations

import argparse

import pytest

from dippm.datasets.campaign.passed_over import add_first_option


@pytest.fixture(name="parser")
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_first_option(parser, ("zoo", "named"))
    return parser


def test_each_collection_may_be_given(parser: argparse.ArgumentParser) -> None:
    assert parser.parse_args([]).first == []
    assert parser.parse_args(["--first", "zoo=3", "--first", "named=12"]).first == [("zoo", 3), ("named", 12)]


@pytest.mark.parametrize("text", ["zoo", "zoo=", "zoo=-1", "zoo=x", "other=3"])
def test_a_collection_and_a_number_are_asked_for(
    parser: argparse.ArgumentParser, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_args(["--first", text])
    assert "zoo, named" in capsys.readouterr().err
