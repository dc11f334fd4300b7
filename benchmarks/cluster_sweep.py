"""Measures sweeps over real graphs: on one and two Ray workers, on one machine without Ray, and their memory.

``python benchmarks/cluster_sweep.py --graphs FOLDER`` writes ``docs/reports/cluster_sweep.md``. FOLDER is one that
``dippm dataset graphs`` filled, or any other with files of ``dippm.save_graph``. Every figure comes from a process of
its own. ``--most-rows`` says how far the memory is followed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FEW = {"batch": [1, 8, 32, 128], "device": ["A100", "H100", "RTX 4090", "T4"]}
MANY = {
    "batch": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256],
    "device": ["A100", "V100", "T4", "P100", "A30", "L4", "H100", "RTX 4090"],
}
ASKED = {"few": FEW, "many": MANY}
SAMPLE_EVERY_S = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run all measurements and write the report, or run one of them and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=Path, required=True, help="folder of graph files")
    parser.add_argument("--models", type=int, default=2000, help="distinct graphs of the comparison")
    parser.add_argument("--rounds", type=int, default=2, help="how often the comparison is made")
    parser.add_argument("--most-rows", type=int, default=100_000, help="the largest sweep of the memory table")
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "cluster_sweep.md")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(_measure(options.graphs, **json.loads(options.case))))
        return
    parts = [
        _head(options),
        _ray_section(options.graphs, models=options.models, rounds=options.rounds),
        _local_section(options.graphs, models=options.models),
        _memory_section(options.graphs, most_rows=options.most_rows),
    ]
    options.report.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(options.report.read_text(encoding="utf-8"))


def _head(options: argparse.Namespace) -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        "# Speed and memory of sweeps\n\n"
        f"Written by `python benchmarks/cluster_sweep.py --graphs FOLDER --models {options.models} "
        f"--rounds {options.rounds} --most-rows {options.most_rows}`.\nThe models are real ones, as graph files: every "
        "file is read, predicted and written to the table.\nFigures of one table come from one run.\n\n"
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; "
        f"dippm {version('dippm')}, ray {version('ray')}, pyarrow {version('pyarrow')}.\n"
        f"Load average when the run began: {load} (1, 5 and 15 minutes); {options.models:,} graphs."
    )


def _ray_section(graphs: Path, *, models: int, rounds: int) -> str:
    rows, ratios, left = [], [], []
    for number in range(rounds):
        found = {workers: _run(graphs, models=models, asked="few", runner="ray", jobs=workers) for workers in (1, 2)}
        one, two = found[1], found[2]
        ratios.append(two["models_per_s"] / one["models_per_s"])
        left.append(2 - _beside(two) / two["stream_s"])
        for workers, each in found.items():
            rows.append(
                (
                    f"{number + 1}",
                    f"{workers}",
                    f"{each['rows']:,}",
                    f"{each['start_s']:.1f}",
                    f"{each['stream_s']:.1f}",
                    f"{each['models_per_s']:.1f}",
                    f"{each['rows_per_s']:,.0f}",
                    f"{1e3 * each['cpu_s']['worker'] / each['models']:.0f}",
                    f"{1e3 * _beside(each) / each['stream_s']:.0f}",
                )
            )
            print(*rows[-1], file=sys.stderr, flush=True)
    return (
        "## One and two Ray workers on one machine\n\n"
        f"{len(FEW['batch'])} batches on {len(FEW['device'])} devices for every graph. Start: Ray, its workers and\n"
        "their imports, until a twentieth of the graphs is done, so that all workers are at work. All rates are of\n"
        "the time from then to the last rows. Beside: the CPU time of this process and of all of Ray in that time.\n\n"
        + _table(
            (
                "round",
                "workers",
                "rows",
                "start, s",
                "then, s",
                "graphs a second",
                "rows a second",
                "worker, CPU ms a graph",
                "beside, CPU ms a second",
            ),
            rows,
        )
        + f"\n\nTwo workers over one, graphs per second of wall time: {_join(ratios)}; median "
        f"{statistics.median(ratios):.2f}. On a machine "
        f"of two cores that\nnobody else uses, what is beside two workers leaves them so many cores: {_join(left)}."
    )


def _beside(run: dict[str, Any]) -> float:
    return float(sum(seconds for name, seconds in run["cpu_s"].items() if name != "worker"))


def _local_section(graphs: Path, *, models: int) -> str:
    rows = []
    for asked, jobs in (("few", 1), ("few", 2), ("many", 1), ("many", 2)):
        each = _run(graphs, models=models // (4 if asked == "many" else 2), asked=asked, runner="local", jobs=jobs)
        cpu_s = sum(each["cpu_s"].values())
        question = ASKED[asked]
        rows.append(
            (
                f"{len(question['batch'])} x {len(question['device'])}",
                "this process" if jobs == 1 else f"{jobs} processes",
                f"{each['rows']:,}",
                f"{each['start_s']:.1f}",
                f"{each['stream_s']:.1f}",
                f"{each['rows_per_s']:,.0f}",
                f"{os.cpu_count() * each['streamed_rows'] / cpu_s:,.0f}",
            )
        )
        print(*rows[-1], file=sys.stderr, flush=True)
    return "## One machine without Ray\n\n" + _table(
        (
            "batches x devices",
            "work in",
            "rows",
            "start, s",
            "then, s",
            "rows a second of wall time",
            f"rows per {os.cpu_count()} seconds of CPU time",
        ),
        rows,
    )


def _memory_section(graphs: Path, *, most_rows: int) -> str:
    per_model = len(MANY["batch"]) * len(MANY["device"])
    rows, wanted = [], 1000
    while wanted <= most_rows:
        for runner in ("local", "ray"):
            models = -(-wanted // per_model)
            each = _run(graphs, models=models, asked="many", runner=runner, jobs=2, is_largest_first=True)
            peak = each["peak_mb"]
            rows.append(
                (
                    f"{each['rows']:,}",
                    "2 processes" if runner == "local" else "2 Ray workers",
                    f"{each['start_s'] + each['stream_s']:.0f}",
                    *(f"{peak[name]:.0f}" if name in peak else "" for name in ("driver", "worker", "ray worker")),
                    f"{each['table_mb']:.1f}",
                )
            )
            print(*rows[-1], file=sys.stderr, flush=True)
        wanted *= 10
    return (
        "## Memory\n\n"
        "Peak resident memory, MiB, of this process, of the largest process that reads models, and of the largest Ray\n"
        f"worker that such a process belongs to. {per_model} predictions a graph, the largest graphs first, because a\n"
        "worker's memory is that of the largest graph so far; beyond the number of files they are read again.\n\n"
        + _table(("rows", "on", "s", "driver", "worker process", "Ray worker", "table, MiB"), rows)
    )


def _run(graphs: Path, **case: Any) -> dict[str, Any]:
    words = [sys.executable, str(HERE / "cluster_sweep.py"), "--graphs", str(graphs), "--case", json.dumps(case)]
    result: dict[str, Any] = json.loads(subprocess.check_output(words, text=True).splitlines()[-1])
    return result


def _measure(
    graphs: Path, *, models: int, asked: str, runner: str, jobs: int, is_largest_first: bool = False
) -> dict[str, Any]:
    """One sweep in this process, watched from its beginning."""
    import dippm

    # Entries of a cache whose names say so hold for one batch alone.
    files = sorted(str(path) for path in graphs.rglob("*.json.gz") if "-batch" not in path.name)
    if not files:
        raise SystemExit(f"There are no graph files in '{graphs}'.")
    if is_largest_first:
        files.sort(key=lambda file: -Path(file).stat().st_size)
    chosen = [files[place % len(files)] for place in range(models)]
    question = ASKED[asked]
    watch = _Watch()
    open_runner = None
    if runner == "ray":
        from dippm.cluster.sweep import RaySweep

        _start_ray(jobs)
        open_runner = RaySweep("auto")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.parquet")
        report = dippm.sweep(
            chosen,
            out=table,
            batch=question["batch"],
            device=question["device"],
            jobs=jobs,
            open_runner=open_runner,
            on_progress=watch.see,
        )
        table_mb = table.stat().st_size / 2**20
    watch.stop()
    # A few models hold for one batch alone: their rows say so.
    if failures := [each for each in report.failures if each.code != "graph.fixed_batch"]:
        raise SystemExit(f"{sum(each.rows for each in failures)} rows are errors: {failures[:3]}")
    first, last = watch.first, watch.last
    seconds = last.at_s - first.at_s
    done = last.models - first.models
    return {
        "models": done,
        "rows": report.rows,
        "streamed_rows": last.rows - first.rows,
        "start_s": first.at_s - watch.began_s,
        "stream_s": seconds,
        "models_per_s": done / seconds,
        "rows_per_s": (last.rows - first.rows) / seconds,
        "cpu_s": {name: last.cpu_s[name] - first.cpu_s.get(name, 0.0) for name in last.cpu_s},
        "peak_mb": watch.peak_mb,
        "table_mb": table_mb,
    }


def _start_ray(cpus: int) -> None:
    """A Ray of our own; an ``auto`` would join one that happens to be here."""
    import ray

    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 2**20,
    )


class _Moment:
    def __init__(self, *, at_s: float, models: int, rows: int, cpu_s: dict[str, float]) -> None:
        self.at_s, self.models, self.rows, self.cpu_s = at_s, models, rows, cpu_s


class _Watch:
    """CPU time and memory of this process and all below it, and when the first and the last rows came."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self.peak_mb: dict[str, float] = {}
        self.first = self.last = _Moment(at_s=0.0, models=0, rows=0, cpu_s={})
        self._spent: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def see(self, progress: Any) -> None:
        """Note when all workers are at work, and the end."""
        if not self.first.rows and progress.models >= progress.total // 20:
            self.first = self._now(progress)
        elif progress.models == progress.total:
            self.last = self._now(progress)

    def stop(self) -> None:
        """End the sampling, with the peak that this process has reached."""
        self._is_over.set()
        self._thread.join()
        self._sample()

    def _now(self, progress: Any) -> _Moment:
        at_s = time.perf_counter()
        self._sample()
        totals: dict[str, float] = {}
        with self._lock:
            for name, seconds in self._spent.values():
                totals[name] = totals.get(name, 0.0) + seconds
        return _Moment(at_s=at_s, models=progress.models, rows=progress.rows, cpu_s=totals)

    def _follow(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            for pid in (os.getpid(), *_descendants(os.getpid())):
                try:
                    name = _name_of(pid)
                    self._spent[pid] = (name, _cpu_s(pid))
                    self.peak_mb[name] = max(self.peak_mb.get(name, 0.0), _peak_mb(pid))
                except (OSError, ValueError, IndexError):  # it has just ended
                    continue


def _name_of(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    if b"guardian.py" in words:
        return "guardian"
    if b"dippm.api.sweep_worker" in words:
        return "worker"
    return "ray worker" if words.startswith(b"ray::") else "ray"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, listed.read_text(encoding="ascii").split())
        except OSError:
            continue
    return [each for child in children for each in (child, *_descendants(child))]


def _join(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---:|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
