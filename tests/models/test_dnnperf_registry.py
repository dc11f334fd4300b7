"""Networks of DNNPerf's evaluation by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dippm.errors import MissingExtraError, UsageError
from dippm.features.dnnperf_scaling import Scaler
from dippm.models import dnnperf_registry
from dippm.models.dnnperf_registry import (
    ABLATIONS,
    BASELINES,
    DNNPERF_MODELS,
    DNNPERF_NETWORKS,
    TREES,
    make_dnnperf_network,
)

_SETTINGS = {
    "hidden": 4,
    "dropout": 0.1,
    "outputs": 3,
    "node_features": 5,
    "edge_features": 4,
    "graph_features": 6,
}


@pytest.mark.parametrize("name", list(DNNPERF_NETWORKS))
def test_each_name_makes_its_class(name):
    pytest.importorskip("torch_geometric")
    network = make_dnnperf_network(name, **_SETTINGS)
    assert (type(network).__module__, type(network).__name__) == DNNPERF_NETWORKS[name].home


def test_everything_is_compared_once_and_anee_is_first():
    assert DNNPERF_MODELS[0] == "anee"
    assert sorted(DNNPERF_MODELS) == sorted({*DNNPERF_NETWORKS, TREES})
    assert len(ABLATIONS) == len(BASELINES) == 5


def test_ablations_differ_from_anee_in_one_thing():
    whole = DNNPERF_NETWORKS["anee"]
    for name in ABLATIONS:
        variant = DNNPERF_NETWORKS[name]
        changed = [variant.home != whole.home, variant.scaler is Scaler.STANDARD, variant.hides_costs]
        assert sum(changed) == 1, name


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(UsageError, match=r"anee, birnn, .*'transformer'") as caught:
        make_dnnperf_network("transformer", **_SETTINGS)
    assert caught.value.code == "network.unknown"


@pytest.mark.parametrize("wrong", [{"dropout": 1.0}, {"hidden": 0}, {"outputs": 0}, {"edge_features": -1}])
def test_settings_out_of_range(wrong):
    with pytest.raises(UsageError) as caught:
        make_dnnperf_network("anee", **_SETTINGS | wrong)
    assert caught.value.code == "network.settings"


def test_a_missing_package_is_named(monkeypatch):
    found = dnnperf_registry.find_spec
    monkeypatch.setattr(dnnperf_registry, "find_spec", lambda name: None if name == "torch_geometric" else found(name))
    with pytest.raises(MissingExtraError, match="torch_geometric"):
        make_dnnperf_network("anee", **_SETTINGS)


def test_names_are_known_without_torch():
    script = (
        "import sys; import dippm.models.dnnperf_registry, dippm.features.dnnperf, dippm.datasets.training_samples; "
        "print([name for name in ('torch', 'torch_geometric', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
