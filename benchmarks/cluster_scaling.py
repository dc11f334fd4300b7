"""How a sweep grows with the cluster, simulated on one machine; writes ``docs/reports/cluster_scaling.md``.

``python benchmarks/cluster_scaling.py --graphs FOLDER``, with a folder as ``benchmarks/cluster_sweep.py`` takes it.
Ray's cluster utilities start many nodes of one core each. What would not fit one machine's cores is the predicting
itself: the workers of these nodes wait for as long as a core takes over each graph, and answer with rows made before.
All else is real: blocks, actors, the wire, the driver's parts and table.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHAPES: dict[str, dict[str, Any]] = {
    "4 x 4": {"batch": [1, 8, 32, 128], "device": ["A100", "H100", "RTX 4090", "T4"]},
    "16 x 8": {
        "batch": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256],
        "device": ["A100", "V100", "T4", "P100", "A30", "L4", "H100", "RTX 4090"],
    },
}
SAMPLE = 60
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class Waiter:
    """Stands in for the worker of a node: waits as long as the work takes, and gives the rows of some graph."""

    def __init__(self, *, wait_s: float, rows: Sequence[bytes], **_settings: Any) -> None:
        self._wait_s = wait_s
        self._rows = rows

    def __call__(self, block: Any) -> Iterator[dict[str, list[Any]]]:
        """Answer the tasks of a block."""
        import pickle

        for pickled in block.column("tasks").to_pylist():
            for task in pickle.loads(pickled):
                time.sleep(self._wait_s)
                yield {"task": [task.index], "rows": [self._rows[task.index % len(self._rows)]]}


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=Path, required=True, help="folder of graph files")
    parser.add_argument("--nodes", default="1,2,4,8,16", help="numbers of nodes")
    parser.add_argument("--seconds", type=float, default=20.0, help="time of each run, about")
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "cluster_scaling.md")
    options = parser.parse_args()
    # Ray listens on the network: only who knows the token may speak to it.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    files = sorted(str(path) for path in options.graphs.rglob("*.json.gz") if "-batch" not in path.name)
    nodes = [int(number) for number in options.nodes.split(",")]
    measured = {shape: _measure_core(files[:SAMPLE], shape) for shape in SHAPES}
    sections = [_head(options.seconds), _core_section(measured)]
    from ray.cluster_utils import Cluster

    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    try:
        while len(cluster.list_all_nodes()) <= max(nodes):
            cluster.add_node(**NODE)
        for shape, (core_s, rows) in measured.items():
            sections.append(
                _scaling_section(cluster.address, files, shape, core_s, rows, nodes=nodes, seconds=options.seconds)
            )
    finally:
        cluster.shutdown()
    options.report.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    print(options.report.read_text(encoding="utf-8"))


def _head(seconds: float) -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        "# How a sweep grows with the cluster\n\n"
        f"Written by `python benchmarks/cluster_scaling.py --graphs FOLDER --seconds {seconds:g}`.\n"
        "Ray's cluster utilities simulate the nodes on one machine. Their workers wait for as long as a core\n"
        "takes over each graph; blocks, actors, wire, driver and table are real, and share the machine's cores\n"
        "with all simulated nodes.\n\n"
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; "
        f"dippm {version('dippm')}, ray {version('ray')}.\n"
        f"Load average when the run began: {load} (1, 5 and 15 minutes)."
    )


def _measure_core(files: Sequence[str], shape: str) -> tuple[float, list[bytes]]:
    """CPU time that a core takes over a graph, s, the mean of several, and their rows."""
    from dippm.api.question import Question
    from dippm.api.sweep_rows import SweepTask, encode_rows, predict_task
    from dippm.api.sweep_settings import SweepSettings

    settings = SweepSettings.of(Question(), **SHAPES[shape])
    batches = tuple(SHAPES[shape]["batch"])
    tasks = [SweepTask(index=index, model=file, batches=batches) for index, file in enumerate(files)]
    predict_task(tasks[0], settings)
    rows, spent = [], []
    for task in tasks:
        start = time.process_time()
        rows.append(encode_rows(predict_task(task, settings)))
        spent.append(time.process_time() - start)
    return statistics.mean(spent), rows


def _core_section(measured: dict[str, tuple[float, list[bytes]]]) -> str:
    rows = []
    for shape, (core_s, _) in measured.items():
        predictions = _per_model(shape)
        rows.append(
            (
                shape,
                f"{1e3 * core_s:.1f}",
                f"{predictions / core_s:,.0f}",
                f"{1e6 / predictions * core_s / 3600:.2f}",
            )
        )
    return (
        f"## One core\n\nReading, predicting and encoding graph files, the mean of {SAMPLE}. A million predictions\n"
        "cost so many core-hours: multiply by what a core costs you an hour.\n\n"
        + _table(
            ("batches x devices", "CPU ms a graph", "predictions a second", "core-hours per million predictions"), rows
        )
    )


def _scaling_section(
    address: str,
    files: Sequence[str],
    shape: str,
    core_s: float,
    rows: list[bytes],
    *,
    nodes: list[int],
    seconds: float,
) -> str:
    lines, first, last = [], 0.0, (0.0, 0.0)
    for count in nodes:
        models = max(int(count * seconds / core_s), 4 * count)
        rate, driver_s = _sweep(address, [files[i % len(files)] for i in range(models)], shape, core_s, rows, count)
        first = first or rate / count
        last = (rate, driver_s)
        lines.append(
            (
                f"{count}",
                f"{models:,}",
                f"{rate:,.0f}",
                f"{100 * rate / (count * _per_model(shape) / core_s):.0f}",
                f"{100 * rate / (count * first):.0f}",
                f"{1e6 * driver_s:.0f}",
            )
        )
        print(shape, *lines[-1], flush=True)
    rate, driver_s = last
    full = 1 / driver_s
    return (
        f"## {shape}: {_per_model(shape)} predictions a graph\n\n"
        + _table(
            (
                "nodes",
                "graphs",
                "rows a second",
                "% of that many cores",
                "% of one node's rate, each",
                "driver, CPU s per million rows",
            ),
            lines,
        )
        + f"\n\nAt {1e6 * driver_s:.0f} s per million rows one core of the driver is full at {full:,.0f} rows a\n"
        f"second, what {full * core_s / _per_model(shape):,.0f} cores predict."
    )


def _sweep(
    address: str, models: list[str], shape: str, core_s: float, rows: list[bytes], workers: int
) -> tuple[float, float]:
    """Rows a second from the first rows to the last, and CPU time of this process for each, s."""
    import dippm
    import dippm.cluster.sweep as on_cluster

    seen: list[tuple[int, int, float, float]] = []

    class Standin(Waiter):
        """With what it waits for and answers."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(wait_s=core_s, rows=rows, **settings)

    real, on_cluster._Predictor = on_cluster._Predictor, Standin  # type: ignore[misc, assignment]
    try:
        with tempfile.TemporaryDirectory() as folder:
            dippm.sweep(
                models,
                out=Path(folder, "table.parquet"),
                **SHAPES[shape],
                jobs=workers,
                open_runner=on_cluster.RaySweep(address),
                on_progress=lambda progress: seen.append(
                    (progress.models, progress.rows, time.perf_counter(), time.process_time())
                ),
            )
    finally:
        on_cluster._Predictor = real  # type: ignore[misc]
    # The first rows come while workers still start: what counts begins when every worker has answered some.
    begin = next(each for each in seen if each[0] >= len(models) // 4)
    done = seen[-1][1] - begin[1]
    return done / (seen[-1][2] - begin[2]), (seen[-1][3] - begin[3]) / done


def _per_model(shape: str) -> int:
    return len(SHAPES[shape]["batch"]) * len(SHAPES[shape]["device"])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---:|" * len(header), *lines[1:]])


if __name__ == "__main__":
    main()
