import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.kernels import (
    ConvProblem,
    ElementwiseProblem,
    Family,
    GemmProblem,
    KernelModel,
    Problem,
    RowProblem,
    load_kernel_model,
)
from dippm.costs.kernels.features import lower_bound_ms
from dippm.costs.kernels.model import ARTEFACT_DIRECTORY
from dippm.costs.kernels.tile_law import TileLaw, tile_terms
from dippm.devices import find_device, load_catalog
from dippm.errors import DippmError

DEVICES = ["A100-PCIE-40GB", "V100-PCIE-32GB", "T4", "H100", "RTX 4090", "1g.5gb@A100-SXM4-40GB"]
SIZES = 2.0 ** np.arange(0, 24)
ONES = np.ones_like(SIZES)

#: Growing problems: every entry is twice the one before.
LADDERS: dict[str, tuple[Family, Problem]] = {
    "linear by tokens": (Family.LINEAR, GemmProblem.of(m=SIZES, n=1024, k=1024)),
    "linear by depth": (Family.LINEAR, GemmProblem.of(m=256, n=256, k=SIZES)),
    "linear, K = 1": (Family.LINEAR, GemmProblem.of(m=SIZES, n=16, k=1)),
    "bmm by products": (Family.BMM, GemmProblem.of(b=SIZES, m=128, n=128, k=64)),
    "bmm by rows": (Family.BMM, GemmProblem.of(b=8, m=SIZES, n=64, k=64)),
    "conv by batch": (Family.CONV, ConvProblem.of(batch=SIZES[:16], in_channels=64, out_channels=64, height=28)),
    "conv by channels": (Family.CONV, ConvProblem.of(batch=8, in_channels=64, out_channels=SIZES[:14], height=14)),
    "relu": (Family.ELEMENTWISE, ElementwiseProblem.of(elements=SIZES * 64, operator="relu")),
    "add": (Family.ELEMENTWISE, ElementwiseProblem.of(elements=SIZES * 64, operator="add")),
    "softmax by rows": (Family.SOFTMAX, RowProblem.of(rows=SIZES, width=197)),
    "softmax by width": (Family.SOFTMAX, RowProblem.of(rows=512, width=SIZES)),
    "layer_norm by rows": (Family.LAYER_NORM, RowProblem.of(rows=SIZES, width=768)),
}


@pytest.fixture(scope="module")
def model() -> KernelModel:
    return load_kernel_model()


@pytest.mark.parametrize("ladder", list(LADDERS))
@pytest.mark.parametrize("device_name", DEVICES)
def test_twice_the_work_is_never_absurdly_cheaper(model: KernelModel, ladder: str, device_name: str) -> None:
    family, problem = LADDERS[ladder]
    time_ms = model.time_ms(family, problem, find_device(device_name))
    assert np.isfinite(time_ms).all()
    assert (time_ms > 0.005).all()
    # Among the smallest problems only the launch counts, and its measured time wanders by tens of microseconds.
    for step in (1, 3, 6):
        assert (time_ms[step:] > 0.8 * time_ms[:-step] - 0.03).all()
        above = time_ms[:-step] > 0.15
        assert (time_ms[step:][above] > 0.9 * time_ms[:-step][above]).all()


@pytest.mark.parametrize("ladder", list(LADDERS))
def test_far_outside_the_tables_time_grows_as_the_roofline(model: KernelModel, ladder: str) -> None:
    family, problem = LADDERS[ladder]
    device = find_device("A100-PCIE-40GB")
    time_ms = model.time_ms(family, problem, device)
    bound_ms = lower_bound_ms(family, problem, [device])[0]
    assert (time_ms >= bound_ms).all()
    assert time_ms[-1] < 20.0 * max(bound_ms[-1], 0.05)


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_every_catalogue_device_gets_plausible_times(model: KernelModel, family: Family) -> None:
    problem = next(problem for each, problem in LADDERS.values() if each is family)
    for device in load_catalog():
        time_ms = model.time_ms(family, problem, device)
        assert np.isfinite(time_ms).all(), device.name
        assert (time_ms >= lower_bound_ms(family, problem, [device])[0]).all(), device.name


def test_extreme_shapes_stay_finite(model: KernelModel) -> None:
    device = find_device("A100")
    for problem in (GemmProblem.of(m=1e7, n=1, k=1), GemmProblem.of(m=1, n=1, k=1e9), GemmProblem.of(m=1, n=1, k=1)):
        assert 0.0 < model.time_ms(Family.LINEAR, problem, device)[0] < 1e4
        assert 0.0 < model.time_ms(Family.BMM, problem, device)[0] < 1e4


def test_measured_devices_and_their_relatives_are_recognised(model: KernelModel) -> None:
    assert model.support(Family.LINEAR, find_device("A100-PCIE-40GB")).weight == 1.0
    assert model.support(Family.LINEAR, find_device("A100-SXM4-40GB")).weight > 0.9
    assert model.support(Family.LINEAR, find_device("A100-SXM4-40GB")).nearest_device == "A100-PCIE-40GB"
    assert model.support(Family.LINEAR, find_device("H100")).weight == 0.0
    assert model.support(Family.LINEAR, find_device("RTX 4090")).weight == 0.0


def test_batched_products_follow_the_law_on_a_device_unlike_all_measured_ones(model: KernelModel) -> None:
    problem, device = GemmProblem.of(b=[8, 96], m=197, n=197, k=64), find_device("H100")
    law = TileLaw.from_dict(model.manifest["families"]["bmm"]["tile_law"])
    np.testing.assert_allclose(model.time_ms(Family.BMM, problem, device), law.time_ms(problem, device))


def test_support_is_worked_out_once_per_family_and_device(model: KernelModel) -> None:
    device = find_device("RTX 4090")
    assert model.support(Family.BMM, device) is model.support(Family.BMM, device)
    assert model.support(Family.BMM, find_device("T4")).nearest_device == "T4"


def test_measured_devices_are_unlike_each_other(model: KernelModel) -> None:
    # so that leaving one out tests the networks for unmeasured devices alone
    from dippm.costs.kernels.network import support_weight

    for family in Family:
        measured = np.array(list(model.manifest["families"][family.value]["measured_devices"].values()))
        for index in range(len(measured)):
            assert support_weight(measured[index], np.delete(measured, index, axis=0)) == 0.0


def test_no_problems_give_no_times(model: KernelModel) -> None:
    assert model.time_ms(Family.LINEAR, GemmProblem.of(m=[], n=[], k=[]), find_device("T4")).shape == (0,)


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_no_kernel_beats_the_peak_rates_once_the_launch_is_taken_off(model: KernelModel, family: Family) -> None:
    problem = next(problem for each, problem in LADDERS.values() if each is family)
    for device in load_catalog():
        busy_ms, time_ms = model.busy_ms(family, problem, [device])[0], model.time_ms(family, problem, device)
        assert (busy_ms >= lower_bound_ms(family, problem, [device])[0]).all(), device.name
        assert (busy_ms > 0.0).all(), device.name
        # A call's time holds its kernel's and the host's; a law joins the two from the kernel on.
        assert (busy_ms <= np.maximum(time_ms, lower_bound_ms(family, problem, [device])[0])).all(), device.name


def test_a_short_kernel_hides_in_the_shadow_of_its_launch(model: KernelModel) -> None:
    device = find_device("V100-PCIE-32GB")
    problem = ElementwiseProblem.of(elements=[1e4, 1e8], operator="relu")
    short_ms, long_ms = model.busy_ms(Family.ELEMENTWISE, problem, [device])[0]
    moved_ms = problem.bytes / (device.bandwidth_gb_s * 1e6)
    # The short one's measured time is that of an empty one, give or take a microsecond.
    assert short_ms == pytest.approx(moved_ms[0], abs=1e-3)
    # A stream runs at some nine tenths of the peak rate, and from the first byte on.
    assert 0.85 < moved_ms[1] / long_ms < 1.0
    doubled = model.busy_ms(Family.ELEMENTWISE, ElementwiseProblem.of(elements=2e8, operator="relu"), [device])[0, 0]
    assert doubled / long_ms == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(("family", "problem"), [
    (Family.LINEAR, GemmProblem.of(m=4096, n=4096, k=4096)),
    (Family.SOFTMAX, RowProblem.of(rows=16000, width=4000)),
])  # fmt: skip
def test_of_a_long_call_all_but_the_launch_is_its_kernel(model: KernelModel, family: Family, problem: Problem) -> None:
    """The floor less the shadow is what the host adds: tens of microseconds, whatever the kernel is."""
    shadows = model.manifest["shadow_ms"]
    assert set(shadows) == {"A100-PCIE-40GB", "P100-PCIE-16GB", "P4", "T4", "V100-PCIE-32GB"}
    assert all(0.01 < shadow < 0.03 for shadow in shadows.values())
    for name in shadows:
        device = find_device(name)
        host_ms = model.time_ms(family, problem, device)[0] - model.busy_ms(family, problem, [device])[0, 0]
        assert 0.01 < host_ms < 0.1


@pytest.mark.parametrize("device_name", ["V100-PCIE-32GB", "A100-PCIE-40GB", "T4", "H100"])
@pytest.mark.parametrize("family", ["linear", "elementwise", "softmax", "layer_norm"])
def test_kernels_do_not_jump_where_they_leave_the_shadow(model: KernelModel, family: str, device_name: str) -> None:
    # In multiples of 8: libraries have other kernels for what is not aligned.
    rows = np.unique(np.round(2.0 ** np.arange(4, 14, 0.02) / 8.0)) * 8.0
    problem: Problem = {
        "linear": GemmProblem.of(m=256, n=256, k=rows),
        "elementwise": ElementwiseProblem.of(elements=rows * 4096, operator="gelu"),
        "softmax": RowProblem.of(rows=rows, width=256),
        "layer_norm": RowProblem.of(rows=rows, width=512),
    }[family]
    busy_ms = model.busy_ms(Family(family), problem, [find_device(device_name)])[0]
    work = rows[1:] / rows[:-1]
    # Half as much again as the work grows, at most.
    assert (busy_ms[1:] / busy_ms[:-1] < 1.5 * work).all()
    assert (busy_ms[1:] / busy_ms[:-1] > 0.75).all()


def test_a_law_answers_with_its_kernel_alone(model: KernelModel) -> None:
    problem, device = GemmProblem.of(b=[8, 96], m=197, n=197, k=64), find_device("H100")
    law = TileLaw.from_dict(model.manifest["families"]["bmm"]["tile_law"])
    np.testing.assert_allclose(
        model.busy_ms(Family.BMM, problem, [device])[0], law.kernel_ms(tile_terms(problem, device))
    )


def test_the_artefact_is_small_complete_and_not_pickled() -> None:
    files = sorted(ARTEFACT_DIRECTORY.iterdir())
    assert {file.suffix for file in files} == {".json", ".onnx"}
    assert sum(file.stat().st_size for file in files) < 3_000_000
    manifest = json.loads((ARTEFACT_DIRECTORY / "artefact.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == 0
    assert manifest["command"].startswith("python -m dippm.training.kernels")
    for family in Family:
        assert len(manifest["families"][family.value]["data_sha256"]) == 64
        entry = manifest["families"][family.value]
        for kind in ("measured",) if "tile_law" in entry else ("measured", "transfer"):
            assert (ARTEFACT_DIRECTORY / f"{family.value}-{kind}.onnx").is_file()


def test_a_missing_artefact_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DippmError, match=r"artefact\.json") as caught:
        KernelModel(tmp_path)
    assert caught.value.code == "artefact.unreadable"


def test_an_artefact_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "artefact.json").write_text('{"version": 99}', encoding="utf-8")
    with pytest.raises(DippmError, match="99") as caught:
        KernelModel(tmp_path)
    assert caught.value.code == "artefact.version"


def test_a_damaged_network_is_a_clear_error(tmp_path: Path) -> None:
    manifest = (ARTEFACT_DIRECTORY / "artefact.json").read_text(encoding="utf-8")
    (tmp_path / "artefact.json").write_text(manifest, encoding="utf-8")
    (tmp_path / "linear-measured.onnx").write_bytes(b"not a network")
    with pytest.raises(DippmError, match="linear-measured"):
        KernelModel(tmp_path).time_ms(Family.LINEAR, GemmProblem.of(m=1, n=1, k=1), find_device("A100-PCIE-40GB"))


def test_inference_imports_neither_torch_nor_pandas_nor_lightgbm() -> None:
    code = (
        "import sys; from dippm.costs.kernels import *; from dippm.devices import find_device;"
        "load_kernel_model().time_ms(Family.LINEAR, GemmProblem.of(m=8, n=8, k=8), find_device('T4'));"
        "print([name for name in ('torch', 'pandas', 'lightgbm', 'pyarrow', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_products_deeper_than_any_measured_one_go_by_the_law_on_every_device() -> None:
    model = load_kernel_model()
    card = find_device("A100-PCIE-40GB")
    assert model.support(Family.BMM, card).weight == 1.0
    law = TileLaw.from_dict(model.manifest["families"]["bmm"]["tile_law"])
    depths = np.array([64.0, 1024.0, 4096.0, 16384.0, 65536.0, 2.0**20])
    problem = GemmProblem.of(m=192, n=192, k=depths)
    ratio = model.time_ms(Family.BMM, problem, card) / law.time_ms(problem, card)
    assert ratio[-2:] == pytest.approx(1.0)
    # What was measured is answered by what was learned from it, and nothing jumps between.
    assert abs(ratio[1] - 1.0) > 0.01
    times = model.time_ms(Family.BMM, GemmProblem.of(m=192, n=192, k=2.0 ** np.arange(6, 21, 0.25)), card)
    assert (np.diff(times) > 0.0).all()


def test_problems_are_answered_alike_alone_and_in_blocks(model: KernelModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep asks for thousands of them at once."""
    problem = GemmProblem.of(m=np.arange(1, 1001), n=768, k=768)
    devices = [find_device(name) for name in ("A100", "T4", "H100")]
    expected = model.times_ms(Family.LINEAR, problem, devices)
    monkeypatch.setattr("dippm.costs.kernels.model._ROWS_PER_RUN", 7)
    assert np.array_equal(model.times_ms(Family.LINEAR, problem, devices), expected)


def test_what_was_asked_lately_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    model, devices = KernelModel(), [find_device("A100"), find_device("T4")]
    asked: list[int] = []
    run = KernelModel._run

    def counted(self: KernelModel, family: Family, kind: str, matrix: np.ndarray) -> np.ndarray:
        asked.append(matrix.shape[-2])
        return run(self, family, kind, matrix)

    monkeypatch.setattr(KernelModel, "_run", counted)
    first = model.busy_ms(Family.LINEAR, GemmProblem.of(m=[8, 16], n=64, k=64), devices)
    of_first = len(asked)
    again = model.busy_ms(Family.LINEAR, GemmProblem.of(m=[8, 16], n=64, k=64), tuple(devices))
    assert len(asked) == of_first
    np.testing.assert_array_equal(again, first)
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 0.0
    # The same numbers of another size are another question, and so are fewer devices and another family.
    other = GemmProblem.of(m=64, n=[8, 16], k=64)
    for family, problem, on in (
        (Family.LINEAR, other, devices),
        (Family.LINEAR, GemmProblem.of(m=[8, 16], n=64, k=64), devices[1:]),
        (Family.BMM, GemmProblem.of(m=[8, 16], n=64, k=64), devices),
    ):
        np.testing.assert_array_equal(model.busy_ms(family, problem, on), KernelModel().busy_ms(family, problem, on))


def test_of_many_problems_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, device = KernelModel(), find_device("A100")
    monkeypatch.setattr("dippm.costs.kernels.model._KEPT_PROBLEMS", 2)
    few, many = (GemmProblem.of(m=np.arange(1, count + 1), n=64, k=64) for count in (2, 3))
    assert model.busy_ms(Family.LINEAR, few, [device]) is model.busy_ms(Family.LINEAR, few, [device])
    assert model.busy_ms(Family.LINEAR, many, [device]) is not model.busy_ms(Family.LINEAR, many, [device])
