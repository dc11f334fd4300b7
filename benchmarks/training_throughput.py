"""Graphs per second in training: batches against one graph at a time; writes ``docs/reports/training_throughput.md``.

    .venv/bin/python benchmarks/training_throughput.py --data LABELS --cache FOLDER [--precision amp --device NAME]

The same network, loss, optimizer and graphs on one device in one process. One at a time, every operator has a row of
its own, its convolutions and dropout are PyTorch Geometric's and PyTorch's, and all is float32, as in the code that was
published with DIPPM; so it is in the batches beside it, which tell how much comes of batches alone. ``dippm train``
keeps operators that are alike in one row of a batch, and trains in 16 bits if asked to. Rounds alternate.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dippm.api.datasets import open_labels
from dippm.costs.conditions import Conditions
from dippm.costs.precision import Precision
from dippm.datasets.graph_samples import GraphSamples
from dippm.datasets.selection import LabelSelection
from dippm.features.scaling import Scaling
from dippm.models.blocks import GraphNetwork
from dippm.models.message_rounds import whole_graphs
from dippm.models.pmgns import PMGNS
from dippm.training.graph_batches import EpochBatches, GraphBatch, GraphTensors, gather_rows
from dippm.training.graph_network import masked_huber_loss
from dippm.training.train_model import load_samples

HERE = Path(__file__).resolve().parent
GRAPHS_APART = 64
WIDTHS = (32, 128, 512)
BATCH_SIZES = (64, 256)
# What is trained: graphs whose every operator is a row, as published, or as ``dippm train`` does, in either precision.
PUBLISHED, ALIKE, MIXED = "published", "alike", "mixed"

GetBatch = Callable[[list[int]], GraphBatch]


@dataclass(frozen=True, kw_only=True)
class WholeGraphs:
    """Samples whose every operator is a row."""

    node_features: Tensor
    edge_index: Tensor
    node_offsets: Tensor
    edge_offsets: Tensor
    static_features: Tensor
    targets: Tensor

    @classmethod
    def of(cls, samples: GraphSamples, scaling: Scaling, device: str) -> WholeGraphs:
        """Scale the samples."""
        arrays = {
            "node_features": scaling.scale_nodes(samples.node_features),
            "edge_index": samples.edge_index.astype(np.int64),
            "node_offsets": samples.node_offsets,
            "edge_offsets": samples.edge_offsets,
            "static_features": scaling.scale_statics(samples.static_features),
            "targets": scaling.scale_targets(samples.targets),
        }
        return cls(**{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})

    def __getitem__(self, chosen: list[int]) -> GraphBatch:
        index = torch.as_tensor(chosen, device=self.targets.device)
        graph_ids, nodes, first_node = gather_rows(self.node_offsets, index)
        graph_of_edge, edges, _ = gather_rows(self.edge_offsets, index)
        rounds, members = whole_graphs(self.edge_index[:, edges] + first_node[graph_of_edge], graph_ids)
        return GraphBatch(self.node_features[nodes], rounds, members, self.static_features[index], self.targets[index])


class PublishedNetwork(PMGNS):
    """PMGNS by the layers of PyTorch and PyTorch Geometric alone."""

    convolve = staticmethod(GraphNetwork.convolve)

    def __init__(self, *, hidden: int, dropout: float = 0.05) -> None:
        super().__init__(hidden=hidden, dropout=dropout)
        activation: Any = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))
        self.activation = self.head.activation = activation


def main() -> None:
    """Measure at every width and batch size, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="labels: a store or a Parquet file")
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--precision", type=Precision, default=Precision.FP32, help="of the labels")
    parser.add_argument("--device", help="of the labels, where they are of several")
    parser.add_argument("--source", help="of the labels, where there are several")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs/reports/training_throughput.md")
    options = parser.parse_args()
    selection = LabelSelection(
        conditions=Conditions(precision=options.precision), device=options.device, source=options.source
    )
    with open_labels(options.data) as labels:
        samples = load_samples(labels, selection, options.cache)
    lines = list(_lines(samples, selection, rounds=options.rounds))
    options.report.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines(samples: GraphSamples, selection: LabelSelection, *, rounds: int) -> Iterator[str]:
    scaling = Scaling.fit(samples.node_features, samples.static_features, samples.targets)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} processor"
    whole = WholeGraphs.of(samples, scaling, device)
    began = time.perf_counter()
    alike = GraphTensors.of(samples, scaling).to(device)
    found_s = time.perf_counter() - began
    yield "# Throughput of training\n"
    half = "fp16" if device == "cuda" else "bf16"
    yield "Written by `python benchmarks/training_throughput.py --data LABELS --cache FOLDER`. PMGNS, Adam."
    yield "One graph at a time, every operator a row, in float32, by PyTorch's and PyTorch Geometric's own layers, is"
    yield "as the code published with DIPPM does; whole graphs are the same in batches. Figures come from one run on"
    yield "one machine, in turn: compare the ratios.\n"
    yield f"{len(samples):,} graphs of {samples.node_counts.mean():.0f} operators on average ({selection});"
    yield f"{name}, {torch.get_num_threads()} threads, torch {version('torch')}, medians of {rounds} rounds."
    yield f"Load average when it began: {os.getloadavg()[0]:.1f}."
    yield f"Finding the operators that are alike, once in a training: {found_s:.1f} s.\n"
    yield from _rows_of_batches(samples, alike)
    yield ""
    yield (
        "| width | one at a time, graphs/s | batch | whole graphs, graphs/s | times "
        f"| alike operators in one row, graphs/s | times | the same in {half}, graphs/s | times |"
    )
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for hidden in WIDTHS:
        loops: dict[tuple[int, str], tuple[WholeGraphs | GraphTensors, int]] = {(1, PUBLISHED): (whole, GRAPHS_APART)}
        for size in BATCH_SIZES:
            loops[size, PUBLISHED] = (whole, 512)
            loops[size, ALIKE] = loops[size, MIXED] = (alike, len(samples))
        found: dict[tuple[int, str], list[float]] = {key: [] for key in loops}
        for turn in range(rounds + 1):
            for (size, way), (batches, graphs) in loops.items():
                rate = _graphs_per_second(
                    batches.__getitem__, len(samples), device=device, hidden=hidden, way=way, batch=size, graphs=graphs
                )
                if turn:  # The first one warms up.
                    found[size, way].append(rate)
        medians = {key: statistics.median(rates) for key, rates in found.items()}
        apart = medians[1, PUBLISHED]
        for size in BATCH_SIZES:
            rates = [medians[size, way] for way in (PUBLISHED, ALIKE, MIXED)]
            cells = " | ".join(f"{rate:,.0f} | {rate / apart:.1f}" for rate in rates)
            line = f"| {hidden} | {apart:,.0f} | {size} | {cells} |"
            print(line, flush=True)
            yield line


def _rows_of_batches(samples: GraphSamples, alike: GraphTensors) -> Iterator[str]:
    yield "| batch | operators | rows before any message | after one round | two | three | as members of graphs |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for size in BATCH_SIZES:
        chosen = np.random.default_rng(0).permutation(len(samples))[:size]
        batch = alike[chosen]
        counts = [len(batch.node_features), *(len(each.own) for each in batch.rounds), len(batch.members.rows)]
        cells = [size, int(samples.node_counts[chosen].sum()), *counts]
        yield f"| {' | '.join(f'{cell:,}' for cell in cells)} |"


def _graphs_per_second(
    get_batch: GetBatch, count: int, *, device: str, hidden: int, way: str, batch: int, graphs: int
) -> float:
    torch.manual_seed(0)
    make = PublishedNetwork if way == PUBLISHED else PMGNS
    network = make(hidden=hidden).to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=2.754e-5)
    half = torch.float16 if device == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device, enabled=way == MIXED and device == "cuda")
    # The same draw for every batch size, so that the graphs are alike.
    chosen = np.random.default_rng(0).permutation(count)[:graphs]
    order = EpochBatches(chosen, batch_size=batch, seed=0)
    _synchronize(device)
    began = time.perf_counter()
    for batch_of in order:
        own = get_batch(batch_of)
        with torch.autocast(device, dtype=half, enabled=way == MIXED):
            outputs = network(*own[:-1])
        loss = masked_huber_loss(outputs.float(), own.targets)
        optimizer.zero_grad()
        scaled: Tensor = scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    _synchronize(device)
    return len(chosen) / (time.perf_counter() - began)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
