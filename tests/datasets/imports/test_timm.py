from collections import Counter
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.imports.timm import LADDER, import_timm_tables, labels_of_timm_rows
from dippm.datasets.location import data_folder
from dippm.datasets.store.label import Label
from dippm.datasets.store.label_store import LabelStore
from dippm.datasets.timm_tables import TimmRow
from dippm.devices import find_device
from dippm.frontends.inputs import InputEntry
from dippm.measuring.measurement import Outcome


def row(model: str, batch: int, *, mode: str = "inference", torch: str = "240", layout: str = "nchw") -> TimmRow:
    return TimmRow(
        model=model,
        image_size=160,
        batch=batch,
        step_time_ms=5.5,
        mode=mode,
        precision="amp",
        layout=layout,
        runtime="eager",
        device="GeForce RTX 3090",
        torch_version=torch,
        cuda_version="124",
    )


def test_a_row_as_a_label() -> None:
    (label,) = labels_of_timm_rows([row("resnet50d", 512)])
    assert label.recipe.architecture == "zoo:timm:resnet50d"
    assert label.recipe.inputs.positional == (InputEntry(shape=(3, 160, 160)),)
    assert (label.recipe.collection, label.recipe.family, label.recipe.batch) == ("timm", "resnet", 512)
    assert label.configuration.batch == 512
    assert label.configuration.conditions == Conditions.parse(precision="amp")
    measured = label.measurement
    assert (measured.outcome, measured.latency_ms, measured.device) == (Outcome.OK, 5.5, "GeForce RTX 3090")
    assert (measured.warmup_runs, measured.timed_runs) == (10, 40)
    assert (measured.software.framework, measured.software.cuda) == ("torch 2.4.0", "12.4")
    assert label.source == "timm torch 2.4.0"


def test_training_is_sgd_with_momentum() -> None:
    (label,) = labels_of_timm_rows([row("vgg16", 512, mode="training", torch="112", layout="nhwc")])
    expected = Conditions.parse(precision="amp", mode="training", layout="nhwc", optimizer="momentum")
    assert label.configuration.conditions == expected
    assert label.measurement.software.framework == "torch 1.12"


def test_a_batch_below_the_tables_first_says_what_did_not_fit() -> None:
    rows = [row("a", 512), row("b", 384), row("c", 1), row("a", 1024, torch="210"), row("b", 512, torch="210")]
    labels = list(labels_of_timm_rows(rows))
    seen = [
        (label.source[-5:], label.recipe.architecture[9:], label.recipe.batch, label.measurement.fits)
        for label in labels
    ]
    assert seen == [
        ("2.4.0", "a", 512, True),
        ("2.4.0", "b", 512, False),
        ("2.4.0", "b", 384, True),
        ("2.4.0", "c", 2, False),
        ("2.4.0", "c", 1, True),
        ("2.1.0", "a", 1024, True),
        ("2.1.0", "b", 768, False),
        ("2.1.0", "b", 512, True),
    ]
    refused = labels[1]
    assert refused.measurement.outcome is Outcome.OUT_OF_MEMORY
    assert refused.measurement.latency_ms is None
    assert refused.measurement.message
    assert refused.recipe.model_key == labels[2].recipe.model_key


def test_a_batch_off_the_ladder_says_nothing_of_larger_ones() -> None:
    labels = list(labels_of_timm_rows([row("a", 1024), row("b", 100)]))
    assert [label.recipe.batch for label in labels] == [1024, 100]


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("resnet18", "resnet"),
        ("tv_resnet152", "resnet"),
        ("swinv2_tiny_window8_256", "swin"),
        ("vit_base_patch16_224", "vit"),
        ("mobilenetv3_large_100", "mobilenet"),
        ("tf_efficientnetv2_s", "efficientnet"),
        ("res2net50_14w_8s", "res2net"),
        ("convnext_tiny", "convnext"),
        ("poolformerv2_s12", "poolformer"),
        ("dm_nfnet_f0", "nfnet"),
    ],
)
def test_families(model: str, family: str) -> None:
    (label,) = labels_of_timm_rows([row(model, 512)])
    assert label.recipe.family == family


@pytest.mark.data
def test_the_published_tables(tmp_path: Path) -> None:
    folder = data_folder() / "timm"
    labels = list(import_timm_tables(folder))

    def find(model: str, size: int, *, batch: int, device: str, source: str, **conditions: str) -> Label:
        wanted = Conditions.parse(precision="amp", **conditions)
        (found,) = [
            label
            for label in labels
            if label.recipe.architecture == f"zoo:timm:{model}"
            and label.recipe.inputs.positional[0].shape == (3, size, size)
            and (label.recipe.batch, label.measurement.device, label.source) == (batch, device, source)
            and label.configuration.conditions == wanted
        ]
        return found

    # Rows typed from the files.
    ada: dict[str, str] = {"device": "GeForce RTX 4090", "source": "timm torch 2.4.0"}
    assert find("resnet50", 224, batch=1024, **ada).measurement.latency_ms == 242.763  # type: ignore[arg-type]
    compiled = find("resnet50", 224, batch=256, runtime="compile", **ada)  # type: ignore[arg-type]
    assert compiled.measurement.latency_ms == 31.069
    nhwc = find("vit_giant_patch14_224", 224, batch=512, layout="nhwc", **ada)  # type: ignore[arg-type]
    assert nhwc.measurement.latency_ms == 2236.573
    ampere = {"device": "GeForce RTX 3090", "source": "timm torch 1.12", "mode": "training", "optimizer": "momentum"}
    trained = find("vit_base_patch16_224", 224, batch=192, **ampere)  # type: ignore[arg-type]
    assert trained.measurement.latency_ms == 490.391
    assert find("vit_base_patch16_224", 224, batch=256, **ampere).measurement.fits is False  # type: ignore[arg-type]
    assert find("vit_giant_patch14_224", 224, batch=12, **ampere).measurement.fits is False  # type: ignore[arg-type]

    # No row that ran at its table's first batch says anything of memory: the first is 256 or 512 in two tables.
    outcomes = Counter(label.measurement.outcome for label in labels)
    assert outcomes == {Outcome.OK: 13_229, Outcome.OUT_OF_MEMORY: 3_353}
    assert all(label.recipe.batch in LADDER for label in labels)
    assert len({label.key for label in labels}) == len(labels)
    for name in {label.measurement.device for label in labels}:
        assert find_device(name).name == name
    with LabelStore.open(tmp_path / "labels.sqlite") as store:
        assert store.add_all(labels[:1500]) == 1500
        assert list(store.labels()) == labels[:1500]
