"""The page with all protocols, from predictions that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dippm.training.additive_ablation import ABLATIONS
from dippm.training.additive_devices import DeviceLeftOut, leave_out_device
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_protocol import predict_families, predict_random
from dippm.training.additive_report import write_report
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.additive_tables import join

_DEVICE = "GeForce RTX 3090"


def test_a_report_has_all_protocols_and_fits_are_read_back(
    step_samples: AdditiveSamples, tmp_path: Path, additive_settings: AdditiveSettings, two_devices: AdditiveSamples
) -> None:
    settings = replace(additive_settings, members=1)
    held = [predict_random(step_samples, replace(settings, seed=seed), folder=tmp_path) for seed in range(2)]
    families = predict_families(step_samples, settings, folds=2, folder=tmp_path)
    again = predict_families(step_samples, settings, folds=2, folder=tmp_path)
    for one, other in zip(families, again, strict=True):
        assert one.test_ms.tolist() == other.test_ms.tolist()
    assert len(list(tmp_path.glob("predictions-*.npz"))) == 4
    devices = [leave_out_device(two_devices, settings, device=_DEVICE, labels=(4,))]
    others = [
        (name, join([predict_random(leave_out(step_samples), settings, folder=tmp_path)]))
        for name, leave_out in ABLATIONS.items()
    ]
    page = write_report(step_samples, held, families, others=others, devices=devices, command="made by")
    tables = [line.count("|") for line in page.splitlines() if line.startswith("|")]
    assert set(tables) == {7, 9, 11}
    for text in (
        "random, seed 1",
        "families left out, fold 1",
        "plain sum of predictor 0, all rows",
        "Twenty worst",
        "made by",
        "without messages between operators",
        f"{_DEVICE}, 4 labels",
    ):
        assert text in page


def test_an_interval_without_a_label_is_as_wide_as_the_other_card_asked_for(
    two_devices: AdditiveSamples, tmp_path: Path, additive_settings: AdditiveSettings
) -> None:
    settings = replace(additive_settings, members=1)
    families = predict_families(two_devices, settings, folds=2, folder=tmp_path)
    held = [predict_random(two_devices, settings, folder=tmp_path)]
    one, other = (
        leave_out_device(two_devices, settings, device=device, labels=()) for device in (_DEVICE, "GeForce RTX 4090")
    )

    def coverage(*devices: DeviceLeftOut) -> float:
        page = write_report(two_devices, held, families, devices=devices, command="made by")
        (line,) = (line for line in page.splitlines() if f"{_DEVICE}, no label of it" in line)
        return float(line.split("|")[7])

    measured_ms = two_devices.measured_ms
    far = replace(one, zero_shot_ms=1000.0 * measured_ms[one.test])
    assert coverage(far) == 0.0
    assert coverage(far, replace(other, zero_shot_ms=900.0 * measured_ms[other.test])) == 0.0
    assert coverage(far, replace(other, zero_shot_ms=1100.0 * measured_ms[other.test])) == 100.0
