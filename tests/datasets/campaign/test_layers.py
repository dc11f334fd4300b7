"""A campaign of layers from the list to the files, on the CPU."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
from dippm.costs.precision import Precision
from dippm.datasets.campaign import layers
from dippm.datasets.campaign.layers import LAYERS_SOURCE, list_plans, main
from dippm.datasets.recipes.building import RecipeSource
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.parquet import read_parquet
from dippm.datasets.store.traces import read_traces
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring import layer_bench
from dippm.measuring.layer import Layer
from dippm.measuring.operator_run import KernelRun, OperatorRun

_LENET = Recipe(
    collection="made-up",
    family="lenet",
    architecture="dnnperf:lenet",
    arguments={"in_chans": 1, "height": 28, "width": 28},
    inputs=InputShapes(positional=(InputEntry(shape=(1, 28, 28)),)),
    batch=2,
)


def test_models_come_in_amp_at_two_batches_and_every_few_in_other_conditions() -> None:
    plans = list(list_plans({"dippm-zoo": 10}, 64))
    assert plans == list(list_plans({"dippm-zoo": 10}, 64))
    assert len(set(plans)) == len(plans)
    named, drawn = load_collection("timm-named")[:64], load_collection("dippm-zoo")[10:74]
    amp = [recipe for recipe, conditions in plans if conditions.precision is Precision.AMP]
    assert {recipe.key for recipe in (*named, *drawn)} <= {recipe.key for recipe in amp}
    assert {recipe.model_key for recipe in amp} == {recipe.model_key for recipe in (*named, *drawn)}
    for precision in set(Precision) - {Precision.AMP}:
        share = sum(conditions.precision is precision for _, conditions in plans) / 128
        assert 1 / 20 <= share <= 1 / 4
    assert 1 / 8 <= sum(conditions.layout.value == "nhwc" for _, conditions in plans) / 128 <= 1 / 3


class _Bench:
    """Every operator of a layer takes a microsecond; windows of one pixel do not run."""

    def __init__(self, device: str) -> None:
        assert device == "cpu"

    def trace(self, some: Sequence[Layer]) -> list[tuple[OperatorRun, ...] | None]:
        kernel = KernelRun(name="a kernel", launched_by="aten::x", start_us=0.5, duration_us=1.0)
        run = OperatorRun(name="aten::x", input_shapes=((1,),), scalars=("",), is_backward=False, kernels=(kernel,))
        return [None if layer.kernel == (1, 1) else (run,) * layer.operators for layer in some]


@pytest.fixture(name="listed")
def _listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    collections = {"dippm-zoo": (_LENET, _LENET), "timm-named": ()}
    monkeypatch.setattr(layers, "load_collection", collections.__getitem__)
    monkeypatch.setattr(layer_bench, "LayerBench", _Bench)
    path = tmp_path / "layers.gz"
    main(["list", "--cache", str(tmp_path / "graphs"), "--first", "dippm-zoo=1", "--models", "5", "--out", str(path)])
    return path


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return stream.readlines()


def test_each_layer_is_listed_once_with_its_model(listed: Path) -> None:
    every = [json.loads(line) for line in _lines(listed)]
    assert Recipe.from_dict(every[0][0]) == _LENET
    assert every[0][1:3] == ["amp", "nchw"]
    texts = [text for *_, own in every for text in own]
    assert len(texts) == len(set(texts)) > 2
    module, _ = RecipeSource(_LENET).build("cpu")
    windows = [own.kernel_size for own in module.modules() if type(own).__name__ == "Conv2d"]
    assert [Layer.from_text(text).kernel for text in every[0][3]] == windows


def test_what_was_measured_is_collected(listed: Path, tmp_path: Path) -> None:
    main(["measure", str(listed), "--out", str(tmp_path / "rows"), "--budget", "100", "--device", "cpu"])
    (rows,) = (tmp_path / "rows").iterdir()
    files = [tmp_path / "labels.parquet", tmp_path / "traces.parquet"]
    out = ["--labels", str(files[0]), "--traces", str(files[1])]
    main(["collect", str(listed), "--rows", str(rows), *out])
    labels, traces = list(read_parquet(files[0])), read_traces(files[1])
    texts = [text for line in _lines(listed) for text in json.loads(line)[3]]
    assert list(traces) == [text for text in texts if Layer.from_text(text).kernel != (1, 1)]
    assert all(len(runs) == Layer.from_text(text).operators for text, runs in traces.items())
    assert traces[texts[0]][0].kernels[0].name == "a kernel"
    assert {label.source for label in labels} == {LAYERS_SOURCE}
    assert {label.recipe.model_key for label in labels} == {_LENET.model_key}
    assert sum(label.measurement.device_time_ms or 0.0 for label in labels) == pytest.approx(
        1e-3 * sum(map(len, traces.values()))
    )
    assert all(label.measurement.latency_ms is None for label in labels)
    assert all(label.measurement.software.framework.startswith("torch ") for label in labels)


def test_rows_that_were_cut_off_are_passed_over(listed: Path, tmp_path: Path) -> None:
    main(["measure", str(listed), "--out", str(tmp_path / "rows"), "--budget", "100", "--device", "cpu"])
    (rows,) = (tmp_path / "rows").iterdir()
    lines = _lines(rows)
    cut = tmp_path / "cut.gz"
    with cut.open("wb") as stream:
        stream.write(gzip.compress("".join(lines[:3]).encode()) + gzip.compress(lines[3].encode())[:-12])
    files = [tmp_path / "labels.parquet", tmp_path / "traces.parquet"]
    main(["collect", str(listed), "--rows", str(cut), "--labels", str(files[0]), "--traces", str(files[1])])
    assert list(read_traces(files[1])) == [json.loads(line)[0] for line in lines[1:3]]


def test_measuring_ends_with_the_budget(listed: Path, tmp_path: Path) -> None:
    main(["measure", str(listed), "--out", str(tmp_path / "rows"), "--budget", "0", "--device", "cpu"])
    (rows,) = (tmp_path / "rows").iterdir()
    assert len(_lines(rows)) == 1


def test_a_layer_out_of_reach_is_not_listed() -> None:
    text = '["amp","nchw",[128,512,384,384],2,false,512,[3,3],[1,1],[1,1],[1,1],1,false,true,"relu",true]'
    layer = Layer.from_text(text)
    assert not layers._is_in_reach(layer)
    assert layers._is_in_reach(Layer.from_text(text.replace("128,512,384,384", "1,512,14,14")))


@pytest.mark.parametrize("text", ["dippm-zoo", "dippm-zoo=x", "transformers=3"])
def test_a_collection_and_a_number_are_asked_for(text: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["list", "--cache", str(tmp_path), "--first", text, "--models", "1", "--out", str(tmp_path / "x")])
