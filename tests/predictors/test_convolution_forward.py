"""The network of convolutions with NumPy gives what PyTorch's gives, and corrects convolutions alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dippm.costs.conditions import Conditions, Mode  # noqa: E402
from dippm.costs.kernels.model import load_kernel_model  # noqa: E402
from dippm.devices import find_device  # noqa: E402
from dippm.errors import DippmError  # noqa: E402
from dippm.features.physical import COLUMNS, PhysicalPlan, PhysicalSamples  # noqa: E402
from dippm.features.physical.columns import AT  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402
from dippm.models.convolution import ConvolutionNetwork  # noqa: E402
from dippm.predictors.additive_artefact import (  # noqa: E402
    AdditiveArtefact,
    Regime,
    manifest_path,
    read_tensors,
)
from dippm.predictors.additive_corrector import Corrector  # noqa: E402
from dippm.predictors.calibration import Calibration  # noqa: E402
from dippm.predictors.convolution_forward import CONVOLUTIONS, ConvolutionForward  # noqa: E402
from dippm.training.convolution_fit import FittedConvolutions  # noqa: E402
from dippm.training.feature_scale import FeatureScale  # noqa: E402

_AMP = Conditions.parse(precision="amp")
_BATCHES = [1, 4, 32]


def _graph(builder: Any) -> Graph:
    n = builder.N
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 8, 16, 16)
    for width in (8, 24, 8):
        x = builder.node(OpKind.CONV, [x, builder.weight(width, 8, 3, 3)], n, width, 16, 16, **window)
        x = builder.node(OpKind.RELU, [x], n, width, 16, 16)
        if width != 8:
            x = builder.node(OpKind.CONV, [x, builder.weight(8, width, 3, 3)], n, 8, 16, 16, **window)
    return builder.graph(x)  # type: ignore[no-any-return]


@pytest.fixture(name="plan")
def _plan(new_builder: Callable[[], Any]) -> PhysicalPlan:
    return PhysicalPlan.from_graph(_graph(new_builder()), _AMP.precision)


@pytest.fixture(name="sample")
def _sample(plan: PhysicalPlan) -> PhysicalSamples:
    rates = Calibration.read().rates
    return plan.at(_BATCHES, device=find_device("H200"), conditions=_AMP, rates=rates, kernels=load_kernel_model())


def _fitted(features: np.ndarray[Any, Any]) -> FittedConvolutions:
    scale = FeatureScale.of_nodes(features, ("rows_by_8",), ramps=4)
    inputs = np.flatnonzero(np.ptp(scale.inputs(features), axis=0) > 0.0)
    torch.manual_seed(3)
    network = ConvolutionNetwork(inputs=len(inputs), width=16, layers=2)
    torch.nn.init.normal_(network.output.weight)
    return FittedConvolutions(network=network.eval(), scale=scale, inputs=inputs)


def test_both_forwards_agree(plan: PhysicalPlan, sample: PhysicalSamples) -> None:
    chosen = np.flatnonzero(plan.static[:, AT["is_conv"]])
    assert len(chosen) == 4
    features = sample.node_features[:, chosen]
    fitted = _fitted(features.reshape(-1, features.shape[-1]))
    forward = ConvolutionForward(fitted.tensors(), np.arange(len(COLUMNS)))
    prepared = forward.prepare(plan)
    assert prepared.chosen.tolist() == chosen.tolist()
    found = forward.factors(sample, prepared)
    inputs = fitted.scale.inputs(features.reshape(-1, features.shape[-1]))[:, fitted.inputs]
    with torch.no_grad():
        wanted = np.exp(fitted.network(torch.from_numpy(inputs)).numpy()).reshape(len(_BATCHES), -1)
    assert found == pytest.approx(wanted, rel=1e-5)
    assert np.ptp(wanted) > 0.1


def test_tensors_give_the_network_back(sample: PhysicalSamples) -> None:
    fitted = _fitted(sample.node_features.reshape(-1, len(COLUMNS)))
    tensors = fitted.tensors()
    assert all(name.startswith(CONVOLUTIONS) for name in tensors)
    again = FittedConvolutions.from_tensors(tensors)
    assert again is not None
    assert again.tensors().keys() == tensors.keys()
    assert all(np.array_equal(again.tensors()[name], values) for name, values in tensors.items())
    assert FittedConvolutions.from_tensors({"scale.mean": tensors["convolutions.scale.mean"]}) is None


def _read_by(artefact: AdditiveArtefact, sample: PhysicalSamples) -> np.ndarray[Any, Any]:
    """The features that its networks read."""
    columns = [AT[name] for name in artefact.columns]
    return sample.node_features[..., columns].reshape(-1, len(columns))


@pytest.fixture(name="shipped")
def _shipped() -> tuple[AdditiveArtefact, dict[str, Any]]:
    path = manifest_path(Regime(mode=Mode.INFERENCE, architecture="9.0"))
    tensors = {name: v for name, v in read_tensors(path).items() if not name.startswith(CONVOLUTIONS)}
    artefact = AdditiveArtefact.read(path)
    return replace(artefact, settings={**artefact.settings, "convolution_epochs": 0}), tensors


def test_convolutions_alone_are_corrected(
    plan: PhysicalPlan, sample: PhysicalSamples, shipped: tuple[AdditiveArtefact, dict[str, Any]]
) -> None:
    artefact, tensors = shipped
    fitted = _fitted(_read_by(artefact, sample))
    none = np.zeros(len(plan.node), dtype=np.bool_)
    times = []
    for held in (tensors, tensors | fitted.tensors()):
        corrector = Corrector(artefact, held)
        times.append(corrector.time_ms(corrector.read(corrector.prepare(plan), sample), is_emulated=none))
    chosen = np.flatnonzero(plan.static[:, AT["is_conv"]])
    others = np.setdiff1d(np.arange(len(plan.node)), chosen)
    assert np.array_equal(times[0][:, others], times[1][:, others])
    assert not np.any(np.isclose(times[0][:, chosen], times[1][:, chosen], rtol=1e-3))
    # What the device has no units for keeps the time of the plain sum, convolutions too.
    corrector = Corrector(artefact, tensors | fitted.tensors())
    plain = corrector.time_ms(corrector.read(corrector.prepare(plan), sample), is_emulated=~none)
    plain_before = Corrector(artefact, tensors)
    before = plain_before.time_ms(plain_before.read(plain_before.prepare(plan), sample), is_emulated=~none)
    assert np.array_equal(plain, before)


@pytest.mark.parametrize("name", ["inputs", "own.1.bias", "ramp.start"])
def test_a_network_of_which_something_is_missing_is_not_read(
    sample: PhysicalSamples, shipped: tuple[AdditiveArtefact, dict[str, Any]], name: str
) -> None:
    artefact, tensors = shipped
    own = _fitted(_read_by(artefact, sample)).tensors()
    del own[f"{CONVOLUTIONS}{name}"]
    with pytest.raises(DippmError) as caught:
        Corrector(artefact, tensors | own)
    assert caught.value.code == "artefact.unreadable"


def test_a_network_of_other_inputs_is_not_read(
    sample: PhysicalSamples, shipped: tuple[AdditiveArtefact, dict[str, Any]]
) -> None:
    artefact, tensors = shipped
    fitted = _fitted(_read_by(artefact, sample))
    for inputs in (fitted.inputs[:-1], fitted.inputs + 10_000, fitted.inputs - 10_000):
        with pytest.raises(DippmError, match="convolutions"):
            Corrector(artefact, tensors | replace(fitted, inputs=inputs).tensors())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("own.0.weight", np.zeros((16, 9), dtype=np.float32)),
        ("own.1.bias", np.zeros(7, dtype=np.float32)),
        ("output.weight", np.zeros((1, 9), dtype=np.float32)),
        ("scale.mean", np.zeros(7, dtype=np.float32)),
        ("input.bias", np.full(16, np.nan, dtype=np.float32)),
    ],
)
def test_a_network_whose_sizes_do_not_fit_is_not_read(
    sample: PhysicalSamples, shipped: tuple[AdditiveArtefact, dict[str, Any]], name: str, values: np.ndarray[Any, Any]
) -> None:
    artefact, tensors = shipped
    own = _fitted(_read_by(artefact, sample)).tensors()
    own[f"{CONVOLUTIONS}{name}"] = values
    with pytest.raises(DippmError) as caught:
        Corrector(artefact, tensors | own)
    assert caught.value.code == "artefact.unreadable"


def test_networks_that_were_trained_on_top_of_another_are_not_read_without_it(
    shipped: tuple[AdditiveArtefact, dict[str, Any]],
) -> None:
    artefact, tensors = shipped
    Corrector(artefact, tensors)
    trained = replace(artefact, settings={**artefact.settings, "convolution_epochs": 30})
    with pytest.raises(DippmError, match="convolutions") as caught:
        Corrector(trained, tensors)
    assert caught.value.code == "artefact.unreadable"
