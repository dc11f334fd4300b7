"""Each extra works alone: an environment of its own, a real model read or a small job done, the others refused.

    python scripts/check_extras.py [EXTRA ...] [--folder FOLDER]

Without arguments all of them, the core among them. It installs from the package index, and takes some minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints-test.txt"

_CORE = """
from onnx import TensorProto, helper, save
node = helper.make_node("Gemm", ["x", "w"], ["y"])
graph = helper.make_graph(
    [node],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
    [helper.make_tensor("w", TensorProto.FLOAT, [64, 10], [0.0] * 640)],
)
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "model.onnx")
models = ["model.onnx"]
"""
_TORCH = """
import torch
module = torch.nn.Sequential(torch.nn.Linear(64, 10)).eval()
torch.export.save(torch.export.export(module, (torch.zeros(2, 64),)), "model.pt2")
torch.jit.save(torch.jit.trace(module, torch.zeros(2, 64)), "model.pt")
models = ["model.pt2", "model.pt"]
"""
_TENSORFLOW = """
import keras
image = keras.Input((64,))
model = keras.Model(image, keras.layers.Dense(10)(image))
model.save("model.keras")
model.save("model.h5")
model.export("saved", verbose=False)
models = ["model.keras", "model.h5", "saved"]
"""
_PADDLE = """
import paddle
layer = paddle.nn.Linear(64, 10)
layer.eval()
paddle.jit.save(layer, "net/model", input_spec=[paddle.static.InputSpec([None, 64], "float32")])
models = ["net/model.json", "net"]
"""
_SWEEP = (
    _CORE
    + """
import dippm
report = dippm.sweep(models, out="table.parquet", batch=[1, 8], device=["A100", "T4"])
assert (report.rows, report.errors) == (4, 0), report
"""
)
_RAY = (
    _CORE
    + """
import dippm
import ray
from dippm.cluster.sweep import RaySweep
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
report = dippm.sweep(models, out="table.parquet", batch=[1, 8], device=["A100", "T4"], jobs=1,
                     open_runner=RaySweep("auto"))
assert (report.rows, report.errors) == (4, 0), report
"""
)
_EXPLORE = (
    _CORE
    + """
import dippm
space = dippm.Space.of({"model": models, "twin": [1, 2]}, lambda choices: choices["model"])
for sampler in ("surrogate", "tpe"):
    found = dippm.explore(space, objectives="latency,params", trials=2, sampler=sampler, out="found-" + sampler)
    assert len(found.front) >= 1, found
"""
)
_PROGRAMS = {
    "core": _CORE,
    "torch": _TORCH,
    "tensorflow": _TENSORFLOW,
    "paddle": _PADDLE,
    "sweep": _SWEEP,
    "explore": _EXPLORE,
    "ray": _RAY,
}
_CHECK = """
import dippm
for model in models:
    (shape,) = [(64,)]
    graph = dippm.load(model, input=shape)
    macs = dippm.predict(graph, batch=8).macs
    assert (macs, graph.unsupported_ops) == (8 * 640, {}), (model, macs, graph.unsupported_ops)
    print(f"  {model}: {macs} MACs")
"""
# Files that each framework would be asked for, and the extra that must be named where it is missing.
_REFUSED = """
import pathlib
import dippm
from dippm.errors import MissingExtraError
pathlib.Path("other.h5").write_bytes(b"\\x89HDF\\r\\n\\x1a\\n" + bytes(2000))
pathlib.Path("other.json").write_text('{"base_code": {"magic": "pir", "version": 1}, "program": {}}')
wanted = {"torch": "timm:resnet18", "tensorflow": "other.h5", "paddle": "other.json"}
wanted.pop(extra, None)
for missing, model in wanted.items():
    try:
        dippm.load(model, input=(64,))
    except MissingExtraError as error:
        print(f"  without {missing}: {error}")
    else:
        raise SystemExit(f"'{model}' was read without the extra {missing}")
"""


def main() -> int:
    """Check the extras that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", choices=[[], *_PROGRAMS], default=[])
    parser.add_argument("--folder", type=Path, help="where the environments go; a temporary folder when left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dippm-extras-") as temporary:
        for extra in options.extras or _PROGRAMS:
            check(extra, (options.folder or Path(temporary)).resolve() / extra)
    return 0


def check(extra: str, folder: Path) -> None:
    """Make the environment of an extra and run its models there.

    Raises:
        subprocess.CalledProcessError: Something does not install or does not work.
    """
    print(f"{extra}:", flush=True)
    venv.create(folder / "environment", with_pip=True, clear=True)
    python = folder / "environment" / "bin" / "python"
    target = str(ROOT) if extra == "core" else f"{ROOT}[{extra}]"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--constraint", CONSTRAINTS, "--editable", target], check=True)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for program in (_PROGRAMS[extra] + _CHECK, f"extra = {extra!r}\n" + _REFUSED):
        subprocess.run([python, "-P", "-c", program], cwd=work, check=True)


if __name__ == "__main__":
    sys.exit(main())
