"""The page's files: what they may hold, and what they must agree with."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dippm.api.named_models import SHIPPED_NAMES
from dippm.predictors.prediction import format_figure
from dippm.server import uploads

_FOLDER = Path(uploads.__file__).with_name("static")
_FILES = {path.name: path.read_text(encoding="utf-8") for path in _FOLDER.iterdir()}
_LARGEST_PAGE = 120_000


def test_the_page_loads_nothing_from_elsewhere_and_is_small() -> None:
    for name, text in _FILES.items():
        assert set(re.findall(r"https?://[^\s\"']*", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function\()", text), name
    assert not re.search(r"\sstyle=|\son[a-z]+=|<script>|<style", _FILES["index.html"])
    assert sum(map(len, _FILES.values())) < _LARGEST_PAGE


def test_every_file_is_used() -> None:
    texts = "".join(_FILES.values())
    for name in _FILES.keys() - {"index.html"}:
        assert f"/{name}" in texts
    modules = {f"static/{name}" for name in _FILES if name.endswith(".js")} - {"static/main.js", "static/theme.js"}
    assert set(re.findall(r'"modulepreload" href="([^"]*)"', _FILES["index.html"])) == modules


def test_the_page_offers_what_the_service_takes() -> None:
    (accepted,) = re.findall(r'accept="([^"]*)"', _FILES["index.html"])
    assert tuple(accepted.split(",")) == uploads.READ_EXTENSIONS
    named = _FILES["model_picker.js"].partition("NAMES = [")[2].partition("]")[0]
    assert set(re.findall(r'"([^"]+)"', named)) == set(SHIPPED_NAMES)


@pytest.fixture(scope="module")
def modules(browser: Any, page_service: Any) -> Iterator[Callable[..., Any]]:
    """Runs a script that imports the page's modules."""
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{page_service.port}/")
    yield page.evaluate
    page.close()


def test_figures_are_written_as_on_the_command_line(modules: Callable[..., Any]) -> None:
    values = [
        0.00123,
        0.0506,
        0.12,
        1.0,
        8.996,
        9.995,
        12.34,
        99.95,
        123.4,
        999.4,
        999.6,
        1000.0,
        1234.0,
        40325.0,
        1.25e6,
    ]
    written = modules(
        "async (values) => values.map((await import('/static/figures.js')).formatFigure)",
        values,
    )
    assert written == [format_figure(value) for value in values]


def test_the_command_is_safe_to_paste(modules: Callable[..., Any]) -> None:
    names = [
        "model.onnx",
        "-x.onnx",
        "my model.onnx",
        "it's.onnx",
        "$(id)`id`;a&b.onnx",
        "a\nb.onnx",
        "*.onnx",
        "~a.onnx",
    ]
    commands = modules(
        """async (names) => {
            const { DEFAULTS, toCommand } = await import('/static/question.js');
            return names.map((file) => toCommand({ ...DEFAULTS, file, input: 'a=3\\nb=4:int64' }));
        }""",
        names,
    )
    for name, command in zip(names, commands, strict=True):
        words = shlex.split(command)
        assert words[2] == (f"./{name}" if name.startswith("-") else name)
        assert words[-4:] == ["--input", "a=3", "--input", "b=4:int64"]
        plain = command.split(" --device")[0].removeprefix("dippm predict ")
        assert plain.startswith("'") or re.fullmatch(r"[\w.]+", plain)


def test_a_name_is_no_formula_in_a_spreadsheet(modules: Callable[..., Any]) -> None:
    text = modules(
        """async () => {
            const { toCsv } = await import('/static/downloads.js');
            const prediction = { device: 'a,"b"', batch: 8, latency_ms: 1.5, energy_j: null, mig: null,
                                 no_slice: 'too large', intervals: {} };
            return toCsv({ model: { source: '=1+1.onnx' }, predictions: [prediction] });
        }"""
    )
    head, row = csv.DictReader(io.StringIO(text)).fieldnames, next(csv.DictReader(io.StringIO(text)))
    assert head is not None
    assert head[-1] == "mig"
    assert (row["model"], row["device"], row["energy_j"], row["mig"]) == ("'=1+1.onnx", 'a,"b"', "", "too large")


def test_weights_that_are_not_trained_or_quantised_are_told(modules: Callable[..., Any]) -> None:
    texts = modules(
        """async () => {
            const { describeWeights } = await import('/static/figures.js');
            const plain = { parameters: 1200, frozen_parameters: 0, quantised_weights: {} };
            const some = { ...plain, frozen_parameters: 8e6, quantised_weights: { uint4: 7e6 } };
            return [plain, some].map(describeWeights);
        }"""
    )
    assert texts == ["1,200 parameters", "1,200 trained beside 8,000,000 parameters, 7,000,000 in uint4"]


def test_a_link_holds_every_option(modules: Callable[..., Any]) -> None:
    same = modules(
        """async () => {
            const { DEFAULTS, fromFragment, toFragment } = await import('/static/question.js');
            const question = { ...DEFAULTS, model: 'hf:a/b#decode=3', device: ['1g.5gb@A100 80GB PCIe', 'L4'],
              batch: [1, 7], mode: 'training', precision: 'amp', optimizer: 'adam', accumulation: 4,
              checkpointing: true, weights: 'nf4', lora: '16:q_proj', input: 'ids=384:int64\\nmask=384',
              framework: 'onnx', layout: 'nhwc', runtime: 'compile', mig_policy: 'paper',
              software: 'torch 1.12+cu113' };
            const view = { at: 7, of: 'L4', show: 'energy' };
            const found = fromFragment(toFragment(question, view));
            return JSON.stringify([question, view]) === JSON.stringify([found.question, found.view]);
        }"""
    )
    assert same is True
