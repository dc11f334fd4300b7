"""Peak memory of a training step, beside PyTorch's own tracker; writes ``docs/reports/training_memory.md``.

    .venv/bin/python benchmarks/training_memory.py

The truth is ``torch.distributed._tools.mem_tracker.MemTracker`` over two whole steps (forward, loss, backward,
optimizer, gradients given up) on fake CUDA tensors: the bytes of live tensors, without workspaces and the allocator's
cache. Both sides work on the same module in the same process, in turn; times are medians of the process's CPU time, in
which other work on the machine does not count. In 16 bits, and with the loss that a model of transformers takes by
itself of its labels, memory alone is compared.
"""

from __future__ import annotations

import fake_cuda  # noqa: F401  # isort: skip - before torch

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.memory import live_memory
from dippm.costs.precision import Precision
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.datasets.recipes.architectures.recurrent import RecurrentClassifier
from dippm.datasets.recipes.architectures.unet import UNet
from dippm.frontends import zoo
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.torch.reader import read_module
from dippm.graph import RECURRENT_KINDS, Dim, Graph, OpKind
from dippm.measuring.training import Loss

HERE = Path(__file__).resolve().parent
MIB = 2**20
STEPS = 2
# What takes milliseconds is run several times: one run tells little of it.
MOST_RUNS, ENOUGH_S = 9, 1.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model to train: its name in a library or how to build it, and the batch."""

    name: str
    batch: int
    build: Callable[[], nn.Module] | None = None
    shape: tuple[int, ...] = ()
    options: Mapping[str, object] | None = None

    @property
    def has_loss(self) -> bool:
        """Whether it takes labels."""
        return self.name.startswith("hf:")

    def make(self, precision: Precision = Precision.FP32) -> tuple[nn.Module, InputShapes]:
        """The module without values, in training mode and without dropout, and the shapes of its inputs."""
        if self.build is None:
            module, inputs = zoo.build(self.name, options=self.options, precision=precision)
        else:
            with torch.device("meta"):
                module, inputs = self.build(), InputShapes(positional=(InputEntry(shape=self.shape),))
        for each in module.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0
        return module.train(), inputs


_SMALL_LLAMA = {
    "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 12, "use_cache": False,
}  # fmt: skip
# Fewer heads of keys than of queries.
_GROUPED = {**_SMALL_LLAMA, "num_key_value_heads": 4}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
MODELS = (
    Model(name="timm:resnet50", batch=32),
    Model(name="torchvision:vgg16", batch=32),
    Model(name="timm:mobilenetv3_large_100", batch=64),
    Model(name="timm:efficientnet_b0", batch=32),
    Model(name="torchvision:densenet121", batch=32),
    Model(name="timm:regnety_032", batch=32),
    Model(name="timm:convnext_tiny", batch=32),
    Model(name="timm:vit_base_patch16_224", batch=16),
    Model(name="timm:swin_tiny_patch4_window7_224", batch=16),
    Model(name="timm:mixer_b16_224", batch=32),
    Model(name="timm:mvitv2_tiny", batch=8),
    Model(name="hf:BertForMaskedLM", batch=16, options=_NO_DROPOUT),
    Model(name="hf:GPT2LMHeadModel", batch=8, options=_GPT2),
    Model(name="hf:LlamaForCausalLM", batch=8, options=_SMALL_LLAMA),
    Model(name="hf:MistralForCausalLM", batch=8, options=_GROUPED),
    Model(
        name="hf:BloomForCausalLM",
        batch=8,
        options={
            "hidden_size": 768,
            "n_layer": 12,
            "n_head": 12,
            "vocab_size": 32000,
            "use_cache": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    Model(
        name="U-Net",
        batch=8,
        build=lambda: UNet(channels=32, levels=5, convolutions=2, transposed=True, in_chans=3, classes=21),
        shape=(3, 256, 256),
    ),
    Model(
        name="LSTM",
        batch=64,
        build=lambda: RecurrentClassifier(
            cell="lstm", features=256, hidden=512, layers=2, bidirectional=False, classes=100
        ),
        shape=(128, 256),
    ),
)
IN_16_BITS = (
    *(model for model in MODELS if model.name.partition(":")[2] in (
        "resnet50", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "vit_base_patch16_224",
        "swin_tiny_patch4_window7_224",
    )),
    *(model for model in MODELS if model.has_loss),
    Model(name="hf:Qwen2ForCausalLM", batch=8, options=_SMALL_LLAMA),
    Model(name="hf:Qwen3ForCausalLM", batch=8, options={**_GROUPED, "head_dim": 64}),
    Model(name="hf:GPTNeoXForCausalLM", batch=8, options={
        key: value for key, value in _SMALL_LLAMA.items() if key != "num_key_value_heads"
    }),
    Model(name="timm:eva02_tiny_patch14_224", batch=16),
    Model(name="timm:mobilevit_s", batch=16),
    Model(name="hf:OPTForCausalLM", batch=8, options={"dropout": 0.0, "use_cache": False}),
    Model(name="hf:T5ForConditionalGeneration", batch=8, options={"dropout_rate": 0.0, "use_cache": False}),
    Model(name="hf:ElectraForPreTraining", batch=16, options=_NO_DROPOUT),
)  # fmt: skip
CHECKPOINTED = ("LlamaForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM")
_FORMATS = {Precision.AMP: torch.float16, Precision.BF16: torch.bfloat16}
OPTIMIZERS: Mapping[Optimizer, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    Optimizer.MOMENTUM: lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9, foreach=True),
    Optimizer.ADAMW: lambda weights: torch.optim.AdamW(weights, lr=0.01, foreach=True),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model and optimizer; MiB and seconds."""

    model: str
    optimizer: str
    batch: int
    tracked_mb: float
    predicted_mb: float
    deviation_percent: float
    parts_mb: dict[str, float]
    tracker_s: float
    reading_s: float
    reading_once_s: float
    graph_s: float

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Of dippm: from the module at the tracker's batch, from it at every batch, and from the graph."""
        return self.reading_once_s + self.graph_s, self.reading_s + self.graph_s, self.graph_s

    @property
    def ratios(self) -> tuple[float, ...]:
        """How many times as long the tracker takes as each of ``seconds``."""
        return tuple(self.tracker_s / seconds for seconds in self.seconds)


@dataclass(frozen=True, kw_only=True)
class HalfRow:
    """One model in 16 bits, with AdamW; MiB."""

    model: str
    precision: str
    accumulation: int
    is_checkpointed: bool
    batch: int
    tracked_mb: float
    predicted_mb: float

    @property
    def deviation_percent(self) -> float:
        """How far the prediction is off."""
        return 100 * (self.predicted_mb / self.tracked_mb - 1)


def main() -> None:
    """Run all models with both optimizers, print the report and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "training_memory.md")
    parser.add_argument("--json", type=Path, help="where the rows are written as JSON")
    parser.add_argument("--models", nargs="*", help="only models whose name contains one of these words")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def is_asked(model: Model) -> bool:
        return not options.models or any(word in model.name for word in options.models)

    rows = []
    for model in filter(is_asked, MODELS):
        for row in compare(model):
            rows.append(row)
            print(f"{row.model:36} {row.optimizer:9} {row.tracked_mb:9.1f} {row.predicted_mb:9.1f} "
                  f"{row.deviation_percent:+6.2f} %", flush=True)  # fmt: skip
    halves = []
    asked = [(model, 1, False) for model in filter(is_asked, IN_16_BITS)]
    # Of a larger batch, or weights and their gradients would be all that is left.
    asked += [
        (replace(model, batch=8 * model.batch), accumulation, is_checkpointed)
        for model in filter(is_asked, IN_16_BITS)
        if model.name.partition(":")[2] in CHECKPOINTED
        for accumulation, is_checkpointed in ((4, False), (1, True), (4, True))
    ]
    for model, accumulation, is_checkpointed in asked:
        for precision in (Precision.AMP, Precision.BF16):
            settings = TrainingSettings(
                optimizer=Optimizer.ADAMW,
                precision=precision,
                accumulation=accumulation,
                is_checkpointed=is_checkpointed,
            )
            half = compare_in_16_bits(model, settings)
            halves.append(half)
            print(f"{half.model:36} {half.precision:9} {half.tracked_mb:9.1f} {half.predicted_mb:9.1f} "
                  f"{half.deviation_percent:+6.2f} %", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in (*rows, *halves)], indent=1), encoding="utf-8")
    if not options.models:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report(rows) + report_in_16_bits(halves), encoding="utf-8")


def compare(model: Model) -> list[Row]:
    """Track and predict a model with every optimizer, in turn."""
    module, inputs = model.make()
    reading_s, graph = timed(lambda: read_module(module, input=inputs, source=model.name, mode=Mode.TRAINING))
    reading_once_s, _ = timed(
        lambda: read_module(module, input=inputs, source=model.name, mode=Mode.TRAINING, batches=(model.batch,))
    )
    rows = []
    for optimizer in OPTIMIZERS:
        settings = TrainingSettings(optimizer=optimizer)
        tracked = [track(model, settings)]
        while len(tracked) < MOST_RUNS and sum(seconds for _, seconds in tracked) < ENOUGH_S:
            tracked.append(track(model, settings))
        graph_s, predicted = timed(lambda chosen=settings: predict(graph, chosen, model.batch))
        parts, _ = tracked[0]
        total = parts["Total"]
        rows.append(
            Row(
                model=model.name,
                optimizer=optimizer.value,
                batch=model.batch,
                tracked_mb=total,
                predicted_mb=predicted,
                deviation_percent=100 * (predicted / total - 1),
                parts_mb=parts,
                tracker_s=statistics.median(seconds for _, seconds in tracked),
                reading_s=reading_s,
                reading_once_s=reading_once_s,
                graph_s=graph_s,
            )
        )
    return rows


def compare_in_16_bits(model: Model, settings: TrainingSettings) -> HalfRow:
    """Track and predict a model; one of transformers takes its own loss of labels."""
    module, inputs = model.make(settings.precision)
    graph = read_module(module, input=inputs, source=model.name, mode=Mode.TRAINING)
    parts, _ = track(model, settings)
    return HalfRow(
        model=model.name,
        precision=settings.precision.value,
        accumulation=settings.accumulation,
        is_checkpointed=settings.is_checkpointed,
        batch=model.batch,
        tracked_mb=parts["Total"],
        predicted_mb=predict(graph, settings, model.batch),
    )


def track(model: Model, settings: TrainingSettings) -> tuple[dict[str, float], float]:
    """Peak of two training steps on fake CUDA tensors in parts, MiB, and the seconds that the steps took."""
    # Reference cycles would keep tensors of an earlier run alive in this one's.
    gc.collect()
    precision = settings.precision
    module, inputs = model.make(precision)
    is_whole, takes_labels = precision is Precision.BF16, model.has_loss and precision is not Precision.FP32
    if is_whole:
        module.to(_FORMATS[precision])
    if settings.is_checkpointed:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with FakeTensorMode():
        _move(module)
        dtype = _FORMATS[precision] if is_whole else None
        positional = [_batch(entry, model.batch, dtype) for entry in inputs.positional]
        named = {name: _batch(entry, model.batch, dtype) for name, entry in (inputs.named or {}).items()}
        updater = OPTIMIZERS[settings.optimizer](list(module.parameters()))
        loss_of = Loss()
        tracker = MemTracker()
        tracker.track_external(module, updater, *positional, *named.values())
        start = time.process_time()
        with tracker, _one_text_each():
            for _ in range(STEPS):
                for _ in range(settings.accumulation):
                    with _autocast(precision):
                        if takes_labels:
                            loss = module(**named, labels=named["input_ids"]).loss
                        else:
                            loss = loss_of(module(*positional, **named))
                    loss.backward()
                    # What names the loss would keep it through the next step.
                    del loss
                    tracker.reset_mod_stats()
                updater.step()
                updater.zero_grad(set_to_none=True)
        seconds = time.process_time() - start
        parts = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]
    return {str(getattr(part, "value", part)): size / MIB for part, size in parts.items()}, seconds


@contextmanager
def _one_text_each() -> Iterator[None]:
    """Have transformers take a row of tokens for one text; of fake positions it cannot tell, and would build a mask."""
    masks = sys.modules.get("transformers.masking_utils")
    if masks is None:
        yield
        return
    with patch.object(masks, "find_packed_sequence_indices", lambda *_: None):
        yield


def _autocast(precision: Precision) -> AbstractContextManager[object]:
    return torch.autocast("cuda", _FORMATS[precision]) if precision.is_autocast else nullcontext()


def predict(graph: Graph, settings: TrainingSettings, batch: int) -> float:
    """Peak of live tensors of a training step by dippm, MiB."""
    training = make_training_graph(graph, settings)
    joint = _without_reserve(training.graph)
    timeline = MemoryTimeline.from_workload(Workload.from_graph(joint, training.precision))
    return float(live_memory(timeline, batch).peak_bytes[0]) / MIB


def _without_reserve(graph: Graph) -> Graph:
    """What cuDNN keeps of a recurrent layer, and its workspace, made empty: fake tensors know neither."""
    tensors, nodes = list(graph.tensors), list(graph.nodes)
    for position, node in enumerate(nodes):
        if node.kind in RECURRENT_KINDS:
            tensors[node.outputs[-1]] = replace(tensors[node.outputs[-1]], shape=(Dim(0, 0),))
        if node.kind in RECURRENT_KINDS or node.kind is OpKind.RECURRENT_GRAD:
            nodes[position] = replace(node, kind=OpKind.UNKNOWN)
    return replace(graph, tensors=tuple(tensors), nodes=tuple(nodes))


def report(rows: list[Row]) -> str:
    """The report in Markdown."""
    lines = [
        "# Memory of a training step, beside PyTorch's tracker",
        "",
        "Written by `python benchmarks/training_memory.py`. Peak of live tensors over two steps in fp32: forward,",
        "loss, backward, optimizer (foreach), by `MemTracker` on fake CUDA tensors and by dippm from its graph.",
        f"Seconds are CPU time in one process, medians of up to {MOST_RUNS} runs, until they took {ENOUGH_S:g} s: the",
        "tracker's two steps without building the module, which hold for one batch size; dippm from the module, read",
        "for that batch size alone or, as commands read it, for every one (three readings), and from the graph once it",
        "is read; each with the training graph and its peak. What cuDNN keeps of recurrent layers has no rule in fake",
        "tensors and is left out of both sides.",
        "",
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}.",
        "",
        "| model | optimizer | batch | tracker, MiB | dippm, MiB | difference | tracker, s | from module, one batch, s "
        "| ratio | from module, every batch, s | ratio | from graph, s | ratio |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        pairs = " | ".join(f"{took:.4f} | {ratio:.1f}" for took, ratio in zip(row.seconds, row.ratios, strict=True))
        lines.append(
            f"| {row.model} | {row.optimizer} | {row.batch} | {row.tracked_mb:.1f} | {row.predicted_mb:.1f} "
            f"| {row.deviation_percent:+.2f} % | {row.tracker_s:.3f} | {pairs} |"
        )
    worst = max(rows, key=lambda row: abs(row.deviation_percent))
    over = sum(abs(row.deviation_percent) > 3 for row in rows)
    once, every, graph = (min(ratios) for ratios in zip(*(row.ratios for row in rows), strict=True))
    lines += [
        "",
        f"{len(rows)} rows, {over} more than 3 % off; the farthest is {worst.model} with {worst.optimizer} "
        f"({worst.deviation_percent:+.2f} %). dippm is at least {once:.1f} times faster from the module at one batch "
        f"size, {every:.1f} times at every batch size, {graph:.0f} times from the graph.",
        "",
    ]
    return "\n".join(lines)


def report_in_16_bits(rows: list[HalfRow]) -> str:
    """The report's section on 16 bits."""
    lines = [
        "## In 16 bits",
        "",
        "Under autocast, and with the whole model in bfloat16; AdamW. Models of transformers (those that begin with",
        "`hf:`) take their own loss of labels, as a training script lets them: decoders make their scores FP32 first.",
        "Checkpointed ones compute each block again, as `gradient_checkpointing_enable` makes them; passes",
        "are those before an update.",
        "",
        "| model | precision | passes | checkpointed | batch | tracker, MiB | dippm, MiB | difference |",
        "|---|---|---:|---|---:|---:|---:|---:|",
        *(
            f"| {row.model} | {row.precision} | {row.accumulation} | {'yes' if row.is_checkpointed else 'no'} "
            f"| {row.batch} | {row.tracked_mb:.1f} | {row.predicted_mb:.1f} "
            f"| {row.deviation_percent:+.2f} % |"
            for row in rows
        ),
    ]
    worst = max(rows, key=lambda row: abs(row.deviation_percent))
    over = sum(abs(row.deviation_percent) > 1 for row in rows)
    lines += [
        "",
        f"{len(rows)} rows, {over} more than 1 % off; the farthest is {worst.model} in {worst.precision} "
        f"({worst.deviation_percent:+.2f} %).",
        "",
    ]
    return "\n".join(lines)


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds of a call, and its last result."""
    seconds: list[float] = []
    result = None
    while len(seconds) < MOST_RUNS and sum(seconds) < ENOUGH_S:
        start = time.process_time()
        result = run()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def _move(module: nn.Module) -> None:
    """Put a module's weights on the fake device; ``Module.to`` cannot swap fake tensors that anything refers to."""
    moved: dict[int, torch.Tensor] = {}
    for each in module.modules():
        for table in (each._parameters, each._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
                    moved[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if table is each._parameters else twin
                table[name] = moved[id(tensor)]  # type: ignore[assignment]


def _batch(entry: InputEntry, batch: int, floating: torch.dtype | None) -> torch.Tensor:
    """A batch of one input; what is floating has the model's format where that is given."""
    dtype = torch.float32 if entry.dtype is None else getattr(torch, entry.dtype.value)
    if floating is not None and dtype.is_floating_point:
        dtype = floating
    return torch.zeros((batch, *entry.shape), dtype=dtype, device="cuda")


if __name__ == "__main__":
    main()
