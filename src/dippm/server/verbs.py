"""Answers jobs by the verbs of :mod:`dippm.api`; runs in a worker."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm import api
from dippm.api.loading import precision_to_read, read_format
from dippm.api.question import ModelByBatch, Options, Question
from dippm.api.refused_devices import refused_entry
from dippm.server.archives import unpack_model
from dippm.server.errors import SCHEMA
from dippm.server.jobs import Job, Verb

__all__ = ["GraphReader", "answer"]

_MOST_GRAPHS = 64
_MOST_NODES = 100_000
# One reading at the second proves a graph for all batches between the first, which readers prove at least, and it.
_PROOF_BATCHES = (64, 4096)


class GraphReader:
    """Reads the models of jobs and keeps the graphs of the latest ones.

    Args:
        unpacked_mb: MiB to which an archive may unpack.
    """

    def __init__(self, *, unpacked_mb: int) -> None:
        self._unpacked_mb = unpacked_mb
        self._kept: OrderedDict[tuple[object, ...], api.Graph] = OrderedDict()

    def read(self, job: Job, *, batch: int | None) -> api.Graph:
        """The graph of a job's model, under the name that the client knows.

        Args:
            job: The job.
            batch: The batch that it is read for where it cannot be for every one, and up to which it is proved; None
                where none is named.
        """
        framework, shapes = job.options.get("framework"), job.options.get("input")
        mode, weights = job.options.get("mode", "inference"), job.options.get("weights")
        precision = precision_to_read(job.options.get("precision"), job.options.get("lora"))
        key = (job.content, job.name, framework, repr(shapes), mode, read_format(precision), weights, batch is None)
        graph = self._kept.pop(key, None)
        if graph is None or not _is_for(graph, batch):
            model = job.name if job.path is None else self._find(Path(job.path), name=job.name)

            if job.path is not None:
                _refuse_program(Path(model), framework=framework, name=job.name)

            def load(hint: int | None) -> api.Graph:
                # Trust is never given: a file that would run code when opened is refused.
                return api.load(
                    model,
                    framework=framework,
                    input=shapes,
                    mode=mode,
                    batch_hint=hint,
                    precision=precision,
                    weights=weights,
                )

            graph = self._load_proved(load, batch)
            graph = replace(graph, source=job.name, warnings=tuple(map(job.as_known, graph.warnings)))
        self._keep(key, graph)
        return graph

    @staticmethod
    def _load_proved(load: Callable[[int | None], api.Graph], batch: int | None) -> api.Graph:
        """A graph that serves a batch, and larger ones where they go its way."""
        proved, most = _PROOF_BATCHES
        if batch is not None and proved < batch < most:
            # What keeps the model from the largest batch need not keep it from this one.
            with suppress(api.DippmError):
                graph = load(most)
                if graph.serves(batch):
                    return graph
        return load(batch)

    def _find(self, path: Path, *, name: str) -> str:
        if path.suffix == ".zip":
            path = unpack_model(path, path.with_name("unpacked"), name=name, most_bytes=self._unpacked_mb * 2**20)
        return str(path)

    def _keep(self, key: tuple[object, ...], graph: api.Graph) -> None:
        self._kept[key] = graph
        while len(self._kept) > _MOST_GRAPHS or sum(len(each.nodes) for each in self._kept.values()) > _MOST_NODES:
            self._kept.popitem(last=False)


def _is_for(graph: api.Graph, batch: int | None) -> bool:
    return batch is None or (graph.is_proved_for(batch) and graph.goes_so_at(batch))


def _refuse_program(path: Path, *, framework: object, name: str) -> None:
    """Refuse files that TensorFlow runs while it loads them; a TensorFlow Lite file is only read.

    Raises:
        UnsupportedError: ``service.program_refused``.
    """
    found: api.Framework | None
    try:
        found = api.detect_framework(path)
    except api.ModelReadError:
        found = None if framework is None else api.parse_framework(str(framework))
    if found is not api.Framework.TENSORFLOW:
        return
    if path.is_file():
        with path.open("rb") as stream:
            if stream.read(8)[4:] == b"TFL3":
                return
    raise api.UnsupportedError(
        f"'{name}' is a TensorFlow or Keras model, which can run operators of its own while it is loaded.",
        code="service.program_refused",
        cure="Convert it to ONNX or TensorFlow Lite, or ask dippm on your own machine.",
    )


def answer(job: Job, reader: GraphReader) -> dict[str, object]:
    """The JSON object that answers a job.

    Raises:
        DippmError: Whatever the verb raises.
    """
    options = dict(job.options)
    # What is cheap to refuse is refused before a file is read.
    devices = [api.find_device(name) for name in _as_list(options.pop("device"))]
    for name in ("framework", "input"):
        options.pop(name, None)
    return _VERBS[job.verb](ModelByBatch(lambda batch: reader.read(job, batch=batch)), devices, options)


def _predict(model: ModelByBatch, devices: list[api.DeviceSpec], options: dict[str, Any]) -> dict[str, object]:
    predictions = api.predict(model, device=devices, **options)
    return {
        "schema": SCHEMA,
        "model": predictions[0].model.to_dict(),
        "predictions": [prediction.to_dict() for prediction in predictions],
        **_refused(devices, options),
    }


def _fits(model: ModelByBatch, devices: list[api.DeviceSpec], options: dict[str, Any]) -> dict[str, object]:
    answers = api.fits(model, device=devices, **options)
    info = answers[0].prediction.model.to_dict()
    found = [each.to_dict() for each in answers]
    return {"schema": SCHEMA, "model": info, "fits": found, **_refused(devices, options)}


def _max_batch(model: ModelByBatch, devices: list[api.DeviceSpec], options: dict[str, Any]) -> dict[str, object]:
    answers = api.max_batch(model, device=devices, **options)
    info = answers[0].prediction.model.to_dict()
    found = [each.to_dict() for each in answers]
    return {"schema": SCHEMA, "model": info, "max_batches": found, **_refused(devices, options)}


def _refused(devices: list[api.DeviceSpec], options: dict[str, Any]) -> dict[str, object]:
    """``refused`` of an answer, where devices are left out of it."""
    asked: Any = {name: options[name] for name in Options.__annotations__ if name in options}
    return refused_entry(devices, Question(**asked))


def _inspect(model: ModelByBatch, devices: list[api.DeviceSpec], options: dict[str, Any]) -> dict[str, object]:
    top = options.pop("top", None)
    inspection = api.inspect(model, device=devices[0], **options)
    listed = inspection.operators if top is None else inspection.top_by_time(top)
    return inspection.to_dict() | {"operators": [operator.to_dict() for operator in listed]}


_VERBS: Mapping[Verb, Callable[[ModelByBatch, list[api.DeviceSpec], dict[str, Any]], dict[str, object]]] = {
    Verb.PREDICT: _predict,
    Verb.FITS: _fits,
    Verb.MAX_BATCH: _max_batch,
    Verb.INSPECT: _inspect,
}


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else [given]
