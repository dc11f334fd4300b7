from collections import Counter
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.imports.whole_models import import_whole_models
from dippm.datasets.location import data_folder
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry
from dippm.graph import DType


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        list(import_whole_models(tmp_path))
    assert caught.value.code == "data.missing"


@pytest.mark.data
def test_rows_typed_by_hand() -> None:
    folder = data_folder() / "whole_models"
    labels = list(import_whole_models(folder))
    found = {
        (
            label.source,
            label.recipe.family,
            label.measurement.device,
            label.recipe.batch,
            label.configuration.conditions,
        ): label
        for label in labels
    }
    assert len(found) == len(labels) == len({label.key for label in labels})

    resnet = found["huggingface", "resnet", "Tesla T4", 16, Conditions()]
    assert resnet.measurement.latency_ms == 44.114
    assert resnet.recipe.architecture == "zoo:hf:ResNetForImageClassification"
    assert resnet.recipe.inputs.positional == (InputEntry(shape=(3, 224, 224)),)
    assert resnet.measurement.software.framework == "torch 2.0.1"
    compiled = found["huggingface", "mobilenet", "Tesla T4", 16, Conditions.parse(runtime="compile")]
    assert compiled.measurement.latency_ms == 201.942
    assert compiled.recipe.inputs.positional == (InputEntry(shape=(3, 513, 513)),)

    strict = Conditions.parse(precision="fp32-strict")
    bert = found["neusight", "bert", "L4", 16, strict]
    assert bert.measurement.latency_ms == pytest.approx(855.39716796875)
    assert bert.recipe.inputs.named == {"input_ids": InputEntry(shape=(512,), dtype=DType.INT64)}
    assert bert.recipe.arguments["num_hidden_layers"] == 24
    fused = found["neusight", "gpt2", "L4", 8, Conditions.parse(precision="fp32-strict", runtime="compile")]
    assert fused.measurement.latency_ms == pytest.approx(1775.090673828125)

    big = "A100-SXM4-80GB"
    tf32 = found["nvidia", "efficientnet", big, 256, Conditions.parse(precision="tf32")]
    # Batch over throughput (49.67), not the mean latency of the table (60.71).
    assert tf32.measurement.latency_ms == 49.6702
    mixed = found["nvidia", "efficientnet", big, 8, Conditions.parse(precision="amp", layout="nhwc")]
    assert mixed.measurement.latency_ms == 9.9626
    step = Conditions.parse(precision="amp", mode="training", layout="nhwc", optimizer="momentum")
    assert found["nvidia", "resnet", big, 256, step].measurement.latency_ms == 103.6437

    assert Counter(label.source for label in labels) == {"huggingface": 54, "neusight": 31, "nvidia": 20}
    for label in labels:
        assert find_device(label.measurement.device).name == label.measurement.device
        assert label.configuration.batch == label.recipe.batch
