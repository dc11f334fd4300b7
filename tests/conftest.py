"""Graphs built by hand, and labels made up for them."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Mode
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.latency import launched_ms
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.location import data_folder
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UsageError
from dippm.features.pmgns import NODE_FEATURES, OPERATOR_CLASSES, STATIC_FEATURES, EdgeMode
from dippm.features.scaling import Scaling
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import Attribute, Dim, DType, Graph, Node, OpKind, Shape, TensorRole, TensorSpec
from dippm.graph.fingerprint import fingerprint
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.predictors.adapted import AdaptedManifest, calibration_path
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.predictors.network_artefact import NetworkArtefact, write_weights
from dippm.predictors.physics import PhysicsPredictor

N = Dim(1, 0)


@pytest.fixture(autouse=True, scope="session")
def _no_kept_graphs() -> Iterator[None]:
    """Models by name are read anew, and nothing is written to the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIPPM_CACHE", "")
        yield


# Modules that were imported when what there was was last set aside from garbage collection.
_MANY_MODULES = 200
_set_aside = 0


def _set_objects_aside() -> None:
    """Frameworks and collected tests are a million objects, which no collection need walk through again."""
    global _set_aside
    gc.collect()
    gc.freeze()
    _set_aside = len(sys.modules)


def pytest_collection_finish() -> None:
    """Some of what is tested collects garbage at every step: tests of measuring take a quarter of the time so."""
    _set_objects_aside()


@pytest.fixture(autouse=True, scope="module")
def _later_imports_are_set_aside() -> Iterator[None]:
    yield
    if len(sys.modules) > _set_aside + _MANY_MODULES:
        _set_objects_aside()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the measured tables are left out where there are none."""
    if item.get_closest_marker("data") is not None:
        try:
            data_folder()
        except UsageError as exc:
            pytest.skip(str(exc))


@pytest.fixture(scope="session")
def is_running() -> Callable[[int], bool]:
    """Whether there is a process of this id that has not ended, by ``/proc``."""

    def look(process_id: int) -> bool:
        try:
            state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state != "Z"

    return look


@pytest.fixture(scope="session")
def assert_gone(is_running: Callable[[int], bool]) -> Callable[[Iterable[int]], None]:
    """Fails unless all of these processes end soon."""

    def wait(process_ids: Iterable[int]) -> None:
        left, deadline = list(process_ids), time.monotonic() + 20
        while any(map(is_running, left)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [each for each in left if is_running(each)] == []

    return wait


def as_shape(sizes: Sequence[object]) -> Shape:
    return tuple(size if isinstance(size, Dim) else Dim(0, int(str(size))) for size in sizes)


class GraphBuilder:
    """Adds tensors and nodes one by one; sizes are numbers or ``Dim``."""

    N = N

    def __init__(self) -> None:
        self.tensors: list[TensorSpec] = []
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def tensor(
        self,
        *sizes: object,
        dtype: DType = DType.FLOAT32,
        role: TensorRole = TensorRole.ACTIVATION,
        alias_of: int | None = None,
        storage: tuple[int, int] | None = None,
    ) -> int:
        self.tensors.append(
            TensorSpec(
                name=f"t{len(self.tensors)}",
                shape=as_shape(sizes),
                dtype=dtype,
                role=role,
                alias_of=alias_of,
                storage_bytes_per_sample=None if storage is None else storage[0],
                storage_bytes_fixed=None if storage is None else storage[1],
            )
        )
        return len(self.tensors) - 1

    def input(self, *sizes: object, dtype: DType = DType.FLOAT32) -> int:
        self.inputs.append(self.tensor(*sizes, dtype=dtype, role=TensorRole.INPUT))
        return self.inputs[-1]

    def weight(self, *sizes: object, dtype: DType = DType.FLOAT32, role: TensorRole = TensorRole.PARAMETER) -> int:
        return self.tensor(*sizes, dtype=dtype, role=role)

    def node(
        self,
        kind: OpKind,
        inputs: Sequence[int],
        *sizes: object,
        dtype: DType = DType.FLOAT32,
        alias_of: int | None = None,
        releases: Sequence[int] = (),
        storage: tuple[int, int] | None = None,
        **attributes: Attribute,
    ) -> int:
        output = self.tensor(*sizes, dtype=dtype, alias_of=alias_of, storage=storage)
        self.nodes.append(
            Node(kind=kind, inputs=tuple(inputs), outputs=(output,), attributes=attributes, releases=tuple(releases))
        )
        return output

    def graph(self, *outputs: int, has_lifetimes: bool = False) -> Graph:
        return Graph(
            source="test",
            framework="test",
            tensors=tuple(self.tensors),
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            outputs=outputs or (len(self.tensors) - 1,),
            has_lifetimes=has_lifetimes,
        )


@pytest.fixture(name="builder")
def _builder() -> GraphBuilder:
    return GraphBuilder()


@pytest.fixture(name="new_builder", scope="session")
def _new_builder() -> Callable[[], GraphBuilder]:
    return GraphBuilder


@pytest.fixture(scope="session")
def export_onnx() -> Callable[[Any, Any], Any]:
    """Exports a module with a sample; the model keeps batch norm, which the exporter's default folds away."""

    def export(module: Any, sample: Any) -> Any:
        import onnx
        import torch

        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (sample,),
                buffer,
                dynamo=False,
                opset_version=17,
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                input_names=["x"],
                dynamic_axes={"x": {0: "N"}},
            )
        return onnx.load_from_string(buffer.getvalue())

    return export


_BATCHES = (1, 8)
_FAMILIES = ("plain", "deep")


def _make_network(*, depth: int, channels: int) -> Graph:
    builder = GraphBuilder()
    attributes = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}
    value, width = builder.input(N, 3, 16, 16), 3
    for _ in range(depth):
        weight = builder.weight(channels, width, 3, 3)
        value = builder.node(OpKind.CONV, [value, weight], N, channels, 16, 16, **attributes)  # type: ignore[arg-type]
        value, width = builder.node(OpKind.RELU, [value], N, channels, 16, 16), channels
    return builder.graph()


@pytest.fixture(name="labelled_models", scope="session")
def _labelled_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Label], Path]:
    """Made-up labels of 24 small networks at two batches, and a cache that holds their graphs.

    The figures follow from the work by simple laws; every third model has no energy.
    """
    folder = tmp_path_factory.mktemp("graphs")
    cache = GraphCache(folder)
    labels = []
    for number in range(24):
        depth, channels = 1 + number % 6, 4 * (1 + number // 6)
        graph = _make_network(depth=depth, channels=channels)
        macs = 16 * 16 * 9 * channels * (3 + (depth - 1) * channels)
        for batch in _BATCHES:
            recipe = Recipe(
                collection="made-up",
                family=_FAMILIES[depth > 3],
                architecture="timm:resnet",
                arguments={"depth": depth, "channels": channels},
                inputs=InputShapes(positional=(InputEntry(shape=(3, 16, 16)),)),
                batch=batch,
            )
            latency_ms = 0.1 * depth + batch * macs / 1e6
            measurement = Measurement(
                outcome=Outcome.OK,
                device="Processor",
                measured_at="2026-01-01T00:00:00+00:00",
                latency_ms=latency_ms,
                energy_j=None if number % 3 == 0 else 0.05 * latency_ms,
                memory_mb=100.0 + 0.1 * batch * channels,
            )
            labels.append(Label(recipe=recipe, configuration=Configuration(batch=batch), measurement=measurement))
        cache.save(recipe.model_key, graph, fingerprint=fingerprint(graph))
    return labels, folder


@pytest.fixture(name="training_labels", scope="session")
def _training_labels(labelled_models: tuple[list[Label], Path]) -> tuple[list[Label], Path]:
    """The same networks and figures as labels of training."""
    labels, folder = labelled_models
    conditions = Conditions.parse(mode="training", optimizer="momentum")
    cache = GraphCache(folder)
    for label in labels:
        cached = cache.load(label.recipe.model_key, batch=label.recipe.batch)
        assert cached is not None
        cache.of(Mode.TRAINING).save(label.recipe.model_key, cached.graph, fingerprint=cached.fingerprint)
    return [
        replace(label, configuration=replace(label.configuration, conditions=conditions)) for label in labels
    ], folder


@pytest.fixture(name="own_device", scope="session")
def _own_device(labelled_models: tuple[list[Label], Path]) -> tuple[list[Label], DeviceSpec]:
    """Labels of a card that the catalogue does not know: 1.4 times slower than predicted, beside a host that is two
    times slower, and drawing 0.7 times the power. Twelve models at two large batches, and at one, which waits for the
    host.
    """
    device = replace(find_device("RTX 4090"), name="Card of one's own", aliases=())
    models, cache = {label.recipe.model_key: label for label in labelled_models[0]}, GraphCache(labelled_models[1])
    amp, labels = Conditions.parse(precision="amp"), []
    for label in list(models.values())[:12]:
        cached = cache.load(label.recipe.model_key, batch=1)
        assert cached is not None
        for row in PhysicsPredictor.load().predict(
            cached.graph, batches=(65536, 262144), devices=[device], conditions=amp
        ):
            assert row.energy_j is not None
            labels.append(_relabel(label, row.batch, device, amp, 1.4 * row.latency_ms, 0.7 * 1.4 * row.energy_j))
        plan = KernelPlan.from_workload(Workload.from_graph(cached.graph, amp.precision))
        launched = float(launched_ms(plan, amp, Calibration.read().rates)[-1])
        labels.append(_relabel(label, 1, device, amp, 2.0 * launched, None))
    return labels, device


def _relabel(
    label: Label, batch: int, device: DeviceSpec, conditions: Conditions, latency_ms: float, energy_j: float | None
) -> Label:
    return replace(
        label,
        recipe=replace(label.recipe, batch=batch),
        configuration=replace(label.configuration, batch=batch, conditions=conditions),
        measurement=replace(
            label.measurement, device=device.name, latency_ms=latency_ms, energy_j=energy_j, memory_mb=None
        ),
    )


_UNSEEN = ("softmax", "other_activation")


@pytest.fixture(name="write_predictor", scope="session")
def _write_predictor(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes what ``dippm train`` would: a network that says 2,000 MiB, 4 ms and 1.5 J of every model.

    Changes are fields of the artefact; those of ``labels`` replace single entries. Training has seen models of up to 20
    operators and 1 GMACs, at batches up to 8, without softmax and without activations beside ReLU.
    """
    hidden, width = 4, len(OPERATOR_CLASSES)
    sizes = {f"convolutions.{block}": NODE_FEATURES if block == 0 else hidden for block in range(3)}
    weights = {}
    for name, size in sizes.items():
        weights |= {f"{name}.{part}.weight": np.zeros((hidden, size), np.float32) for part in ("lin_l", "lin_r")}
        weights[f"{name}.lin_l.bias"] = np.zeros(hidden, np.float32)
    for block in range(3):
        size = 2 * hidden + STATIC_FEATURES if block == 0 else hidden
        weights[f"head.layers.{block}.weight"] = np.zeros((hidden, size), np.float32)
        weights[f"head.layers.{block}.bias"] = np.zeros(hidden, np.float32)
    weights |= {"head.output.weight": np.zeros((3, hidden), np.float32), "head.output.bias": np.zeros(3, np.float32)}
    seen = np.zeros(NODE_FEATURES)
    seen[[place for place, name in enumerate(OPERATOR_CLASSES) if name not in _UNSEEN]] = 0.05
    seen[width:] = 1.0
    artefact = NetworkArtefact(
        model="pmgns",
        metrics=("memory_mb", "latency_ms", "energy_j"),
        edges=EdgeMode.DATA,
        scaling=Scaling(
            node_mean=seen,
            node_std=np.ones(NODE_FEATURES),
            static_mean=np.zeros(STATIC_FEATURES),
            static_std=np.ones(STATIC_FEATURES),
            target_mean=np.log([2000.0, 4.0, 1.5]),
            target_std=np.ones(3),
        ),
        spreads={"memory_mb": float(np.log(2.5)), "latency_ms": float(np.log(1.25)), "energy_j": float(np.log(2.0))},
        labels={
            "device": "A100-SXM4-40GB",
            "source": "dippm",
            "conditions": {
                "precision": "amp", "mode": "inference", "layout": "nhwc", "runtime": "eager", "optimizer": None,
            },
            "software": {"framework": ["torch 2.13.0"], "cuda": ["13.0"], "cudnn": [""], "driver": ["580.1", "581.2"]},
            "samples": 321,
            "collections": ["made-up"],
            "families": ["plain"],
            "trained_range": {"batch": [1, 8], "macs": [0, 1e9], "operators": [1, 20]},
        },
        errors_percent={},
        settings={},
        provenance={"data_hash": "0123456789abcdef", "seed": 7, "versions": {"dippm": "9.8"}},
    )  # fmt: skip

    def write(**changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("predictor")
        labels = {**artefact.labels, **changes.pop("labels", {})}
        replace(artefact, labels=labels, **changes).write(folder)
        write_weights(folder, weights)
        return folder

    return write


@pytest.fixture(name="adapted_folder", scope="session")
def _adapted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``dippm train --adapt`` writes, for a card of 8 GB: the shipped networks, and memory that is less certain.

    Most of its labels are said to be of training, in amp.
    """
    folder = tmp_path_factory.mktemp("adapted")
    for path in ARTEFACT_PATH.parent.iterdir():
        shutil.copy(path, folder)
    for mode in Mode:
        path = calibration_path(mode, folder)
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"memory_spread": 0.5}))
    AdaptedManifest(
        device=replace(
            find_device("RTX 4090"), name="Small card", aliases=(), memory_mb=8192.0, usable_memory_mb=7900.0
        ),
        conditions=Conditions.parse(precision="amp", mode="training", optimizer="momentum"),
        report={},
        provenance={},
    ).write(folder)
    return folder


class WarmPython:
    """What runs modules in copies of a process that has imported a framework; see ``warm_python.py``.

    Args:
        folder: Of its own.
        code: What that process does before: imports.
        environment: Its variables, in place of those of this process.
    """

    def __init__(self, folder: Path, code: str, environment: Mapping[str, str] | None = None) -> None:
        self._script = str(Path(__file__).with_name("warm_python.py"))
        self._address = str(folder / "socket")
        self._code = code
        self._environment = environment
        self._server: subprocess.Popen[bytes] | None = None

    def command(self, module: str, *words: str) -> list[str]:
        """What does the same as ``python -m MODULE WORD ...`` or ``python -c CODE``; that itself without Linux."""
        if not hasattr(os, "pidfd_open"):
            return [sys.executable, *(["-c"] if module == "-c" else ["-m", module]), *words]
        if self._server is None:
            self._server = self._start()
        return [sys.executable, "-I", "-S", self._script, "run", self._address, module, *words]

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        server = subprocess.Popen(
            [sys.executable, "-P", self._script, "serve", self._address, self._code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
        )
        assert server.stdout is not None
        with server.stdout:
            # Packages say things as they are imported.
            assert b"ready\n" in iter(server.stdout.readline, b""), "it did not start"
        return server


@pytest.fixture(name="start_warm_python", scope="session")
def _start_warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., WarmPython]]:
    """Starts a :class:`WarmPython` that ends with the tests."""
    started: list[WarmPython] = []

    def start(code: str, environment: Mapping[str, str] | None = None) -> WarmPython:
        started.append(WarmPython(tmp_path_factory.mktemp("warm"), code, environment))
        return started[-1]

    yield start
    for each in started:
        each.close()


# Packages of models import most of what they hold when it is first asked for: a small one of each is read.
_WARM_MODELS = """
import contextlib, io
from importlib.util import find_spec
from dippm.cli import main
names = {"transformers": "hf:gpt2#decode=16", "diffusers": "diffusers:stable-diffusion-v1-5/unet#image=64"}
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for package, name in names.items():
        if find_spec(package) and find_spec("torch"):
            main(["predict", name])
"""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(name="warm_models_python", scope="session")
def _warm_models_python(start_warm_python: Callable[..., WarmPython]) -> WarmPython:
    """One for commands that read models of PyTorch and its libraries."""
    environment = {**os.environ, **_ONE_THREAD, "HF_HUB_OFFLINE": "1", "DIPPM_CACHE": ""}
    return start_warm_python(_WARM_MODELS, environment)


# What a converter's process imports before it does anything.
_WARM_CONVERTERS = {
    "dippm.frontends.tensorflow.worker": """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy, onnx, tensorflow as tf, tf2onnx, tf2onnx.tf_loader, tf2onnx.tfonnx, tf2onnx.optimizer
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.saved_model import load
from dippm.frontends.tensorflow import graph_to_onnx, loading
""",
    "dippm.frontends.paddle.worker": "import onnx, paddle, paddle2onnx",
}


@pytest.fixture(name="warm_conversions", scope="module")
def _warm_conversions(start_warm_converter: Callable[[str], WarmPython]) -> Iterator[None]:
    """Converters start at once: copies of a process that has imported them, under the limits of one of their own."""
    from dippm.frontends.conversion import converter_process

    start_guarded = converter_process.start_guarded

    def start(command: Sequence[str], **settings: Any) -> Any:
        _, _, _, worker, request = command
        if worker in _WARM_CONVERTERS:
            command = start_warm_converter(worker).command(worker, request)
        return start_guarded(command, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converter_process, "start_guarded", start)
        yield


@pytest.fixture
def cold_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converters start as they do for users, in spite of ``warm_conversions``."""
    for worker in list(_WARM_CONVERTERS):
        monkeypatch.delitem(_WARM_CONVERTERS, worker)


@pytest.fixture(name="start_warm_converter", scope="session")
def _start_warm_converter(
    start_warm_python: Callable[..., WarmPython], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], WarmPython]:
    from dippm.frontends.conversion import converter_process

    @cache
    def start(worker: str) -> WarmPython:
        environment = converter_process._environment(tmp_path_factory.mktemp("home"))
        return start_warm_python(_WARM_CONVERTERS[worker], environment)

    return start
