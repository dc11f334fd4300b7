"""Time to read a model beside what its framework's converter takes alone; writes ``docs/reports/parse_time.md``.

    python benchmarks/parse_time.py [--frameworks tensorflow,paddle,pytorch,onnx] [--rounds 3] [--folder FOLDER]

It runs in an environment that holds the frameworks. TensorFlow and Paddle: the converter's own command beside a process
that loads the model with dippm, without a cache, both from their start to their end and in turn; and the seconds of the
converter's work inside that load, as its process notes them. PyTorch:
``torch.export.export`` beside ``dippm.load`` of the module, and ONNX: ``onnx.load`` with shape inference beside
``dippm.load`` of the file, in one process, in turn. Figures of one table come from one run on one machine: compare the
ratios.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from processes import RunFailure, run, run_in_turn

HERE = Path(__file__).resolve().parent
NAMES = ("vgg16", "resnet50", "mobilenet_v2", "lstm", "bert")
FRAMEWORKS = ("tensorflow", "paddle", "pytorch", "onnx")
PACKAGES = ("dippm", "tensorflow", "tf2onnx", "keras", "paddlepaddle", "paddle2onnx", "torch", "onnx")
ALLOWED = 1.2
# Of tf2onnx VGG16 takes all the memory of a machine, or minutes beside that of a small one.
LIMIT_GB, LIMIT_S = 12, 120.0
LIMITED = """
import os, resource, sys
limit = int(sys.argv[1]) * 2**30
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
os.execv(sys.argv[2], sys.argv[2:])
"""
LEAST_CALLS, MOST_CALLS, CALLS_S = 5, 51, 5.0
CONVERTERS = {
    "tensorflow": "`python -m tf2onnx.convert`",
    "paddle": "`paddle2onnx --optimize_tool None`",
    "pytorch": "`torch.export.export`",
    "onnx": "`onnx.load`, `infer_shapes`",
}
# Operators, and the seconds that the converter took inside.
LOAD = """
import sys
import dippm
from dippm.frontends import open_model
taken = []
read = open_model._read_converted
def noted(converted, **options):
    taken.append(converted.converter_s)
    return read(converted, **options)
open_model._read_converted = noted
print(len(dippm.load(sys.argv[1]).nodes), *taken)
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one model took.

    Args:
        framework: Its framework.
        name: Its name.
        converter_s: The converter alone, median seconds; None where its command fails.
        ours_s: Reading it with dippm, median seconds.
        inside_s: The converter's work inside ours, median seconds; None where ours does without it.
        nodes: Operators of the graph.
    """

    framework: str
    name: str
    converter_s: float | None
    ours_s: float
    inside_s: float | None
    nodes: int

    @property
    def ratio(self) -> float:
        """Ours over the converter's: its command, or where that fails its work inside ours."""
        theirs_s = self.inside_s if self.converter_s is None else self.converter_s
        if theirs_s is None:
            raise SystemExit(f"There is no figure to compare {self.framework} {self.name} with.")
        return self.ours_s / theirs_s


def main() -> None:
    """Run all measurements, print the report and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the models are written, or lie already")
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "parse_time.md")
    arguments = parser.parse_args()
    os.environ.update(DIPPM_CACHE="", PIP_NO_INDEX="1", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for framework in arguments.frameworks.split(","):
            for name in NAMES:
                rows.append(_measure(framework, name, folder / framework, rounds=arguments.rounds))
                print(rows[-1], file=sys.stderr, flush=True)
    report = _report(rows, arguments.rounds)
    arguments.report.write_text(report)
    print(report)


def _measure(framework: str, name: str, folder: Path, *, rounds: int) -> Row:
    if framework != "pytorch" and not list(folder.glob(f"{name}*")):
        run([sys.executable, str(HERE / "framework_models.py"), framework, str(folder)])
    if framework in ("tensorflow", "paddle"):
        return _measure_processes(framework, name, folder, rounds=rounds)
    return _measure_calls(framework, name, folder)


def _measure_processes(framework: str, name: str, folder: Path, *, rounds: int) -> Row:
    """Each in a process of its own, as a first one is, in turn, of files that are in memory."""
    source = folder / name
    with tempfile.TemporaryDirectory() as temporary:
        target = str(Path(temporary) / "model.onnx")
        commands = {
            "converter": _converter_command(framework, source, target),
            "dippm": [sys.executable, "-c", LOAD, str(source)],
        }
        try:
            runs = run_in_turn(commands, rounds=rounds, limit_s=LIMIT_S)
        except RunFailure as failure:
            print(failure, file=sys.stderr)
            del commands["converter"]
            runs = run_in_turn(commands, rounds=rounds, limit_s=LIMIT_S)
    nodes, inside = zip(*(map(float, each.output.split()[-2:]) for each in runs["dippm"]), strict=True)
    return Row(
        framework=framework,
        name=name,
        converter_s=statistics.median(each.seconds for each in runs["converter"]) if "converter" in runs else None,
        ours_s=statistics.median(each.seconds for each in runs["dippm"]),
        inside_s=statistics.median(inside),
        nodes=int(nodes[0]),
    )


def _converter_command(framework: str, source: Path, target: str) -> list[str]:
    """The converter's own command, as its documentation gives it; without an optimiser, which dippm does not run."""
    if framework == "tensorflow":
        limited = [sys.executable, "-c", LIMITED, str(LIMIT_GB), sys.executable]
        return [*limited, "-m", "tf2onnx.convert", "--saved-model", str(source), "--output", target]
    files = ["--model_dir", str(source), "--model_filename", "model.json", "--params_filename", "model.pdiparams"]
    command = str(Path(sys.executable).with_name("paddle2onnx"))
    return [command, *files, "--save_file", target, "--optimize_tool", "None"]


def _measure_calls(framework: str, name: str, folder: Path) -> Row:
    import dippm

    if framework == "pytorch":
        import torch

        from framework_models import torch_models

        build, sample = torch_models()[name]
        module = build().eval()
        shape = tuple(sample.shape[1:])
        given = shape if sample.is_floating_point() else {"ids": (shape, "int64")}

        def convert() -> object:
            return torch.export.export(module, (sample,))

        def load() -> dippm.Graph:
            return dippm.load(module, input=given)
    else:
        import onnx

        path = folder / f"{name}.onnx"

        def convert() -> object:
            return onnx.shape_inference.infer_shapes(onnx.load(path))

        def load() -> dippm.Graph:
            return dippm.load(path)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = load()
        convert()
        theirs, ours = [], []
        # Short calls scatter: more of them.
        while len(ours) < LEAST_CALLS or (len(ours) < MOST_CALLS and sum(theirs) + sum(ours) < CALLS_S):
            theirs.append(_seconds(convert))
            ours.append(_seconds(load))
    return Row(
        framework=framework,
        name=name,
        converter_s=statistics.median(theirs),
        ours_s=statistics.median(ours),
        inside_s=None,
        nodes=len(graph.nodes),
    )


def _seconds(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _report(rows: Sequence[Row], rounds: int) -> str:
    lines = [
        "# Time to read a model",
        "",
        "Written by `python benchmarks/parse_time.py`. VGG16, ResNet-50, MobileNetV2, two LSTM layers and a BERT",
        "encoder, saved by each framework (TensorFlow: SavedModel; Paddle: `model.json` with its weights; ONNX:",
        "PyTorch's exporter, weights inside).",
        "",
        "TensorFlow and Paddle: the converter's own command, and a process that imports dippm and loads the model",
        f"without a cache, from start to end, in turn, medians of {rounds} rounds after a first one. dippm leaves the",
        "weights out before it converts, where the command writes them. Inside: what the converter itself took in that",
        f"load, its imports among them; where the command fails (it may take {LIMIT_GB} GiB and {LIMIT_S:.0f} s), the",
        "ratio is to that.",
        f"PyTorch and ONNX: calls in one process, in turn, medians of {LEAST_CALLS} to {MOST_CALLS} after a first one.",
        "dippm uses neither of them: it takes modules apart by itself, and ONNX files need no converter. The",
        "ratio says how it compares. Figures come from one run on one machine: compare the ratios.",
        "",
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; "
        f"{_versions()}.",
        "",
        "| framework | model | converter | its seconds | dippm, seconds | ratio | inside, seconds | operators |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.framework} | {row.name} | {CONVERTERS[row.framework]} "
        f"| {'fails' if row.converter_s is None else f'{row.converter_s:.3f}'} | {row.ours_s:.3f} "
        f"| {row.ratio:.2f} | {'' if row.inside_s is None else f'{row.inside_s:.3f}'} | {row.nodes} |"
        for row in rows
    ]
    lines += ["", *_conclusion(rows), ""]
    return "\n".join(lines)


def _conclusion(rows: Sequence[Row]) -> Iterator[str]:
    converted = [row for row in rows if row.framework != "onnx"]
    if converted:
        worst = max(converted, key=lambda row: row.ratio)
        within = sum(row.ratio <= ALLOWED for row in converted)
        yield (
            f"The aim beside a converter is a ratio of at most {ALLOWED}: {within} of {len(converted)} are within it, "
            f"the highest is {worst.ratio:.2f} ({worst.framework}, {worst.name})."
        )
    direct = [row for row in rows if row.framework == "onnx"]
    if direct:
        worst = max(direct, key=lambda row: row.ratio)
        yield (
            f"ONNX files have none. Beside onnx's own reading, which is C++, the highest is {worst.ratio:.2f} "
            f"({worst.name}: {worst.ours_s * 1000:.1f} ms)."
        )


def _versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


if __name__ == "__main__":
    main()
