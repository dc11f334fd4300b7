"""``dippm train --adapt`` on made-up labels of a card that the catalogue does not know."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from dippm import api
from dippm.cli import main
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.devices import DeviceSpec
from dippm.training import additive_adaptation
from dippm.training.additive_adaptation import AdaptationSettings

OwnDevice = tuple[list[Label], DeviceSpec]


@pytest.fixture(name="words", scope="module")
def _words(
    own_device: OwnDevice, labelled_models: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    labels, device = own_device
    folder = tmp_path_factory.mktemp("own")
    export_parquet(labels, folder / "labels.parquet")
    figures = {
        name: getattr(device, name)
        for name in (
            "name", "architecture", "sm_count", "fp32_lanes_per_sm", "base_clock_mhz", "boost_clock_mhz", "memory_mb",
            "bandwidth_gb_s", "l2_mb", "board_power_w",
        )
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in figures.items()]
    lines.append(f"compute_capability = {list(device.compute_capability)}")
    lines += ["[peak_tflops]", *(f"{name} = {peak}" for name, peak in device.peak_tflops.items())]
    (folder / "card.toml").write_text("\n".join(lines))
    return [
        *("train", "--adapt", "--data", str(folder / "labels.parquet"), "--cache", str(labelled_models[1])),
        *("--device-file", str(folder / "card.toml")),
    ]


def test_columns_and_the_line_to_go_on_with(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(additive_adaptation, "AdaptationSettings", partial(AdaptationSettings, steps=40))
    assert main([*words, "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    header, row = (line.split("\t") for line in captured.out.splitlines())
    found = dict(zip(header, row, strict=True))
    assert (found["regime"], found["rows"], found["models"], found["host_rows"]) == ("inference", "24", "12", "12")
    assert float(found["error_after_percent"]) < float(found["error_before_percent"]) / 3
    assert f"dippm predict MODEL --predictor {tmp_path}" in captured.err
    assert re.search(r"The host takes (1\.9|2\.0)\d times as long", captured.err)
    assert "Power in inference" in captured.err


def test_json_and_table(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"rows": 1234, "mape_percent": 4.5, "median_ape_percent": 3.0, "ape_percent_90": 9.0}
    report = api.AdaptationReport(
        device="Card of one's own",
        folder="here",
        regimes=(
            api.AdaptedRegime(
                regime="inference",
                rows=1234,
                models=600,
                host_rows=0,
                before={**errors, "mape_percent": 9.87},
                after=errors,
                is_tuned=False,
                coverage_before_percent=70.0,
                half_width_factor=1.2,
                median_half_width_percent=11.0,
            ),
        ),
        host_ratio=1.0,
        power=(),
        context=api.MeasuredContext(
            rows=12, context_mb=1700.0, estimated_mb=500.0, margin_low_mb=20.0, margin_high_mb=30.0
        ),
        left_out={"did not end well": 3},
        unread={"0123456789abcdef": "It has no forward."},
        duration_s=1.0,
    )
    asked: list[object] = []

    def adapt(data: str, **options: object) -> api.AdaptationReport:
        asked.append(options["seed"])
        return report

    monkeypatch.setattr(api, "adapt", adapt)
    assert main([*words, "--seed", "7", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"schema": 1, **json.loads(json.dumps(report.to_dict()))}
    assert asked == [7]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert main(words) == 0
    captured = capsys.readouterr()
    lines = [line.split() for line in re.sub(r"\x1b\[[\d;]*m", "", captured.out).splitlines()]
    assert ["rows", "models", "before", "after"] in [line[:4] for line in lines]
    assert ["inference", "1,234", "600", "9.87", "4.50", "11.0", "0"] in lines
    for note in (
        "hold 1,700 MiB (500 by the estimate)",
        "3 rows left out: did not end well",
        "It has no forward.",
        "Tuning does not help",
    ):
        assert note in captured.err
    assert "The host takes" not in captured.err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--edges", "chain"), "option.unused"),
        (("--model", "pmgns"), "option.unused"),
        (("--precision", "amp", "--epochs", "5"), "option.unused"),
        (("--device", "RTX 4090"), "device.invalid"),
        (("--data", "nowhere.parquet"), "labels.missing"),
    ],
)
def test_wrong_use(
    more: tuple[str, ...], code: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--out", str(tmp_path / "out"), *more, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not (tmp_path / "out").exists()


def test_a_device_file_means_nothing_to_a_network_of_its_own(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*(word for word in words if word != "--adapt"), "--out", str(tmp_path / "out"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "device.unused"
