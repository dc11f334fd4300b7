"""Graphs per second in training: batches of graphs, against one graph at a time as the code published with DIPPM does.

    .venv/bin/python benchmarks/training_throughput.py [--data LABELS.parquet --cache FOLDER]

The same network, loss, optimizer and graphs on one device in one process; both loops are dippm's own, the slow one with
a batch of one. Rounds alternate, and the medians are printed as a Markdown table. Without labels the graphs are made
up: chains with a skip over every fourth operator, of 20 to 200 operators.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from dippm.costs.conditions import Conditions
from dippm.datasets.selection import LabelSelection
from dippm.datasets.store.parquet import read_parquet
from dippm.features.scaling import Scaling
from dippm.models.registry import make_network
from dippm.training.graph_batches import EpochBatches, GraphTensors
from dippm.training.graph_network import masked_huber_loss
from dippm.training.train_model import load_samples

GRAPHS_APART = 64


def main() -> None:
    """Measure at every width and batch size, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="labels; made-up graphs when left out")
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = (_made_up() if options.data is None else _measured(options.data, options.cache)).to(device)
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} processor"
    print(
        f"{len(tensors):,} graphs of {len(tensors.node_features) / len(tensors):.0f} operators on average, {name}, "
        f"{torch.get_num_threads()} host threads, torch {torch.__version__}, medians of {options.rounds} rounds\n"
    )
    print("| hidden | one at a time, graphs/s | batch | graphs/s | times |")
    print("|---:|---:|---:|---:|---:|")
    for hidden in options.hidden:
        sizes = [1, *options.batch_size]
        for size in sizes:
            _graphs_per_second(tensors, hidden=hidden, batch_size=size, graphs=2 * size)
        found: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(options.rounds):
            for size in sizes:
                graphs = GRAPHS_APART if size == 1 else len(tensors)
                found[size].append(_graphs_per_second(tensors, hidden=hidden, batch_size=size, graphs=graphs))
        apart = statistics.median(found[1])
        for size in options.batch_size:
            together = statistics.median(found[size])
            print(f"| {hidden} | {apart:,.0f} | {size} | {together:,.0f} | {together / apart:.1f} |", flush=True)


def _graphs_per_second(tensors: GraphTensors, *, hidden: int, batch_size: int, graphs: int) -> float:
    torch.manual_seed(0)
    device = tensors.targets.device
    network = make_network("pmgns", hidden=hidden).to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=2.754e-5)
    # The same draw for every batch size, so that the graphs are alike.
    chosen = np.random.default_rng(0).permutation(len(tensors))[:graphs]
    order = EpochBatches(chosen, batch_size=batch_size, seed=0)
    _synchronize(device)
    began = time.perf_counter()
    for batch_of in order:
        batch = tensors[batch_of]
        loss = masked_huber_loss(network(*batch[:4]), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _synchronize(device)
    return len(chosen) / (time.perf_counter() - began)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _measured(labels: Path, cache: Path) -> GraphTensors:
    samples = load_samples(read_parquet(labels), LabelSelection(conditions=Conditions()), cache)
    return GraphTensors.of(samples, Scaling.fit(samples.node_features, samples.static_features, samples.targets))


def _made_up(count: int = 1024) -> GraphTensors:
    random = np.random.default_rng(0)
    nodes = random.integers(20, 200, count)
    edges = [_skip_chain(int(size)) for size in nodes]
    return GraphTensors(
        node_features=torch.from_numpy(random.standard_normal((nodes.sum(), 32)).astype(np.float32)),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
        node_offsets=torch.from_numpy(np.r_[0, np.cumsum(nodes)]),
        edge_offsets=torch.from_numpy(np.r_[0, np.cumsum([each.shape[1] for each in edges])]),
        static_features=torch.from_numpy(random.standard_normal((count, 5)).astype(np.float32)),
        targets=torch.from_numpy(random.standard_normal((count, 3)).astype(np.float32)),
    )


def _skip_chain(size: int) -> np.ndarray:
    places = np.arange(size, dtype=np.int64)
    skips = places[: max(size - 4, 0) : 4]
    return np.concatenate([np.stack([places[:-1], places[1:]]), np.stack([skips, skips + 4])], axis=1)


if __name__ == "__main__":
    main()
