"""A sweep's tasks streamed through a Ray cluster.

Every Ray worker keeps one guarded process, which reads the models: a hostile file costs its task a row here as on one
machine, and never a Ray worker. A Ray worker or a machine that is lost has its tasks done by another one.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from dippm.api.sweep_pool import SweepPool
from dippm.api.sweep_rows import SweepTask, decode_rows
from dippm.api.sweep_settings import SweepSettings
from dippm.cluster.connection import connected_cluster, import_ray
from dippm.errors import DippmError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ClusterSweep", "RaySweep"]

# A block is what Ray hands to a worker, and what is done again when that is lost.
_ROWS_PER_BLOCK = 1024
_TASKS_PER_BLOCK = 64
# Towards the end blocks are small, so that all workers end together.
_SMALLEST_BLOCK = 4
# Each block is an object on the driver from the start.
_MOST_BLOCKS = 10_000
_MOST_FAILED_STARTS = 8
_TAKEN_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RaySweep:
    """Has a cluster do the work of a sweep; to be given to :func:`dippm.sweep` as ``open_runner``.

    Args:
        address: The cluster, as :func:`dippm.cluster.connection.connected_cluster` reads it.

    Raises:
        MissingExtraError: Ray, or what its data library needs, is not installed.
    """

    address: str

    def __post_init__(self) -> None:
        import_ray()
        try:
            import_module("ray.data")
        except ImportError as exc:
            raise MissingExtraError(package="ray[data]", extra="ray", purpose="sweep on a cluster") from exc

    @contextmanager
    def __call__(self, settings: SweepSettings, *, jobs: int | None, limit_s: float) -> Iterator[ClusterSweep]:
        """Be connected to the cluster.

        Args:
            settings: What each model is asked.
            jobs: Workers, of one core each; as many as the cluster has cores when None, and no more in any case.
            limit_s: Time for one task, s.

        Raises:
            UsageError: ``cluster.unreachable``.
        """
        with connected_cluster(self.address, cpus=jobs, takes_clients=True) as resources:
            cores = max(resources.cpus, 1)
            share = -(-cores // max(resources.nodes, 1))
            yield ClusterSweep(settings, workers=min(jobs or cores, cores), limit_s=limit_s, share=share)


class ClusterSweep:
    """Works through tasks on the cluster that this process is connected to.

    Args:
        settings: What each model is asked.
        workers: Ray workers, each of one core.
        limit_s: Time for one task, s.
        share: Workers that divide one machine's memory.
    """

    def __init__(self, settings: SweepSettings, *, workers: int, limit_s: float, share: int) -> None:
        self._settings = settings
        self.workers = workers
        self._limit_s = limit_s
        self._share = share

    def run(self, tasks: Iterable[SweepTask]) -> Iterator[tuple[int, pyarrow.Table]]:
        """Each task's index and rows, in any order; those of a lost worker maybe more than once.

        Raises:
            DippmError: ``cluster.failed``.
        """
        ray = import_ray()
        blocks = list(self._blocks(list(tasks)))
        if not blocks:
            return
        # Ray's data library works inside the cluster alone, and not on a client's side of it.
        stream = _stream_from_afar if ray.util.client.ray.is_connected() else _stream
        try:
            for index, rows in stream(
                blocks, workers=self.workers, settings=self._settings, limit_s=self._limit_s, share=self._share
            ):
                yield index, decode_rows(rows)
        except (ray.exceptions.RayError, ConnectionError) as exc:
            lines = str(exc).strip().splitlines() or [type(exc).__name__]
            raise DippmError(
                f"The cluster did not go on: {lines[-1][:300]}",
                code="cluster.failed",
                cure="Go on with --resume (resume=True): the parts that are written stay.",
            ) from exc

    def _blocks(self, tasks: list[SweepTask]) -> Iterator[bytes]:
        rows_per_task = max(1, len(self._settings.batches) * len(self._settings.devices))
        largest = max(1, min(_ROWS_PER_BLOCK // rows_per_task, _TASKS_PER_BLOCK))
        # Of few tasks every worker gets some.
        smallest = min(largest, _SMALLEST_BLOCK, -(-len(tasks) // self.workers))
        smallest = max(smallest, -(-len(tasks) // _MOST_BLOCKS))
        done = 0
        while done < len(tasks):
            size = max(smallest, min(largest, (len(tasks) - done) // (2 * self.workers)))
            yield pickle.dumps(tasks[done : done + size])
            done += size


def _stream(blocks: list[bytes], *, workers: int, **settings: Any) -> Iterator[tuple[int, bytes]]:
    """Each task's index and its rows as they come over the wire."""
    import ray.data

    with _own_context():
        rows = ray.data.from_items([{"tasks": block} for block in blocks], override_num_blocks=len(blocks)).map_batches(
            _Predictor,
            fn_constructor_kwargs=settings,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(blocks))),
            num_cpus=1,
        )
        batches: Iterable[Any] = rows.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        for batch in batches:
            for row in batch.to_pylist():
                yield row["task"], row["rows"]


def _stream_from_afar(blocks: list[bytes], **options: Any) -> Iterator[tuple[int, bytes]]:
    """The same for a client of the cluster."""
    ray = import_ray()
    conductor = ray.remote(num_cpus=0)(_Conductor).remote(blocks, options)
    while taken := ray.get(conductor.take.remote()):
        yield from taken


class _Conductor:
    """Has the rows made inside the cluster, and hands them to a client that asks for them."""

    def __init__(self, blocks: list[bytes], options: dict[str, Any]) -> None:
        self._rows = _stream(blocks, **options)

    def take(self) -> list[tuple[int, bytes]]:
        """The next rows; none at the end."""
        return list(islice(self._rows, _TAKEN_AT_ONCE))


class _Predictor:
    """What a Ray worker does: gives its tasks to a guarded process of its own."""

    def __init__(self, *, settings: SweepSettings, limit_s: float, share: int) -> None:
        self._pool = SweepPool(settings, jobs=1, limit_s=limit_s, share=share)

    def __call__(self, block: pyarrow.Table) -> pyarrow.Table:
        import pyarrow

        answers = [
            answer
            for pickled in block.column("tasks").to_pylist()
            for answer in self._pool.run_encoded(pickle.loads(pickled))  # noqa: S301 - from the driver
        ]
        indices, rows = zip(*answers, strict=True)
        return pyarrow.table({"task": indices, "rows": pyarrow.array(rows, pyarrow.binary())})


@contextmanager
def _own_context() -> Iterator[None]:
    """Ray's data library as we want it: without progress of its own, and patient with workers that start badly."""
    from ray.data import DataContext

    context = DataContext.get_current()
    wanted = {
        "enable_progress_bars": False,
        "enable_operator_progress_bars": False,
        "print_on_execution_start": False,
        "max_consecutive_actor_init_deaths": _MOST_FAILED_STARTS,
    }
    before = {name: getattr(context, name) for name in wanted if hasattr(context, name)}
    logger = logging.getLogger("ray.data")
    level = logger.level
    for name in before:
        setattr(context, name, wanted[name])
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
