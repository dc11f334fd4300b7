"""A folder of graphs, one compressed JSON file per model, so that training reads no model twice.

An entry is named by ``Recipe.model_key``, a hash of all that decides the model, by the mode where it is training, and
by the batch where the graph holds for one alone. It carries the graph's fingerprint, and gzip's checksum over all of
it: an entry that is cut off, damaged or of another version counts as absent.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.costs.conditions import Mode
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import DippmError, UsageError
from dippm.graph import Graph
from dippm.graph.graph_json import graph_from_dict, graph_to_dict
from dippm.processes.fresh_spawn import FreshSpawnContext

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

__all__ = ["CachedGraph", "GraphCache", "GraphFailure", "build_graphs", "read_recipe"]

_FORMAT = 1
_SUFFIX = ".json.gz"
_BEFORE_BATCH = "-batch"
_OF_MODE = {Mode.INFERENCE: "", Mode.TRAINING: "-training"}
_LEVEL = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedGraph:
    """One entry.

    Args:
        graph: The graph.
        fingerprint: Its hash, equal for equal computations.
    """

    graph: Graph
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFailure:
    """A model whose graph cannot be read, or not at every batch.

    Args:
        recipe: The recipe of the model that cannot be read.
        reason: Why, in one line.
    """

    recipe: Recipe
    reason: str


class GraphCache:
    """Graphs of one mode by model key, and by batch where they hold for one alone, in a folder.

    Args:
        folder: Where the entries lie; made when the first one is written.
        mode: Whether they are of models as they run in evaluation mode or in training.
    """

    def __init__(self, folder: str | os.PathLike[str], *, mode: Mode = Mode.INFERENCE) -> None:
        self.folder = Path(folder)
        self.mode = mode

    def of(self, mode: Mode) -> GraphCache:
        """The graphs of a mode in the same folder."""
        return self if mode is self.mode else GraphCache(self.folder, mode=mode)

    def load(self, model_key: str, *, batch: int) -> CachedGraph | None:
        """The graph of a model that holds for a batch, or None where there is none that can be used."""
        for path in (self._path(model_key), self._path(model_key, batch)):
            entry = _read_entry(path, model_key)
            if entry is not None and entry.graph.fixed_batch in (None, batch):
                return entry
        return None

    def save(self, model_key: str, graph: Graph, *, fingerprint: str) -> None:
        """Write an entry, for the batch that the graph holds for or for every batch.

        Whoever reads meanwhile sees the old one or the new one, never half of it.

        Raises:
            UsageError: ``graph_cache.unwritable``.
        """
        values = {
            "format": _FORMAT,
            "model_key": model_key,
            "fingerprint": fingerprint,
            "graph": graph_to_dict(graph),
        }
        # No time in the header: equal graphs make equal files.
        content = gzip.compress(json.dumps(values, separators=(",", ":")).encode(), _LEVEL, mtime=0)
        path = self._path(model_key, graph.fixed_batch)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as exc:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise UsageError(
                f"The graph of model {model_key} cannot be written to '{path}': {exc.strerror or exc}.",
                code="graph_cache.unwritable",
                cure="Give a folder on a disk with room, and run again: what is there already stays.",
            ) from exc

    def keys(self) -> Iterator[str]:
        """Model keys of all entries, each once, whether they can be used or not."""
        names = {path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"??/*{_SUFFIX}")}
        models = {name.partition(_BEFORE_BATCH)[0] for name in names}
        ending, of_training = _OF_MODE[self.mode], _OF_MODE[Mode.TRAINING]
        yield from sorted(
            name.removesuffix(of_training) for name in models if name.endswith(of_training) is bool(ending)
        )

    def _path(self, model_key: str, batch: int | None = None) -> Path:
        of_batch = "" if batch is None else f"{_BEFORE_BATCH}{batch}"
        return self.folder / model_key[:2] / f"{model_key}{_OF_MODE[self.mode]}{of_batch}{_SUFFIX}"


def _read_entry(path: Path, model_key: str) -> CachedGraph | None:
    try:
        with gzip.open(path, "rb") as stream:
            values = json.loads(stream.read())
        if values["format"] != _FORMAT or values["model_key"] != model_key:
            return None
        return CachedGraph(graph=graph_from_dict(values["graph"]), fingerprint=str(values["fingerprint"]))
    except FileNotFoundError:
        return None
    except (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        DippmError,
    ):
        # Cut off, damaged, or not an entry at all: it is built again.
        return None


def read_recipe(recipe: Recipe, *, mode: Mode = Mode.INFERENCE) -> Graph:
    """Build a recipe's model without memory for its weights, and read its graph in a mode.

    Raises:
        DippmError: Whatever keeps it from being built or read.
    """
    from dippm.datasets.recipes.building import build
    from dippm.frontends.torch import read_module

    module, inputs = build(recipe, device="meta")
    source = f"{recipe.collection}/{recipe.family}/{recipe.model_key}"
    return read_module(module, input=inputs, source=source, mode=mode, batch_hint=recipe.batch)


def build_graphs(
    recipes: Iterable[Recipe],
    cache: GraphCache,
    *,
    jobs: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[GraphFailure]:
    """Fill the cache with the graphs of all models that it lacks.

    Args:
        recipes: Recipes. A model is read once, and once at each batch where its graph holds for one alone.
        cache: Where the graphs go, and in which mode they are read. What it holds in good order already is left alone.
        jobs: Processes that read models at the same time, at least 1.
        on_progress: Called with the number of models done and their total, first with what was there already.

    Returns:
        The models that cannot be read, each once.

    Raises:
        UsageError: ``jobs.invalid``, or ``graph_cache.unwritable``.
        DippmError: ``worker.not_started``.
    """
    if jobs < 1:
        raise UsageError(f"The number of processes must be 1 or more. Got {jobs} instead.", code="jobs.invalid")
    report = on_progress or (lambda _done, _total: None)
    models: dict[str, dict[int, Recipe]] = defaultdict(dict)
    for recipe in recipes:
        models[recipe.model_key].setdefault(recipe.batch, recipe)
    missing = [lacking for members in models.values() if (lacking := _find_lacking([*members.values()], cache))]
    done = len(models) - len(missing)
    report(done, len(models))
    failures = []
    for failure in _fill(missing, cache, jobs=jobs):
        done += 1
        if failure is not None:
            failures.append(failure)
        report(done, len(models))
    return failures


def _find_lacking(recipes: list[Recipe], cache: GraphCache) -> list[Recipe]:
    """Those of one model's recipes for whose batch there is no graph."""
    first = cache.load(recipes[0].model_key, batch=recipes[0].batch)
    if first is not None and first.graph.fixed_batch is None:
        return []
    return [recipe for recipe in recipes if cache.load(recipe.model_key, batch=recipe.batch) is None]


def _fill(models: Sequence[list[Recipe]], cache: GraphCache, *, jobs: int) -> Iterator[GraphFailure | None]:
    """Read and write each model's graphs; yields why one failed, None where it did not, as they end."""
    waiting, workers = list(models), jobs
    while waiting:
        lost = yield from _spread(waiting, cache, workers=min(workers, len(waiting)))
        if lost and workers == 1:
            # A lone process takes them in their order: it died of the first that it did not come back with.
            yield GraphFailure(recipe=lost.pop(0)[0], reason="The process that read it died.")
        waiting, workers = lost, 1


def _spread(
    models: Sequence[list[Recipe]], cache: GraphCache, *, workers: int
) -> Generator[GraphFailure | None, None, list[list[Recipe]]]:
    """Read models over processes until one of these dies; returns those that are lost with it, in their order."""
    from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed

    # Spawned, because a fork of a process with PyTorch's threads in it may hang.
    context = FreshSpawnContext()
    is_started = context.Event()
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare, initargs=(is_started,))
    futures: dict[Future[GraphFailure | None], list[Recipe]] = {}
    read = set()
    try:
        with contextlib.suppress(BrokenExecutor):
            for recipes in models:
                futures[executor.submit(_read_and_save, recipes, cache)] = recipes
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenExecutor:
                continue
            read.add(futures[future][0].model_key)
            yield result
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
    lost = [recipes for recipes in models if recipes[0].model_key not in read]
    if lost and not is_started.is_set():
        raise DippmError(
            "The processes that read models do not start: the first one ended before it had read any.",
            code="worker.not_started",
            cure="Make room in memory, or use fewer jobs. What it printed may say more.",
        )
    return lost


def _prepare(is_started: Event) -> None:
    """One thread each: the processes are the parallelism."""
    import signal

    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_started.set()


def _read_and_save(recipes: Sequence[Recipe], cache: GraphCache) -> GraphFailure | None:
    """Read the graph of a model, at every batch where it holds for one alone; the first failure ends it."""
    from dippm.graph.fingerprint import fingerprint

    for recipe in recipes:
        try:
            graph = read_recipe(recipe, mode=cache.mode)
        except DippmError as exc:
            return GraphFailure(recipe=recipe, reason=str(exc))
        except Exception as exc:  # noqa: BLE001 - libraries raise what they like; one model must not end the others
            return GraphFailure(recipe=recipe, reason=f"{type(exc).__name__}: {exc}")
        cache.save(recipe.model_key, graph, fingerprint=fingerprint(graph))
        if graph.fixed_batch is None:
            return None
        if graph.fixed_batch != recipe.batch:
            reason = f"It holds for batch {graph.fixed_batch} only: {graph.fixed_batch_reason}"
            return GraphFailure(recipe=recipe, reason=reason)
    return None
