from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import dippm
from dippm.errors import ModelReadError, UnsupportedError, UsageError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 256)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(512, 256)], builder.N, 512)
    builder.node(OpKind.RELU, [x], builder.N, 512)
    return builder.graph()


def test_one_batch_and_one_device_give_one_prediction(graph: Graph) -> None:
    assert isinstance(dippm.predict(graph, batch=4), dippm.Prediction)


@pytest.mark.parametrize(("batch", "device"), [([4], "A100"), (4, ["A100"]), ((1, 2), ("A100", "T4"))])
def test_lists_give_lists(graph: Graph, batch: Any, device: Any) -> None:
    answers = dippm.predict(graph, batch=batch, device=device)
    assert isinstance(answers, list)
    expected = (1 if isinstance(batch, int) else len(batch)) * (1 if isinstance(device, str) else len(device))
    assert len(answers) == expected


@pytest.mark.parametrize("batch", [0, -1, 1.5, None, "8", True, [], [1, 0], [1.5], 2**30])
def test_a_wrong_batch_is_refused(graph: Graph, batch: Any) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.predict(graph, batch=batch)
    assert caught.value.code == "batch.invalid"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"precision": "fp7"}, "precision.unknown"),
        ({"layout": "chw"}, "layout.unknown"),
        ({"mode": "dreaming"}, "mode.unknown"),
        ({"runtime": "warp"}, "runtime.unknown"),
        ({"optimizer": "adam"}, "optimizer.unused"),
        ({"mig_policy": "bold"}, "placement.policy"),
        ({"mode": "training", "runtime": "cuda-graph"}, "runtime.unsupported"),
        ({"mode": "training", "optimizer": "lion"}, "optimizer.unknown"),
        ({"mode": "training", "accumulation": 0}, "accumulation.invalid"),
        ({"accumulation": 4}, "training.unused"),
        ({"checkpointing": True}, "training.unused"),
        ({"runtime": "compile", "mode": "training", "device": "P100"}, "runtime.unsupported"),
        ({"runtime": "compile", "device": "P100"}, "runtime.unsupported"),
        ({"device": "A1000000"}, "device.unknown"),
        ({"software": "tensorflow 2.4"}, "software.unknown"),
    ],
)
def test_options_are_checked(graph: Graph, options: dict[str, Any], code: str) -> None:
    with pytest.raises((UsageError, UnsupportedError)) as caught:
        dippm.predict(graph, **options)
    assert caught.value.code == code


def test_whole_numbers_of_other_libraries_are_whole_numbers(graph: Graph) -> None:
    assert dippm.predict(graph, batch=np.int64(4)) == dippm.predict(graph, batch=4)
    assert [p.batch for p in dippm.predict(graph, batch=list(np.array([1, 2])))] == [1, 2]


@pytest.mark.parametrize("device", [3, [None], [3], [], ["A100", None]])
def test_a_wrong_device_is_refused(graph: Graph, device: Any) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.predict(graph, device=device)
    assert caught.value.code == "device.invalid"


@pytest.mark.parametrize("options", [{"batch": [1, 2]}, {"device": ["A100", "T4"]}])
def test_one_inspection_wants_one_batch_and_one_device(graph: Graph, options: Any) -> None:
    with pytest.raises(UsageError):
        dippm.inspect(graph, **options)


def test_one_model_must_be_given(graph: Graph, tmp_path: Path) -> None:
    for arguments in ((), (graph,)):
        options = {"path": str(tmp_path / "x.onnx")} if arguments else {}
        with pytest.raises(UsageError) as caught:
            dippm.predict(*arguments, **options)
        assert caught.value.code == "model.invalid"


def test_a_path_object_is_a_path(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError, match="no file"):
        dippm.predict(tmp_path / "missing.onnx")
    with pytest.raises(ModelReadError, match="no file"):
        dippm.predict(path=tmp_path / "missing.onnx")


def test_paper_policy_looks_at_the_prediction_alone(graph: Graph) -> None:
    answer = dippm.predict(graph, mig_policy="paper")
    assert isinstance(answer, dippm.Prediction)
    assert answer.mig == "1g.5gb"


def test_inspection_adds_up_and_lists_what_takes_longest(graph: Graph) -> None:
    inspection = dippm.inspect(graph, batch=4096)
    assert sum(operator.time_ms for operator in inspection.operators) == pytest.approx(inspection.prediction.latency_ms)
    assert inspection.top_by_time(1)[0].time_ms == max(operator.time_ms for operator in inspection.operators)
    assert inspection.tree().macs == inspection.prediction.macs
    assert [row[0] for row in inspection.by_kind()] == ["linear", "relu"]


def test_training_is_by_momentum_unless_said_otherwise(graph: Graph) -> None:
    answer = dippm.predict(graph, mode="training")
    assert answer == dippm.predict(graph, mode="training", optimizer="momentum")
    assert answer.step_time_ms == answer.latency_ms > dippm.predict(graph).latency_ms
    parts = answer.memory_parts_mb
    assert list(parts) == ["context", "weights", "gradients", "optimizer", "activations", "workspace", "slack"]
    assert sum(parts.values()) == pytest.approx(answer.memory_mb)
    state = dippm.predict(graph, mode="training", optimizer="adamw").memory_parts_mb["optimizer"]
    assert state == pytest.approx(2 * parts["optimizer"], rel=0.01)
    assert answer.to_dict()["step_time_ms"] == answer.to_dict()["latency_ms"]


def test_accumulation_repeats_the_passes(graph: Graph) -> None:
    one, four = (dippm.predict(graph, batch=4096, mode="training", accumulation=passes) for passes in (1, 4))
    assert 3.5 * one.latency_ms < four.latency_ms < 4.5 * one.latency_ms
    assert four.macs == 4 * one.macs


def test_an_inspected_step_has_three_phases(graph: Graph) -> None:
    inspection = dippm.inspect(graph, batch=64, mode="training")
    phases = inspection.by_phase()
    assert list(phases) == ["forward", "backward", "optimizer"]
    assert sum(phases.values()) == pytest.approx(inspection.prediction.step_time_ms)
    assert {operator.phase for operator in inspection.operators if operator.kind == "optimizer"} == {"optimizer"}
    assert set(dippm.inspect(graph).by_phase()) == {"forward"}


def test_every_public_name_is_there() -> None:
    for name in dippm.__all__:
        assert getattr(dippm, name) is not None
    with pytest.raises(AttributeError):
        _ = dippm.no_such_name  # type: ignore[attr-defined]


def test_a_trained_predictor_brings_its_device_and_conditions(graph: Graph, write_predictor: Any) -> None:
    folder = write_predictor()
    one = dippm.predict(graph, predictor=folder)
    assert isinstance(one, dippm.Prediction)
    assert (one.predictor.name, one.device, one.conditions.precision.value) == ("pmgns", "A100-SXM4-40GB", "amp")
    assert dippm.predict(graph, predictor=str(folder), batch=[1, 8], device="A100", precision="amp", layout="nhwc") == [
        one, dippm.predict(graph, predictor=folder, batch=8),
    ]  # fmt: skip
    assert dippm.predict(graph, predictor=folder, device=["A100"]) == [one]
    assert dippm.predict(graph, predictor=folder, device=dippm.find_device("A100")) == one
    assert dippm.predict(graph, predictor=folder, mig_policy="paper").mig == "1g.5gb"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"precision": "fp32"}, "predictor.mismatch"),
        ({"mode": "training"}, "predictor.mismatch"),
        ({"layout": "nchw"}, "predictor.mismatch"),
        ({"runtime": "cuda-graph"}, "predictor.mismatch"),
        ({"optimizer": "adam"}, "predictor.mismatch"),
        ({"device": "T4"}, "predictor.mismatch"),
        ({"device": ["A100", "T4"]}, "predictor.mismatch"),
        ({"device": []}, "predictor.mismatch"),
        ({"device": "A1000000"}, "predictor.mismatch"),
        ({"precision": "fp7"}, "precision.unknown"),
        ({"batch": 0}, "batch.invalid"),
        ({"predictor": "nowhere"}, "predictor.missing"),
    ],
)
def test_a_trained_predictor_holds_for_nothing_else(
    options: dict[str, Any], code: str, graph: Graph, write_predictor: Any
) -> None:
    with pytest.raises(dippm.DippmError) as caught:
        dippm.predict(graph, **({"predictor": write_predictor()} | options))
    assert caught.value.code == code
    if code == "predictor.mismatch":
        assert "holds for A100-SXM4-40GB, amp, inference, nhwc, eager. Got " in str(caught.value)


def test_the_answer_names_its_software(graph: Graph) -> None:
    assert dippm.predict(graph).to_dict()["software"] == "torch 2.13+cu130"
    assert [each.to_dict()["software"] for each in dippm.predict(graph, device=["P100", "T4"])] == [
        "torch 2.13+cu126",
        "torch 2.13+cu130",
    ]
    with pytest.raises(UnsupportedError, match="do not drive Tesla P100"):
        dippm.predict(graph, device="P100", software="torch 2.13+cu130")
    old = dippm.predict(graph, software="PyTorch 1.12, CUDA 11.3")
    assert old.to_dict()["software"] == "torch 1.12+cu113"
    assert "torch 1.12+cu113" in str(old)
    assert dippm.inspect(graph, software="1.12.1+cu113").prediction.software == old.software


@pytest.mark.parametrize("options", [{"software": "torch 2.4"}, {"accumulation": 2}, {"checkpointing": True}])
def test_a_trained_predictor_refuses_what_it_has_not_learned(
    options: dict[str, Any], graph: Graph, write_predictor: Any
) -> None:
    with pytest.raises(UsageError, match=next(iter(options))) as caught:
        dippm.predict(graph, predictor=write_predictor(), **options)
    assert caught.value.code == "predictor.mismatch"


def test_a_trained_predictor_leaves_its_software_to_its_labels(graph: Graph, write_predictor: Any) -> None:
    assert dippm.predict(graph, predictor=write_predictor()).to_dict()["software"] is None


def test_an_adapted_predictor_explains_its_total(graph: Graph, adapted_folder: Path) -> None:
    inspection = dippm.inspect(graph, batch=8, predictor=adapted_folder)
    assert inspection.prediction == dippm.predict(graph, batch=8, predictor=adapted_folder)
    assert (inspection.prediction.device, set(inspection.by_phase())) == (
        "Small card", {"forward", "backward", "optimizer"},
    )  # fmt: skip
    total_ms = sum(operator.time_ms for operator in inspection.operators)
    assert total_ms == pytest.approx(inspection.prediction.latency_ms)
    assert set(dippm.inspect(graph, predictor=adapted_folder, mode="inference").by_phase()) == {"forward"}


def test_a_network_has_no_operators_to_show(graph: Graph, write_predictor: Any) -> None:
    with pytest.raises(UnsupportedError, match="as a whole") as caught:
        dippm.inspect(graph, predictor=write_predictor())
    assert caught.value.code == "predictor.unsuited"


def test_an_operator_without_a_rule_is_warned_of_once() -> None:
    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._softmax_backward_data(x, x, -1, x.dtype)

    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 8]) for name in "xy")
    nodes = [
        onnx.helper.make_node("Op", ["x"], ["h"], domain="own"),
        onnx.helper.make_node("Op", ["h"], ["i"], domain="own"),
        onnx.helper.make_node("Relu", ["i"], ["y"]),
    ]
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    stored = onnx.helper.make_model(onnx.helper.make_graph(nodes, "net", [x], [y]), opset_imports=opsets)
    for model, shape, name in ((Own(), "4,4", "aten._softmax_backward_data (1)"), (stored, None, "own.Op (2)")):
        told = [each for each in dippm.predict(model, input=shape).warnings if name.split(" ")[0] in each]
        assert told == [f"Operators without a rule of their own, costed by their bytes: {name}."]


def test_each_of_many_models_gets_what_it_would_get_alone(graph: Graph, tmp_path: Path) -> None:
    dippm.save_graph(graph, tmp_path / "kept.graph")
    models = [graph, tmp_path / "kept.graph", str(tmp_path / "kept.graph")]
    answers = dippm.predict_each(iter(models), batch=4, device="T4", precision="fp16")
    assert answers == [dippm.predict(model, batch=4, device="T4", precision="fp16") for model in models]
    lists = dippm.predict_each(models, batch=[1, 8], device=["A100", "T4"])
    assert lists == [dippm.predict(model, batch=[1, 8], device=["A100", "T4"]) for model in models]
    assert dippm.predict_each([], batch=[1, 8]) == []


def test_one_refused_model_of_many_ends_it_all(graph: Graph) -> None:
    empty = replace(graph, nodes=(), source="nothing at all")
    with pytest.raises(UnsupportedError, match="nothing at all") as caught:
        dippm.predict_each([graph, empty, graph])
    assert caught.value.code == "graph.empty"


@pytest.fixture(name="of_the_first")
def _of_the_first() -> object:
    """A module that takes a hundred samples at most."""
    torch = pytest.importorskip("torch")

    class OfTheFirst(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(64, 32)

        def forward(self, x: Any) -> Any:
            return self.head(x[:100])

    return OfTheFirst()


def test_what_changes_at_large_batches_is_found_whatever_else_is_asked(of_the_first: Any) -> None:
    assert dippm.predict(of_the_first, input="64", batch=5000).macs == 100 * 2048
    assert [each.macs for each in dippm.predict(of_the_first, input="64", batch=[50, 1])] == [50 * 2048, 2048]
    asked = {"input": "64", "batch": [1, 5000, 200], "device": ["A100", "T4"]}
    predictions = dippm.predict(of_the_first, **asked)
    assert [(each.device, each.batch, each.macs) for each in predictions] == [
        (device, batch, samples * 2048)
        for device in ("A100-SXM4-40GB", "Tesla T4")
        for batch, samples in ((1, 1), (5000, 100), (200, 100))
    ]
    assert [each.prediction for each in dippm.fits(of_the_first, **asked)] == predictions


def test_many_models_may_have_some_that_hold_for_one_batch_at_a_time(of_the_first: Any, graph: Graph) -> None:
    import torch

    other = torch.nn.Linear(64, 8)
    asked = {"input": "64", "batch": [1, 5000, 200], "device": ["A100", "T4"]}
    models = [other, of_the_first, other]
    assert dippm.predict_each(models, **asked) == [dippm.predict(model, **asked) for model in models]


def test_a_graph_says_where_it_was_not_read(of_the_first: Any, tmp_path: Path) -> None:
    graph = dippm.load(of_the_first, input="64")
    dippm.save_graph(graph, tmp_path / "net.json.gz")
    for read in (graph, dippm.load(tmp_path / "net.json.gz")):
        asked, beyond = dippm.predict(read, batch=[64, 5000])
        assert not any("was read at batches" in warning for warning in asked.warnings)
        assert any("was read at batches up to 64" in warning for warning in beyond.warnings)


def test_the_answer_at_the_largest_batch_is_of_a_reading_there() -> None:
    torch = pytest.importorskip("torch")
    answer = dippm.max_batch(torch.nn.Linear(64, 2**20), input="64")
    assert answer.batch > 64
    assert not any("was read at batches" in warning for warning in answer.prediction.warnings)


def test_a_largest_batch_is_one_that_the_model_was_read_at(of_the_first: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"does not grow up to batch \d+ as it does up to 64"):
        dippm.max_batch(of_the_first, input="64")
