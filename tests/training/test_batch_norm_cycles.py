"""Cycles of a channel's block, from traced batch norms that are made up."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store import export_parquet
from dippm.datasets.store.label import Label
from dippm.datasets.store.traces import write_traces
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.measuring.operator_run import KernelRun, OperatorRun
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.training.batch_norm_cycles import fit_batch_norm_cycles, main

_H200 = find_device("H200")
_IMAGE = (8, 200, 64, 64)


def _label(precision: str, *, batch: int = 8, **conditions: Any) -> Label:
    recipe = Recipe(
        collection="made-up",
        family="made-up",
        architecture="timm:resnet",
        inputs=InputShapes(positional=(InputEntry(shape=(3, 64, 64)),)),
        batch=batch,
    )
    asked = Conditions.parse(**{"mode": "training", "optimizer": "sgd", "precision": precision} | conditions)
    measurement = Measurement(
        outcome=Outcome.OK,
        device="H200",
        measured_at="",
        latency_ms=1.0,
        software=SoftwareStack(framework="torch 2.11.0"),
    )
    return Label(recipe=recipe, configuration=Configuration(batch=batch, conditions=asked), measurement=measurement)


def _run(
    cycles: float,
    *,
    name: str = "aten::batch_norm",
    shape: tuple[int, ...] = _IMAGE,
    kernel: str = "bn_fw_tr_1C11_kernel_NCHW",
    is_backward: bool = False,
) -> OperatorRun:
    """A batch norm of 200 channels, two for each of 132 multiprocessors at most, each of 2 ** 15 elements."""
    duration_us = cycles * 2 * 2**15 / _H200.boost_clock_mhz
    kernels = [KernelRun(name=kernel, launched_by=name, start_us=0.0, duration_us=duration_us)]
    return OperatorRun(name=name, input_shapes=(shape,), scalars=("",), is_backward=is_backward, kernels=kernels)


def test_cycles_are_those_of_an_element_of_one_image_in_fp16_or_fp32() -> None:
    half, brain = _label("amp"), _label("amp-bf16")
    backward = "aten::cudnn_batch_norm_backward"
    traces = {
        half.key: [_run(1.0), _run(1.0), _run(1.1), _run(1.6, name=backward, is_backward=True)],
        brain.key: [_run(1.8), _run(4.8, name=backward, is_backward=True)],
    }
    # Medians of 1.0 and 0.8, 0.9 and 1.2.
    assert fit_batch_norm_cycles([half, brain], traces) == pytest.approx(0.95)


def test_other_operators_small_channels_held_channels_and_calls_do_not_count() -> None:
    step, call = _label("amp"), _label("amp", batch=4, mode="inference", optimizer=None)
    traces = {
        step.key: [
            _run(1.0),
            _run(9.0, name="aten::relu"),
            _run(9.0, shape=(8, 200, 8, 8)),
            _run(9.0, shape=(8, 200)),
            _run(9.0, kernel="bn_fw_tr_1C11_singleread_spec"),
        ],
        call.key: [_run(9.0), _run(9.0, is_backward=True)],
    }
    assert fit_batch_norm_cycles([step, call], traces) == pytest.approx(1.0)
    assert fit_batch_norm_cycles([call], traces) == 0.0


def _write(folder: Path, labels: list[Label], traces: dict[str, list[OperatorRun]]) -> list[str]:
    """The files of a campaign and a copy of the artefact; the command line for them."""
    export_parquet(labels, folder / "labels.parquet")
    write_traces(folder / "traces.parquet", traces.items())
    shutil.copy(ARTEFACT_PATH, folder / ARTEFACT_PATH.name)
    named = {"--labels": "labels.parquet", "--traces": "traces.parquet", "--out": "."}
    return [word for option, name in named.items() for word in (option, str(folder / name))]


def test_the_command_changes_the_artefact_that_trainings_start_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = _label("amp")
    main(_write(tmp_path, [step], {step.key: [_run(1.25)]}))
    assert json.loads(capsys.readouterr().out)["cycles"] == 1.25
    before, after = Calibration.read(), Calibration.read(tmp_path / ARTEFACT_PATH.name)
    assert after.rates == replace(before.rates, batch_norm_cycles=1.25)
    assert after.provenance["batch_norm_cycles"]["cycles"] == 1.25


def test_a_campaign_without_a_batch_norm_changes_nothing(tmp_path: Path) -> None:
    step = _label("amp")
    command = _write(tmp_path, [step], {step.key: [_run(1.0, name="aten::relu")]})
    with pytest.raises(UsageError, match="batch norm"):
        main(command)
    assert (tmp_path / ARTEFACT_PATH.name).read_bytes() == ARTEFACT_PATH.read_bytes()
