"""Layers by themselves as samples beside traced calls, all made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
from dippm.costs.conditions import Conditions, Mode
from dippm.datasets.captured_operators import captured_ms
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_layers import list_layers
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.errors import UsageError
from dippm.features.physical.columns import AT
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import Graph, OpKind
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.operator_run import KernelRun, OperatorRun
from dippm.training import additive_protocol
from dippm.training.additive_fit import AdditiveSettings, FittedAdditive, fit_additive
from dippm.training.additive_protocol import predict_models, with_layers
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.architecture_networks import load_traced_samples

_SQUARE = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
_AMP = Conditions.parse(precision="amp")


def _graph(builder: Any, width: int) -> Graph:
    """Two layers with an addition between them."""
    n = builder.N
    x = builder.input(n, width, 8, 8)
    first = builder.node(OpKind.CONV, [x, builder.weight(width, width, 3, 3)], n, width, 8, 8, **_SQUARE)
    first = builder.node(OpKind.RELU, [first], n, width, 8, 8)
    x = builder.node(OpKind.ADD, [first, first], n, width, 8, 8)
    second = builder.node(OpKind.CONV, [x, builder.weight(16, width, 3, 3)], n, 16, 8, 8, **_SQUARE)
    return builder.graph(builder.node(OpKind.SILU, [second], n, 16, 8, 8))  # type: ignore[no-any-return]


def _label(width: int, *, family: str = "one", source: str = "dippm-layers", latency_ms: float | None = None) -> Label:
    recipe = Recipe(
        collection="made-up",
        family=family,
        architecture="timm:resnet",
        arguments={"width": width},
        inputs=InputShapes(positional=(InputEntry(shape=(width, 8, 8)),)),
        batch=4,
    )
    measurement = Measurement(outcome=Outcome.OK, device="H200", measured_at="", latency_ms=latency_ms)
    configuration = Configuration(batch=4, conditions=_AMP)
    return Label(recipe=recipe, configuration=configuration, measurement=measurement, source=source)


def _run(name: str, *durations_us: float) -> OperatorRun:
    kernels = [KernelRun(name="k", launched_by=name, start_us=0.0, duration_us=each) for each in durations_us]
    return OperatorRun(name=name, input_shapes=(), scalars=(), is_backward=False, kernels=kernels)


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, new_builder: Callable[[], Any]) -> GraphCache:
    cache = GraphCache(tmp_path / "graphs")
    for width in (8, 16, 24):
        cache.save(_label(width).recipe.model_key, _graph(new_builder(), width), fingerprint=str(width))
    return cache


def _traces(cache: GraphCache, width: int, *places: int) -> dict[str, list[OperatorRun]]:
    cached = cache.load(_label(width).recipe.model_key, batch=4)
    assert cached is not None
    layers = [each.layer for each in list_layers(cached.graph, 4, _AMP)]
    return {layers[place].to_text(): [_run("aten::conv2d", 3.0, 4.0), _run("aten::relu_", 2.0)] for place in places}


def _samples(
    tmp_path: Path, labels: list[Label], traces: dict[str, list[OperatorRun]], *, widths: tuple[int, ...] = (24,)
) -> AdditiveSamples:
    calls = [_label(width, family="two", source="dippm", latency_ms=0.02) for width in widths]
    return load_traced_samples(
        calls,
        {call.key: [_run("aten::conv2d", 10.0), _run("aten::relu_", 1.0)] for call in calls},
        mode=Mode.INFERENCE,
        cache=tmp_path / "graphs",
        folder=tmp_path / "arrays",
        layers=labels,
        layer_traces=traces,
    )


def test_layers_stand_behind_the_calls_and_are_not_among_them(cache: GraphCache, tmp_path: Path) -> None:
    samples = _samples(tmp_path, [_label(8), _label(16)], _traces(cache, 8, 0, 1) | _traces(cache, 16, 1))
    assert (len(samples), samples.usable.tolist(), samples.layers.tolist()) == (3, [0], [1, 2])
    # As a captured graph runs them: three and four microseconds of two kernels, and two of one.
    conv_ms, relu_ms = captured_ms(_run("aten::conv2d", 3.0, 4.0)), captured_ms(_run("aten::relu_", 2.0))
    assert samples.measured_ms[1:].tolist() == pytest.approx([2 * (conv_ms + relu_ms), conv_ms + relu_ms])
    assert samples.learned_ms is not None
    assert samples.learned_ms[1:].tolist() == samples.measured_ms[1:].tolist()
    traced, arrays = samples.traced, samples.arrays
    assert traced is not None
    spans = np.diff(arrays.node_offsets).tolist()
    assert spans[1:] == [4, 2]
    assert np.diff(traced.group_offsets).tolist()[1:] == np.diff(traced.member_offsets).tolist()[1:] == [4, 2]
    last = slice(traced.group_offsets[-2], traced.group_offsets[-1])
    assert sorted(np.exp(traced.log_ms[last]).tolist()) == pytest.approx([relu_ms, conv_ms], rel=1e-5)
    assert traced.share[last].sum() == pytest.approx(1.0)
    features = arrays.node_features[arrays.node_offsets[1] :]
    assert features[:, AT["is_conv"]].sum() == 3
    assert features[:, AT["is_add"]].sum() == 0
    assert arrays.count[arrays.node_offsets[1] :].tolist() == [1.0] * 6


def test_operators_of_a_layer_hear_of_each_other_alone(cache: GraphCache, tmp_path: Path) -> None:
    arrays = _samples(tmp_path, [_label(8)], _traces(cache, 8, 0, 1)).arrays
    conv = arrays.node_features[arrays.node_offsets[1] :, AT["is_conv"]]
    for name in ("producer", "consumer"):
        first = getattr(arrays, f"{name}_offsets")[1]
        ends = [getattr(arrays, f"{name}_{end}")[first:].tolist() for end in ("source", "target")]
        # The activation hears of its convolution, or the other way round; not of the addition between the layers.
        assert len(ends[0]) == 2
        assert all(conv[source] != conv[target] for source, target in zip(*ends, strict=True))


def test_a_layer_belongs_to_the_first_model_that_has_it(cache: GraphCache, tmp_path: Path) -> None:
    again = _label(8, family="three")
    samples = _samples(tmp_path, [_label(8), again], _traces(cache, 8, 0))
    assert [samples.labels[row].recipe.family for row in samples.layers] == ["one"]


def test_layers_of_what_is_held_out_are_not_learnt(cache: GraphCache, tmp_path: Path) -> None:
    labels = [_label(8), _label(16, family="two"), _label(24, family="two")]
    traces = _traces(cache, 8, 0) | _traces(cache, 16, 0) | _traces(cache, 24, 0)
    samples = _samples(tmp_path, labels, traces)
    call, nothing = np.array([0]), np.zeros(0, dtype=np.int64)
    assert with_layers(samples, nothing, call).tolist() == [1, 2]
    assert with_layers(samples, nothing, call, holds_families=True).tolist() == [1]
    assert with_layers(samples, call, nothing).tolist() == [0, 1, 2, 3]


def test_models_are_left_out_of_calls_and_layers_are_learnt_once(
    cache: GraphCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = (8, 16, 24)
    samples = _samples(tmp_path, [_label(8), _label(16)], _traces(cache, 8, 0) | _traces(cache, 16, 0), widths=widths)
    learnt: list[list[int]] = []

    def fit(samples: AdditiveSamples, chosen: np.ndarray[Any, Any], settings: AdditiveSettings) -> FittedAdditive:
        learnt.append(chosen.tolist())
        return fit_additive(samples, chosen, settings)

    monkeypatch.setattr(additive_protocol, "fit_additive", fit)
    keys = [int(samples.labels[call].recipe.model_key, 16) for call in range(3)]
    folds = len({key % 2 for key in keys})
    assert folds == 2  # else one of them would be empty
    held = predict_models(samples, AdditiveSettings(members=1, epochs=1), folds=folds, folder=tmp_path / "fits")
    assert sorted(row for part in held for row in part.test.tolist()) == [0, 1, 2]
    for part, chosen in zip(held, learnt, strict=True):
        layers = [row for row in (3, 4) if row - 3 not in part.test]
        assert chosen == [row for row in range(3) if row not in part.test] + layers


def test_networks_of_calls_do_not_learn_from_layers(cache: GraphCache, tmp_path: Path) -> None:
    samples = _samples(tmp_path, [_label(8)], _traces(cache, 8, 0))
    settings = AdditiveSettings(members=1, epochs=2)
    with pytest.raises(UsageError) as caught:
        fit_additive(samples, samples.layers, settings)
    assert caught.value.code == "train.too_few"
    both, calls = (fit_additive(samples, chosen, settings) for chosen in (np.arange(2), samples.usable))
    assert np.array_equal(both.predict_ms(samples, np.arange(2)), calls.predict_ms(samples, np.arange(2)))
