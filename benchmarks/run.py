"""Speed and memory of the program itself, beside its peers; writes ``docs/reports/speed.md``.

    .venv/bin/python -m pip install --requirement benchmarks/requirements.txt
    .venv/bin/python benchmarks/run.py

Whole processes, in turn, medians. Figures of one table come from one run on one machine: compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from peer import TOOLS
from processes import Run, median_peak_mb, median_seconds, run, run_in_turn

HERE = Path(__file__).resolve().parent
PACKAGES = ("dippm", "torch", "timm", "numpy", "onnx", "onnx-tool", "torchinfo")
PEER_BATCH = 1
CHAIN_SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)


def main() -> None:
    """Run all benchmarks, print the report and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=HERE.parent / "demo", help="where the model files lie")
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "speed.md")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    # In a process of its own: a child's peak memory begins with what this process held when it was forked.
    run([sys.executable, str(HERE / "models.py"), str(options.models), *map(str, CHAIN_SIZES)])
    sections = [
        _head(options.rounds),
        _cold_start(options.models, rounds=options.rounds),
        _sweep(options.models, rounds=options.rounds),
        _large_file(options.models, rounds=options.rounds),
        _growth(options.models, rounds=3),
        _peers(options.models, rounds=max(3, options.rounds // 2)),
    ]
    report = "\n\n".join(sections) + "\n"
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(report, encoding="utf-8")
    print(report)


def _head(rounds: int) -> str:
    installed = []
    for package in PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            installed.append(f"{package} missing")
    return (
        "# Speed of the program\n\n"
        "Written by `python benchmarks/run.py`. Whole processes from start to exit, run in turn after one round that\n"
        f"warms the file cache; medians of {rounds} rounds (3 for long models). Figures of one table come from\n"
        "one run on one machine: compare the ratios.\n\n"
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; "
        f"{', '.join(installed)}."
    )


def _cold_start(models: Path, *, rounds: int) -> str:
    commands = {
        "`dippm predict resnet50.onnx`": [*_dippm("predict"), str(models / "resnet50.onnx"), "--json"],
        '`python -c "import torch"`': [sys.executable, "-c", "import torch"],
        '`python -c "import onnx"`': [sys.executable, "-c", "import onnx"],
        "`dippm --help`": _dippm("--help"),
        '`python -c ""`': [sys.executable, "-c", ""],
    }
    runs = run_in_turn(commands, rounds=rounds)
    own = median_seconds(runs["`dippm predict resnet50.onnx`"])
    rows = [
        (name, f"{median_seconds(each):.3f}", f"{median_seconds(each) / own:.2f}", f"{median_peak_mb(each):.0f}")
        for name, each in runs.items()
    ]
    return "## Cold start\n\n" + _table(("command", "seconds", "ratio", "peak resident, MiB"), rows)


def _sweep(models: Path, *, rounds: int) -> str:
    command = [sys.executable, str(HERE / "sweep.py"), str(models / "resnet50.onnx")]
    answers = [json.loads(run(command).output) for _ in range(max(3, rounds // 3))]

    def median(key: str) -> float:
        return statistics.median(answer[key] for answer in answers)

    rows = [
        ("reading the file", f"{median('load_ms'):.1f}"),
        ("first sweep, shipped artefacts read with it", f"{median('first_ms'):.1f}"),
        ("a sweep after that, median", f"{median('median_ms'):.1f}"),
        ("a sweep after that, slowest", f"{median('highest_ms'):.1f}"),
    ]
    title = f"## A parsed ResNet-50 over 16 batch sizes and 8 devices ({answers[0]['predictions']} predictions)"
    return f"{title}\n\n" + _table(("step", "ms"), rows)


def _large_file(models: Path, *, rounds: int) -> str:
    path = models / "vgg16.onnx"
    load = f"import dippm; dippm.load({str(path)!r})"
    commands = {
        "`dippm predict vgg16.onnx`": [*_dippm("predict"), str(path), "--json"],
        "`dippm.load('vgg16.onnx')`": [sys.executable, "-c", load],
        "`onnx.load('vgg16.onnx')`": [sys.executable, "-c", f"import onnx; onnx.load({str(path)!r})"],
        "`import dippm, numpy, onnx`": [sys.executable, "-c", "import dippm, numpy, onnx"],
    }
    runs = run_in_turn(commands, rounds=max(3, rounds // 3))
    rows = [(name, f"{median_seconds(each):.3f}", f"{median_peak_mb(each):.0f}") for name, each in runs.items()]
    size = path.stat().st_size / 2**20
    title = f"## VGG16 with weights inside ({size:.0f} MiB)"
    return f"{title}\n\n" + _table(("what", "seconds", "peak resident, MiB"), rows)


def _growth(models: Path, *, rounds: int) -> str:
    commands = {str(size): [*_dippm("predict"), str(models / f"chain{size}.onnx"), "--json"] for size in CHAIN_SIZES}
    runs = run_in_turn(commands, rounds=rounds)
    floor = median_seconds(run_in_turn({"floor": [*_dippm("devices"), "--json"]}, rounds=rounds)["floor"])
    rows = []
    for size in CHAIN_SIZES:
        each = runs[str(size)]
        seconds = median_seconds(each)
        per_node = f"{1e6 * (seconds - floor) / size:.0f}"
        rows.append((f"{size:,}", f"{seconds:.2f}", per_node, f"{median_peak_mb(each):.0f}"))
    return (
        "## Time against the number of operators\n\n"
        + _table(("operators", "seconds", "µs per operator", "peak resident, MiB"), rows)
        + f"\n\nµs per operator leaves out the {floor:.2f} s that `dippm devices` takes. Between the last two "
        f"sizes time grows with the number of operators to the power {_exponent(runs, floor):.2f}."
    )


def _exponent(runs: dict[str, list[Run]], floor: float) -> float:
    """Slope on log axes between the two longest models; 1 is linear."""
    small, large = CHAIN_SIZES[-2:]
    seconds = [median_seconds(runs[str(size)]) - floor for size in (small, large)]
    return math.log(seconds[1] / seconds[0]) / math.log(large / small)


def _peers(models: Path, *, rounds: int) -> str:
    commands = {name: [sys.executable, str(HERE / "peer.py"), name, str(models), str(PEER_BATCH)] for name in TOOLS}
    runs = run_in_turn(commands, rounds=rounds)
    own = median_seconds(next(iter(runs.values())))
    rows = []
    for name, each in runs.items():
        figures = json.loads(each[0].output)
        rows.append(
            (
                name,
                f"{median_seconds(each):.2f}",
                f"{median_seconds(each) / own:.1f}",
                f"{median_peak_mb(each):.0f}",
                f"{figures['macs'] / 1e9:.4f}" if "macs" in figures else "",
                f"{figures['parameters']:,.0f}" if "parameters" in figures else "",
                f"{figures['peak_mb']:.1f}" if "peak_mb" in figures else "",
                "yes" if "latency_ms" in figures else "",
            )
        )
    head = (
        "tool", "seconds", "ratio", "its resident, MiB", "GMACs", "parameters", "peak of live tensors, MiB",
        "time, energy, memory on a GPU",
    )  # fmt: skip
    return f"## ResNet-50 at batch {PEER_BATCH}, beside other tools\n\n" + _table(head, rows)


def _dippm(*words: str) -> list[str]:
    return [sys.executable, "-m", "dippm", *words]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
