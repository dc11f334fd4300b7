"""Predictions and packings as parts of Kubernetes manifests.

NVIDIA's device plugin offers MIG slices as resources of their own, ``nvidia.com/mig-1g.5gb``, under its ``mixed``
strategy, and whole cards as ``nvidia.com/gpu``. GPU feature discovery labels a node with the name of its cards,
``nvidia.com/gpu.product``: NVML's name with hyphens for spaces (``productLabel`` in the plugin's
``internal/lm/resource.go``). Drivers from release 470 on put "NVIDIA" before the names of most cards, so that both
spellings are asked for. MIG slices are made by NVIDIA's MIG manager from a configuration of ``nvidia-mig-parted``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from dippm.api.needed_memory import needed_of
from dippm.api.packing import ModelPacking, PackedModel, device_of
from dippm.api.yaml_text import to_yaml
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError
from dippm.placement.packing import PackedGpu
from dippm.predictors.prediction import Prediction, round_figures

__all__ = ["packing_manifest", "pod_fragment"]

_CONTAINER = "model"
_NO_SLICES = "all-disabled"
# Of the 63 characters that a name may have, some are for telling equal ones apart.
_LONGEST_NAME = 56


def pod_fragment(prediction: Prediction, device: DeviceSpec | None = None) -> str:
    """What a pod's manifest must say to get the slice that a prediction recommends.

    Args:
        prediction: The prediction; the whole card is asked for where no MIG slice is recommended and the card holds it.
        device: The device that it is for; looked up by its name when left out.

    Returns:
        YAML with ``metadata`` (the prediction as annotations) and ``spec`` (node affinity and resource limits), to
        stand in a Pod or in the template of a Deployment.

    Raises:
        UnsupportedError: ``k8s.too_large`` where not even the whole device holds the model, or nothing is known of its
            memory; ``k8s.no_gpu`` where no device is given and the catalogue knows none of that name.
    """
    spec = _find_gpu(prediction.device) if device is None else device
    interval = prediction.must_have_mb
    if interval is None:
        raise UnsupportedError(
            f"Nothing is predicted of the memory of '{prediction.model.source}', so that no slice can be asked for.",
            code="k8s.too_large",
        )
    profile, card = prediction.mig, spec.name
    if spec.is_mig_slice:
        profile, _, card = spec.name.partition("@")
    # A slice that was recommended holds the model already.
    if (spec.is_mig_slice or profile is None) and interval[1] > spec.capacity_mb:
        raise UnsupportedError(
            f"'{prediction.model.source}' may need {interval[1]:,.0f} MiB, and {spec.name} offers "
            f"{spec.capacity_mb:,.0f} MiB.",
            code="k8s.too_large",
            cure="Take a smaller batch or a larger device.",
        )
    return to_yaml(_pod(prediction, card, profile, interval))


def _find_gpu(name: str) -> DeviceSpec:
    try:
        return find_device(name)
    except UnsupportedError as exc:
        raise UnsupportedError(
            f"'{name}' is no GPU of the catalogue, so that no manifest asks for it.",
            code="k8s.no_gpu",
            cure="If it is a GPU, give its figures in Python: pod_fragment(prediction, load_device_file(FILE)).",
        ) from exc


def packing_manifest(packing: ModelPacking) -> str:
    """A packing as YAML documents: how to slice the GPUs, then what each model's Deployment must say.

    Args:
        packing: The packing.

    Returns:
        A ConfigMap for NVIDIA's MIG manager with one configuration for each kind of GPU, as if all GPUs of a kind were
        on one node; where no GPU is sliced there is none. Then a patch of a Deployment for each model, and for each
        size of slice that it runs on.
    """
    documents = []
    sliced = [number for number, _ in enumerate(packing.kinds) if any(_is_sliced(gpu, number) for gpu in packing.gpus)]
    if sliced:
        # What the GPU operator gives to nodes that ask for no other.
        configurations: dict[str, object] = {_NO_SLICES: [{"devices": "all", "mig-enabled": False}]}
        configurations |= {
            _as_name(packing.kinds[number].device.name): _slicing([gpu for gpu in packing.gpus if gpu.kind == number])
            for number in sliced
        }
        documents.append(
            to_yaml(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": "dippm-mig-config"},
                    # The manager reads YAML from this text.
                    "data": {"config.yaml": to_yaml({"version": "v1", "mig-configs": configurations})},
                }
            )
        )
    names: Counter[str] = Counter()
    for model in packing.models:
        places = Counter((g.kind, each.profile) for g in packing.gpus for each in g.slices if each.name == model.name)
        for (kind, profile), replicas in places.items():
            name = _as_name(f"{model.name}-{profile or packing.kinds[kind].device.name}")
            names[name] += 1
            unique = name if names[name] == 1 else f"{name}-{names[name]}"
            documents.append(to_yaml(_deployment(packing, model, kind, profile, name=unique, replicas=replicas)))
    return "---\n".join(documents)


def _is_sliced(gpu: PackedGpu, kind: int) -> bool:
    return gpu.kind == kind and any(each.profile is not None for each in gpu.slices)


def _slicing(gpus: Sequence[PackedGpu]) -> list[object]:
    """The configuration of GPUs of one kind: those that are sliced alike together."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for number, gpu in enumerate(gpus):
        counts = Counter(each.profile for each in gpu.slices if each.profile is not None)
        alike.setdefault(tuple(sorted(counts.items())), []).append(number)
    return [
        {"devices": numbers, "mig-enabled": True, "mig-devices": dict(counts)}
        if counts
        else {"devices": numbers, "mig-enabled": False}
        for counts, numbers in alike.items()
    ]


def _deployment(
    packing: ModelPacking, model: PackedModel, kind: int, profile: str | None, *, name: str, replicas: int
) -> dict[str, object]:
    card = packing.kinds[kind].device
    on_card = model.on_cards[card.name]
    prediction = model.on_slices[device_of(packing.kinds, kind, profile).name]
    pod = _pod(prediction, card.name, profile, needed_of(on_card))
    metadata: dict[str, object] = {"name": name}
    if model.name != prediction.model.source:
        # Of the name that was given a manifest's may have lost letters.
        metadata["annotations"] = {"dippm/name": model.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": replicas, "template": pod},
    }


def _pod(
    prediction: Prediction, product: str, profile: str | None, memory_mb: tuple[float, float]
) -> dict[str, object]:
    resource = "nvidia.com/gpu" if profile is None else f"nvidia.com/mig-{profile}"
    label = product.replace(" ", "-")
    return {
        "metadata": {"annotations": _annotations(prediction, product, profile, memory_mb)},
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {
                                        "key": "nvidia.com/gpu.product",
                                        "operator": "In",
                                        "values": [f"NVIDIA-{label}", label],
                                    }
                                ]
                            }
                        ]
                    }
                }
            },
            "containers": [{"name": _CONTAINER, "resources": {"limits": {resource: 1}}}],
        },
    }


def _annotations(
    prediction: Prediction, product: str, profile: str | None, memory_mb: tuple[float, float]
) -> dict[str, str]:
    """What the request rests on; the memory is that of the interval which the slice was chosen by."""
    conditions = prediction.conditions
    found = {
        "model": prediction.model.source,
        "device": product,
        "mig": profile or _no_slice(prediction),
        "batch": str(prediction.batch),
        "mode": conditions.mode.value,
        "precision": conditions.precision.value,
        "memory-mb-low": f"{round_figures(memory_mb[0]):g}",
        "memory-mb-high": f"{round_figures(memory_mb[1]):g}",
    }
    # The time on a whole card says nothing of that on a slice.
    if prediction.device == (product if profile is None else f"{profile}@{product}"):
        low, high = prediction.intervals["latency_ms"]
        found |= {
            "latency-ms": f"{round_figures(prediction.latency_ms):g}",
            "latency-ms-low": f"{round_figures(low):g}",
            "latency-ms-high": f"{round_figures(high):g}",
        }
    found["predictor"] = f"{prediction.predictor.name} {prediction.predictor.version}"
    return {f"dippm/{key}": value for key, value in found.items()}


def _no_slice(prediction: Prediction) -> str:
    """Why a pod gets a whole card, as tables say it; none where a packing gives it one that a slice would do for."""
    return prediction.no_slice.value if prediction.mig is None else "none"


def _as_name(text: str) -> str:
    """A name that Kubernetes takes: small letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name[-_LONGEST_NAME:].strip("-") or "model"
