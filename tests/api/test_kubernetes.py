"""Manifests: the resource that is asked for, on which nodes, and what the annotations say."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml

import dippm
from dippm.devices import find_device, load_catalog, slice_device
from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 1024, 1024)
    builder.node(OpKind.RELU, [x], builder.N, 1024, 1024)
    return builder.graph()


def limits(pod: dict[str, Any]) -> dict[str, int]:
    (container,) = pod["spec"]["containers"]
    found: dict[str, int] = container["resources"]["limits"]
    return found


def products(pod: dict[str, Any]) -> list[str]:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ((expression,),) = (term["matchExpressions"] for term in required["nodeSelectorTerms"])
    assert (expression["key"], expression["operator"]) == ("nvidia.com/gpu.product", "In")
    found: list[str] = expression["values"]
    return found


@pytest.mark.parametrize("batch", [1, 400, 1000, 2000])
def test_exactly_the_recommended_slice(graph: Graph, batch: int) -> None:
    prediction = dippm.predict(graph, batch=batch)
    pod = yaml.safe_load(dippm.pod_fragment(prediction))
    assert limits(pod) == {f"nvidia.com/mig-{prediction.mig}": 1}
    assert products(pod) == ["NVIDIA-A100-SXM4-40GB", "A100-SXM4-40GB"]
    notes = pod["metadata"]["annotations"]
    low, high = prediction.intervals["memory_mb"]
    assert float(notes["dippm/memory-mb-low"]) == pytest.approx(low, rel=1e-3)
    assert float(notes["dippm/memory-mb-high"]) == pytest.approx(high, rel=1e-3)
    assert (notes["dippm/mig"], notes["dippm/batch"]) == (prediction.mig, str(batch))
    # The time on the whole card is not that on the slice.
    assert "dippm/latency-ms" not in notes
    assert all(isinstance(value, str) for value in notes.values())


def test_what_the_catalogue_does_not_know_is_asked_for_by_no_manifest(graph: Graph) -> None:
    """The device of a predictor of one's own, as a processor names itself."""
    prediction = replace(dippm.predict(graph), device="Intel(R) Xeon(R) Processor @ 2.80GHz")
    with pytest.raises(UnsupportedError, match=r"@ 2\.80GHz' is no GPU of the catalogue") as caught:
        dippm.pod_fragment(prediction)
    assert caught.value.code == "k8s.no_gpu"


def test_a_slice_of_a_card_of_ones_own(graph: Graph) -> None:
    own = replace(find_device("A30"), name="Card @ home")
    _, prediction = dippm.predict(graph, device=[own, "1g.6gb@Card @ home"])
    pod = yaml.safe_load(dippm.pod_fragment(prediction, slice_device(own, "1g.6gb")))
    assert limits(pod) == {"nvidia.com/mig-1g.6gb": 1}
    assert products(pod)[1] == "Card-@-home"


def test_a_slice_that_was_asked_about(graph: Graph) -> None:
    prediction = dippm.predict(graph, device="2g.10gb@A100")
    pod = yaml.safe_load(dippm.pod_fragment(prediction))
    assert limits(pod) == {"nvidia.com/mig-2g.10gb": 1}
    assert products(pod)[1] == "A100-SXM4-40GB"
    assert float(pod["metadata"]["annotations"]["dippm/latency-ms"]) == pytest.approx(prediction.latency_ms, rel=1e-3)


@pytest.mark.parametrize(("device", "batch"), [("T4", 1), ("A100", 0)])
def test_a_whole_card(graph: Graph, device: str, batch: int) -> None:
    # On the A100 the largest batch, which is more than its largest slice holds.
    batch = batch or dippm.max_batch(graph, device=device).batch
    prediction = dippm.predict(graph, device=device, batch=batch)
    pod = yaml.safe_load(dippm.pod_fragment(prediction))
    assert limits(pod) == {"nvidia.com/gpu": 1}
    assert pod["metadata"]["annotations"]["dippm/mig"] == prediction.mig_name
    assert prediction.mig_name == ("no MIG" if device == "T4" else "too large")
    assert "dippm/latency-ms" in pod["metadata"]["annotations"]


@pytest.mark.parametrize("device", ["T4", "A100", "1g.5gb@A100"])
def test_what_may_not_fit_is_refused(graph: Graph, device: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dippm.pod_fragment(dippm.predict(graph, device=device, batch=20_000))
    assert caught.value.code == "k8s.too_large"


def test_without_memory_there_is_no_slice(graph: Graph) -> None:
    prediction = replace(dippm.predict(graph), memory_mb=None, mig=None, intervals={}, needed_mb=None)
    with pytest.raises(UnsupportedError) as caught:
        dippm.pod_fragment(prediction)
    assert caught.value.code == "k8s.too_large"


def test_a_device_of_ones_own(graph: Graph) -> None:
    device = replace(find_device("A100"), name="My GPU")
    pod = yaml.safe_load(dippm.pod_fragment(dippm.predict(graph, device=device), device))
    assert products(pod) == ["NVIDIA-My-GPU", "My-GPU"]


@pytest.mark.parametrize("device", load_catalog(), ids=lambda spec: spec.name)
def test_labels_are_such_as_kubernetes_takes(graph: Graph, device: dippm.DeviceSpec) -> None:
    pod = yaml.safe_load(dippm.pod_fragment(dippm.predict(graph, device=device)))
    for value in products(pod):
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)


def test_a_packing_slices_the_gpus_as_it_places(graph: Graph) -> None:
    packing = dippm.pack(
        [
            dippm.ModelToPack(model=graph, name="Small one!", replicas=9),
            dippm.ModelToPack(model=graph, name="small-one", batch=400),
            dippm.ModelToPack(model=graph, name="whole", batch=dippm.max_batch(graph, device="A100").batch),
        ]
    )
    config, *deployments = yaml.safe_load_all(dippm.packing_manifest(packing))
    assert config["kind"] == "ConfigMap"
    slicing = yaml.safe_load(config["data"]["config.yaml"])
    assert slicing["version"] == "v1"
    groups = slicing["mig-configs"]["a100-sxm4-40gb"]
    assert list(slicing["mig-configs"]) == ["all-disabled", "a100-sxm4-40gb"]
    by_number = {number: group for group in groups for number in group["devices"]}
    assert sorted(by_number) == list(range(len(packing.gpus)))
    for number, gpu in enumerate(packing.gpus):
        counts = Counter(each.profile for each in gpu.slices)
        if None in counts:
            assert by_number[number] == {"devices": by_number[number]["devices"], "mig-enabled": False}
        else:
            assert by_number[number]["mig-devices"] == counts
    # Every slice that is made is asked for, and no other.
    asked: Counter[str] = Counter()
    for deployment in deployments:
        for resource, count in limits(deployment["spec"]["template"]).items():
            asked[resource] += count * deployment["spec"]["replicas"]
    offered = Counter(
        "nvidia.com/gpu" if each.profile is None else f"nvidia.com/mig-{each.profile}"
        for gpu in packing.gpus
        for each in gpu.slices
    )
    assert asked == offered
    names = [deployment["metadata"]["name"] for deployment in deployments]
    assert len(set(names)) == len(names) == 3
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)
    given = [deployment["metadata"]["annotations"]["dippm/name"] for deployment in deployments]
    assert given == ["Small one!", "small-one", "whole"]


def test_names_that_become_the_same_are_told_apart(graph: Graph) -> None:
    packing = dippm.pack([dippm.ModelToPack(model=graph, name=name) for name in ("a b", "a-b", "A/B")])
    _, *deployments = yaml.safe_load_all(dippm.packing_manifest(packing))
    assert len({deployment["metadata"]["name"] for deployment in deployments}) == 3


def test_cards_that_are_not_sliced_need_no_configuration(graph: Graph) -> None:
    documents = list(yaml.safe_load_all(dippm.packing_manifest(dippm.pack([graph], device="T4"))))
    assert [document["kind"] for document in documents] == ["Deployment"]
