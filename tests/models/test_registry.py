"""Networks by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dippm.errors import MissingExtraError, UsageError
from dippm.models import registry
from dippm.models.registry import NETWORKS, make_network


@pytest.mark.parametrize("name", list(NETWORKS))
def test_each_name_makes_its_class(name):
    pytest.importorskip("torch_geometric")
    network = make_network(name, hidden=4)
    assert (type(network).__module__, type(network).__name__) == NETWORKS[name]


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(UsageError, match=r"pmgns, gat, gcn, gin, mlp.*'transformer'") as caught:
        make_network("transformer")
    assert caught.value.code == "network.unknown"


@pytest.mark.parametrize(
    "setting", [{"dropout": 1.0}, {"dropout": -0.1}, {"hidden": 0}, {"outputs": 0}, {"static_features": -1}]
)
def test_settings_out_of_range(setting):
    with pytest.raises(UsageError) as caught:
        make_network("pmgns", **setting)
    assert caught.value.code == "network.settings"
    assert str(next(iter(setting.values()))) in str(caught.value)


@pytest.mark.parametrize("package", ["torch", "torch_geometric"])
def test_a_missing_package_is_named(monkeypatch, package):
    found = registry.find_spec
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(MissingExtraError, match=package):
        make_network("pmgns")


def test_names_are_known_without_torch():
    script = (
        "import sys; import dippm.models.registry, dippm.features.pmgns, dippm.predictors.pmgns_forward; "
        "print([name for name in ('torch', 'torch_geometric', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
