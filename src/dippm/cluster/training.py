"""The epochs of a training in several processes on a Ray cluster: Lightning on Ray Train."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from dippm.cluster.connection import ClusterResources, connected_cluster, import_ray
from dippm.errors import DippmError, MissingExtraError, UsageError

if TYPE_CHECKING:
    from dippm.training.epochs import EpochReport, OnEpoch, TrainingJob, TrainingRun

__all__ = ["RayEpochs"]

_FAILURES = 3
_TELLING_S = 5.0
_RAY_FOLDER = "ray"


@dataclass(frozen=True, kw_only=True, slots=True)
class RayEpochs:
    """Runs the epochs of a training on a cluster; to be given as ``run_epochs``.

    Every worker goes through its share of each epoch, in batches of the settings' size, and the gradients are averaged
    over all. A worker that is lost costs the epoch under way: all start again after the last checkpoint, up to three
    times. The training's folder must lie where every machine sees it under the same path.

    Args:
        address: The cluster, as :func:`dippm.cluster.connection.connected_cluster` reads it.
        workers: Processes; each has a GPU, or where the training is on processors a core.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    address: str
    workers: int

    def __post_init__(self) -> None:
        import_ray()  # said before the labels are read

    def __call__(self, job: TrainingJob, on_epoch: OnEpoch | None = None) -> TrainingRun:
        """Run them.

        Raises:
            MissingExtraError: A part of Ray is not installed.
            UsageError: ``cluster.unreachable``, or ``cluster.too_small`` for so many workers.
            DippmError: ``train.cluster`` where the workers do not get to the end.
        """
        ray = import_ray()
        with connected_cluster(self.address) as resources:
            is_gpu = self._choose_device(resources, job)
            return _run(ray, job, on_epoch, workers=self.workers, is_gpu=is_gpu)

    def _choose_device(self, resources: ClusterResources, job: TrainingJob) -> bool:
        accelerator = job.settings.accelerator
        is_gpu = accelerator == "gpu" or (accelerator == "auto" and resources.gpus > 0)
        offered, what = (resources.gpus, "GPUs") if is_gpu else (resources.cpus, "cores")
        if self.workers > offered:
            raise UsageError(
                f"The cluster at '{self.address}' has {offered} {what}. Got {self.workers} workers instead.",
                code="cluster.too_small",
                cure="Use fewer workers, or add machines.",
            )
        return is_gpu


def _run(ray: Any, job: TrainingJob, on_epoch: OnEpoch | None, *, workers: int, is_gpu: bool) -> TrainingRun:
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
        from ray.train.v2.api.exceptions import TrainingFailedError
    except ImportError as exc:
        raise MissingExtraError(package="ray[train]", extra="ray", purpose="train on a cluster") from exc
    folder = job.folder.resolve()
    settings = replace(job.settings, accelerator="gpu" if is_gpu else "cpu")
    storage = folder / _RAY_FOLDER
    try:
        with _reports_to(on_epoch) as reports:
            trainer: Any = TorchTrainer(
                _make_worker(ray.put(replace(job, folder=folder, settings=settings)), reports),
                scaling_config=ScalingConfig(
                    num_workers=workers, use_gpu=is_gpu, resources_per_worker=_needs(is_gpu=is_gpu)
                ),
                # A name that was used before would make Ray go on with a state of its own; ours is the last checkpoint.
                run_config=RunConfig(
                    name=uuid.uuid4().hex,
                    storage_path=str(storage),
                    failure_config=FailureConfig(max_failures=_FAILURES),
                ),
            )
            result = trainer.fit()
    except TrainingFailedError as exc:
        raise DippmError(
            f"The training on the cluster failed, {_FAILURES} starts after the first included: {_last_line(exc)}",
            code="train.cluster",
            cure="See that every machine has dippm and sees the training's folder; then go on with --resume.",
        ) from exc
    finally:
        shutil.rmtree(storage, ignore_errors=True)
    run: TrainingRun = result.return_value
    return run


def _needs(*, is_gpu: bool) -> dict[str, float]:
    return {"CPU": 1, "GPU": 1} if is_gpu else {"CPU": 1}


@contextmanager
def _reports_to(on_epoch: OnEpoch | None) -> Iterator[Any]:
    """A queue whose reports are handed on as they come, by a thread; it may be lost and the training goes on."""
    ray = import_ray()
    from ray.util.queue import Queue

    reports: Any = Queue(actor_options={"num_cpus": 0})

    def tell() -> None:
        with suppress(ray.exceptions.RayError, ConnectionError):
            while (report := reports.get()) is not None:
                if on_epoch is not None:
                    on_epoch(report)

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield reports
    finally:
        with suppress(ray.exceptions.RayError, ConnectionError):
            reports.put(None)
            teller.join(_TELLING_S)
            reports.shutdown(force=True)


def _make_worker(job_ref: Any, reports: Any) -> Callable[[], Any]:
    """What every worker runs; the job travels once to each machine, and not with the function."""

    def work() -> TrainingRun:
        # Before Ray imports Lightning: it would find a torchvision without its operators.
        import_module("dippm.training.lightning")
        import ray
        from ray.train import lightning as ray_lightning

        job: TrainingJob = ray.get(job_ref)
        if not (job.folder / "run.json").is_file():
            raise RuntimeError(f"this machine does not see the training's folder '{job.folder}'")

        def report(epoch: EpochReport) -> None:
            with suppress(ray.exceptions.RayError):
                reports.put(epoch)

        strategy: Any = ray_lightning.RayDDPStrategy
        environment: Any = ray_lightning.RayLightningEnvironment
        return job.run(report, workers={"devices": "auto", "strategy": strategy(), "plugins": [environment()]})

    return work


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()
