"""What is asked for a published row, and which rows are left out."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from dippm.costs.conditions import Layout, Mode, Optimizer, Runtime
from dippm.costs.precision import Precision
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.datasets.published import PublishedRow, read_configurations
from dippm.evaluation import published_runs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, PublishedRun, read_published_runs
from dippm.graph import OpKind, TensorRole

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER

ROW = PublishedRow(
    source="somebody",
    model="google-bert/bert-base-uncased",
    model_class="BertLMHeadModel",
    device="A100-80GB",
    software="torch 2.2.0, Ubuntu 22.04",
    precision="fp16",
    attention="eager",
    mode="training",
    optimizer="none",
    batch=4,
    sequence=32,
    image=None,
    past_tokens=None,
    latency_ms=23.0,
    allocated_mb=900.0,
    energy_j=None,
    notes="",
)


def _needs_transformers() -> None:
    if find_spec("transformers") is None or find_spec("torch") is None:
        pytest.skip("transformers is not installed")


def run_of(row: PublishedRow, monkeypatch: pytest.MonkeyPatch) -> PublishedRun | str:
    monkeypatch.setattr(published_runs, "read_published", lambda _folder: [row])
    runs, left_out = read_published_runs(FOLDER)
    return runs[0] if runs else next(iter(left_out))


def test_a_step_without_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(ROW, monkeypatch)
    assert isinstance(run, PublishedRun)
    assert run.device.name == "A100-SXM4-80GB"
    assert (run.conditions.mode, run.conditions.optimizer) == (Mode.TRAINING, Optimizer.NONE)
    assert str(run.software) == "torch 2.2"
    assert run.is_fitted
    assert run.has_comparable_memory


def test_the_graph_is_that_of_the_attention_and_the_stand_in_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    _needs_transformers()
    configurations = {**read_configurations(FOLDER), ROW.model: {"num_hidden_layers": 1, "vocab_size": 100}}
    row = replace(ROW, source="transformers-docs-somebody")
    eager = run_of(row, monkeypatch)
    fused = run_of(replace(row, attention="sdpa"), monkeypatch)
    assert isinstance(eager, PublishedRun)
    assert isinstance(fused, PublishedRun)
    graphs = [run.build_graph(configurations) for run in (eager, fused)]
    assert [any(node.kind is OpKind.ATTENTION for node in graph.nodes) for graph in graphs] == [False, True]
    # One number comes out: the sum of the scores.
    assert all(graph.tensors[graph.outputs[0]].shape == () for graph in graphs)


def test_a_step_of_a_decoder_is_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    _needs_transformers()
    llama = replace(
        ROW,
        model="NousResearch/Llama-2-7b-hf",
        model_class="LlamaForCausalLM",
        mode="decode",
        optimizer="",
        sequence=1,
        past_tokens=16,
    )
    run = run_of(llama, monkeypatch)
    assert isinstance(run, PublishedRun)
    assert run.conditions.optimizer is None
    assert not run.has_comparable_memory
    small = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    graph = run.build_graph({llama.model: small})
    assert any(tensor.role is TensorRole.CACHE for tensor in graph.tensors)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"latency_ms": None}, "no time"),
        ({"attention": "flash2"}, "another library"),
        ({"source": "litgpt-lora"}, "own code"),
        ({"model": "nobody/nothing"}, "not stated in full"),
        ({"device": "Voodoo 2"}, "the catalogue has no Voodoo 2"),
        ({"source": "diffusers-benchmarks-l40"}, "which card it was"),
        (
            {"model": "segmind/SSD-1B", "model_class": "UNet2DConditionModel", "image": (1024, 1024)},
            "not stated in full",
        ),
    ],
)
def test_what_no_question_describes_is_left_out_with_the_reason(
    changes: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_of(replace(ROW, **changes), monkeypatch)  # type: ignore[arg-type]
    assert isinstance(found, str)
    assert reason in found


DIFFUSION = replace(
    ROW, source="diffusers-torch2-docs", model="runwayml/stable-diffusion-v1-5", model_class="UNet2DConditionModel",
    attention="sdpa", mode="inference", optimizer="", batch=8, sequence=None, image=(512, 512),
    notes="latents of 64x64, channels_last",
)  # fmt: skip


def test_a_step_of_diffusion_is_one_call_of_the_unet(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(DIFFUSION, monkeypatch)
    assert isinstance(run, PublishedRun)
    assert not run.is_fitted
    assert (run.conditions.layout, run.conditions.precision) == (Layout.NHWC, Precision.FP16)
    run = run_of(replace(DIFFUSION, source="mlenergy-diffusion", precision="", notes=""), monkeypatch)
    assert isinstance(run, PublishedRun)
    assert (run.conditions.layout, run.conditions.precision) == (Layout.NCHW, Precision.FP16)


def test_the_unet_is_read_at_the_size_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    if any(find_spec(package) is None for package in ("torch", "diffusers")):
        pytest.skip("diffusers is not installed")
    run = run_of(replace(DIFFUSION, image=(768, 768)), monkeypatch)
    assert isinstance(run, PublishedRun)
    graph = run.build_graph({})
    shapes = {graph.tensors[index].name: graph.tensors[index].shape for index in graph.inputs}
    assert [size.fixed for size in shapes["sample"]] == [0, 4, 96, 96]
    assert graph.parameter_count == 859_520_964


@pytest.mark.parametrize(
    ("given", "release"),
    [
        ("NGC pytorch 21.03-py3 (torch 1.9.0a0) eager", "torch 1.9"),
        ("NGC pytorch 22.09-py3", "torch 1.13+cu118"),
        ("NGC 20.06 eager", "torch 1.6+cu110"),
        ("NGC 22.11 eager", "torch 1.14+cu118"),
        ("NGC 20.12 eager", "torch 1.8"),
        ("torch 2.8.0 cu128 torch.compile default", "torch 2.8"),
    ],
)
def test_the_release_is_that_of_the_text_or_of_the_container(
    given: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(replace(ROW, software=given, device="A100"), monkeypatch)
    assert isinstance(run, PublishedRun)
    assert str(run.software) == release


def test_software_that_is_not_known_is_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(replace(ROW, software="not stated"), monkeypatch)
    assert isinstance(run, PublishedRun)
    assert run.software == DEFAULT_SOFTWARE


def test_a_model_is_fitted_on_or_held_out_wherever_it_stands() -> None:
    runs, left_out = read_published_runs(FOLDER)
    assert len(runs) > 400
    assert sum(left_out.values()) > 300
    parts: dict[str, set[bool]] = {}
    for run in runs:
        parts.setdefault(run.row.model, set()).add(run.is_fitted)
    assert all(len(found) == 1 for found in parts.values())
    assert {found for part in parts.values() for found in part} == {False, True}


@pytest.mark.parametrize("precision", ["amp", "fp32", "bf16"])
def test_compiled_runs_are_asked_as_such(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(
        ROW, model="timm:resnet18", model_class="", software="torch 2.9.1 torch.compile", precision=precision,
        attention="", mode="inference", optimizer="", image=(224, 224), sequence=None,
    )  # fmt: skip
    run = run_of(row, monkeypatch)
    assert isinstance(run, PublishedRun)
    assert run.conditions.runtime is Runtime.COMPILE
