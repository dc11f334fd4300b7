"""Data sets of measured models: measure collections, keep and exchange labels, cache graphs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.api.measuring import parse_engine
from dippm.costs.conditions import Conditions, Mode
from dippm.datasets.location import data_folder
from dippm.datasets.store.label import OWN_SOURCE
from dippm.errors import UnsupportedError, UsageError
from dippm.measuring.configuration import Configuration, Engine

if TYPE_CHECKING:
    from dippm.datasets.campaign.fleet import OpenFleet
    from dippm.datasets.campaign.plan import Plan, Request
    from dippm.datasets.campaign.report import CampaignReport
    from dippm.datasets.campaign.run import Progress
    from dippm.datasets.graph_cache import GraphFailure
    from dippm.datasets.statistics import LabelStatistics
    from dippm.datasets.store.label import Label
    from dippm.datasets.store.label_store import LabelStore
    from dippm.measuring.measurement import Outcome

__all__ = [
    "CollectionInfo",
    "cache_graphs",
    "export_labels",
    "import_labels",
    "label_statistics",
    "list_recipes",
    "measure_collection",
    "parse_duration",
    "plot_labels",
]

_ROW_LIMIT_S = 120.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectionInfo:
    """A set of recipes.

    Args:
        name: Its name.
        recipes: Number of configurations.
        models: Number of models, each of which has one or more batch sizes.
        families: Configurations by family.
    """

    name: str
    recipes: int
    models: int
    families: dict[str, int]

    def to_dict(self) -> dict[str, object]:
        """One entry of ``collections`` in the JSON answer."""
        return {"name": self.name, "recipes": self.recipes, "models": self.models, "families": self.families}


def list_recipes(*, seed: int = 0) -> list[CollectionInfo]:
    """All sets of recipes with their counts.

    Args:
        seed: Seed of the recipes.
    """
    from collections import Counter

    from dippm.datasets.recipes.collections import list_collections, load_collection

    infos = []
    for name in list_collections():
        recipes = load_collection(name, seed)
        infos.append(
            CollectionInfo(
                name=name,
                recipes=len(recipes),
                models=len({recipe.model_key for recipe in recipes}),
                families=dict(sorted(Counter(recipe.family for recipe in recipes).items())),
            )
        )
    return infos


def measure_collection(
    collection: str,
    *,
    store: str | os.PathLike[str],
    device: str = "cpu",
    budget_s: float | None = None,
    row_limit_s: float = _ROW_LIMIT_S,
    resume: bool = False,
    retry: Sequence[str] = (),
    modes: Sequence[str] = ("inference",),
    precisions: Sequence[str] = ("fp32",),
    layouts: Sequence[str] = ("nchw",),
    runtimes: Sequence[str] = ("eager",),
    engines: Sequence[str] = ("torch",),
    optimizers: Sequence[str] = ("momentum",),
    limit: int | None = None,
    pass_number: int = 1,
    energy_share: float = 1.0,
    seed: int = 0,
    graphs: bool = True,
    fleet: OpenFleet | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CampaignReport:
    """Measure the recipes of a collection under every combination of conditions that the device and the engine can run.

    Every row is kept as it comes. Rows that the store holds are not measured again, so that a campaign can be cut at
    any moment and resumed. A batch that runs out of memory is a result. What needs more than a row that did not fit,
    or took too long, is left out: larger batches of the same model and conditions, and its training after its
    inference. Two in a hundred configurations are measured twice, far apart. SIGINT and SIGTERM end it with its report.

    Args:
        collection: Name of a set of recipes; see :func:`list_recipes`.
        store: Path of an SQLite file, or the URL of a PostgreSQL database.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        budget_s: Time to end within, s; None for no limit.
        row_limit_s: Wall time after which a row is given up, building the model included, s; the time for its calls
            is in proportion, 30 s of the usual 120.
        resume: Go on where the store holds rows of this campaign already.
        retry: Outcomes of which rows are measured again, ``failed`` or ``timed-out``: such rows of this campaign are
            removed from the store first.
        modes: ``inference``, ``training``.
        precisions: See :func:`dippm.predict`.
        layouts: ``nchw``, ``nhwc``.
        runtimes: ``eager``, ``compile``, ``cuda-graph``; the latter for inference on a GPU alone. A captured graph is
            launched as a whole.
        engines: ``torch``, ``onnxruntime``; the latter for inference alone.
        optimizers: For training: ``sgd``, ``momentum`` (as predictions assume when nothing is said), ``adam``,
            ``adamw``, ``adamw-fused``, ``adamw-8bit``, ``adafactor``, ``rmsprop``, ``none``.
        limit: At most so many recipes, from the start of the collection; any prefix is a balanced sample.
        pass_number: 2 and more measure every configuration once more, in another order. The store tells the passes
            apart, and training takes the median of them. What was out of reach in the first stays so.
        energy_share: Share of the configurations whose energy is taken, 0 to 1, chosen by a hash: an energy takes a
            second, the times of a small model a fifth of that.
        seed: Seed of the recipes.
        graphs: Whether the models' graphs are read too, for the hash that goes with each row.
        fleet: Opens several devices to measure on, such as those of a cluster
            (:func:`dippm.cluster.campaign.ray_fleet`); one device of this machine when left out.
        on_progress: Called after every row, and when a device begins to build a model.

    Raises:
        CampaignStoppedError: An error ended it; the error holds the report.
        UsageError: A name or option is wrong, or ``campaign.not_resumed``.
        UnsupportedError: The device is not there, or no combination can be run.
        MissingExtraError: A package is not installed.
        DippmError: The store cannot be opened or written to.
    """
    from dippm.datasets.campaign.fleet import WorkerFactory
    from dippm.datasets.campaign.fleet_run import FleetCampaign
    from dippm.datasets.campaign.graph_hashes import GraphHashes
    from dippm.datasets.campaign.plan import make_plan
    from dippm.datasets.campaign.run import Campaign
    from dippm.datasets.recipes.collections import load_collection
    from dippm.datasets.store.label_store import LabelStore
    from dippm.measuring.device_names import describe_device
    from dippm.measuring.protocol import Plan as CallPlan

    began_s = time.monotonic()
    retried = _parse_retried(retry)
    requests = _make_requests(modes, precisions, layouts, runtimes, engines, optimizers, device=device)
    recipes, repeat = load_collection(collection, seed)[: check_limit(limit)], _check_pass(pass_number) - 1
    call_plan = CallPlan(
        budget_s=CallPlan().budget_s * row_limit_s / _ROW_LIMIT_S, energy_share=_check_share(energy_share)
    )
    make_worker = WorkerFactory(device=device, row_limit_s=row_limit_s, plan=call_plan)
    with ExitStack() as stack:
        devices = None if fleet is None else stack.enter_context(fleet(make_worker))
        device_name = describe_device(device) if devices is None else devices.device_name
        plan = make_plan(recipes, requests, device=device_name, row_limit_s=row_limit_s, repeat=repeat)
        labels = stack.enter_context(LabelStore.open(_target(store)))
        found = len(labels.keys() & set(plan.label_keys()))
        if found and not resume:
            raise UsageError(
                f"'{store}' holds {found} rows of this campaign already.",
                code="campaign.not_resumed",
                cure="Add --resume to go on with it, or name another store.",
            )
        start: Callable[..., Campaign | FleetCampaign]
        if devices is None:
            start = partial(Campaign, measurer=stack.enter_context(make_worker()))
        else:
            start = partial(FleetCampaign, fleet=devices)
        if retried:
            _remove_rows(labels, plan, retried)
        campaign = start(
            plan,
            store=labels,
            known=labels.labels(device=plan.device, source=OWN_SOURCE),
            graphs=stack.enter_context(GraphHashes()) if graphs else None,
            # A processor that is being measured must not read graphs beside.
            graphs_beside=device != "cpu",
            budget_s=budget_s,
            began_s=began_s,
            on_progress=on_progress,
        )
        return campaign.run()


def cache_graphs(
    collection: str,
    cache: str | os.PathLike[str],
    *,
    mode: Mode = Mode.INFERENCE,
    limit: int | None = None,
    jobs: int | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[GraphFailure]:
    """Read the graphs of a collection's models into a folder; what it holds in good order is left alone.

    Args:
        collection: Name of a set of recipes.
        cache: Folder of the graphs.
        mode: The mode that models are read in: in training they have operators of their own, such as dropout.
        limit: At most so many recipes, from the start of the collection.
        jobs: Processes at the same time; as many as there are processors when left out.
        seed: Seed of the recipes.
        on_progress: Called with the number of models done and their total.

    Returns:
        The models that cannot be read, with the reason.

    Raises:
        UsageError: A name or option is wrong, or the folder cannot be written to.
    """
    from dippm.datasets.graph_cache import GraphCache, build_graphs
    from dippm.datasets.recipes.collections import load_collection
    from dippm.processes.machine_share import usable_processors

    recipes = load_collection(collection, seed)[: check_limit(limit)]
    workers = usable_processors() if jobs is None else jobs
    return build_graphs(recipes, GraphCache(cache, mode=mode), jobs=workers, on_progress=on_progress)


def export_labels(store: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write all labels of a store to a Parquet file, which appears whole or not at all.

    Returns:
        How many.

    Raises:
        UsageError: ``labels.missing``, or ``labels.name`` for a file whose name does not end in ``.parquet``, by which
            it is told from a store when it is read.
        DippmError: The store cannot be read or the file not written.
    """
    from dippm.datasets.store.parquet import export_parquet

    target = parquet_path(path)
    with open_labels(store) as labels:
        return export_parquet(labels, target)


def import_labels(labels: str | os.PathLike[str], store: str | os.PathLike[str]) -> tuple[int, int]:
    """Add labels to a store; those of a key that it holds are left out.

    Args:
        labels: A Parquet file; ``"timm"`` or ``"whole-models"`` for the published tables in the folder of measured
            tables.
        store: Path of an SQLite file, made where there is none in that folder, or the URL of a PostgreSQL database.

    Returns:
        How many were read, and how many of them were new.

    Raises:
        UsageError: The labels are not there or are none.
        DippmError: The store cannot be opened or written to.
    """
    from dippm.datasets.store.label_store import LabelStore

    count = 0

    def counted(rows: Iterable[Label]) -> Iterator[Label]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    rows = _labels_to_import(labels)
    with LabelStore.open(_target(store)) as target:
        added = target.add_all(counted(rows))
    return count, added


def label_statistics(labels: str | os.PathLike[str]) -> LabelStatistics:
    """Describe the labels of a store or Parquet file.

    Raises:
        UsageError: ``labels.missing``, or the file holds no labels.
        DippmError: The store cannot be read.
    """
    from dippm.datasets.statistics import summarize

    with open_labels(labels) as rows:
        return summarize(rows)


def plot_labels(labels: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the distributions of the labels of a store or Parquet file.

    Returns:
        The files written.

    Raises:
        UsageError: ``labels.missing``, or the file holds no labels.
        DippmError: The store cannot be read, or the folder not written to.
        MissingExtraError: matplotlib is not installed.
    """
    from dippm.datasets.statistics_plots import plot_distributions

    with open_labels(labels) as rows:
        return plot_distributions(rows, Path(folder))


def parse_duration(text: str) -> float:
    """Read ``30s``, ``9m``, ``2h`` or plain seconds.

    Returns:
        Seconds.

    Raises:
        UsageError: ``duration.invalid``.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNIT_S[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(
            f"A time must be a number above 0 with s, m or h, such as 9m. Got '{text}' instead.",
            code="duration.invalid",
        )
    return seconds


def parquet_path(path: str | os.PathLike[str]) -> Path:
    """The path of a file of labels, whose name tells it from a store.

    Raises:
        UsageError: ``labels.name``.
    """
    if Path(path).suffix != ".parquet":
        raise UsageError(
            f"The name of a Parquet file must end in .parquet. Got '{os.fspath(path)}' instead.", code="labels.name"
        )
    return Path(path)


def _labels_to_import(labels: str | os.PathLike[str]) -> Iterable[Label]:
    if labels == "timm":
        from dippm.datasets.imports.timm import import_timm_tables

        return import_timm_tables(data_folder() / "timm")
    if labels == "whole-models":
        from dippm.datasets.imports.whole_models import import_whole_models

        return import_whole_models(data_folder() / "whole_models")
    from dippm.datasets.store.parquet import read_parquet

    return read_parquet(Path(labels))


@contextmanager
def open_labels(target: str | os.PathLike[str]) -> Iterator[Iterator[Label]]:
    """The labels of a store or Parquet file that exists.

    Raises:
        UsageError: ``labels.missing`` or ``store.not_a_store``.
    """
    is_url = isinstance(target, str) and "://" in target
    if not is_url and not Path(target).is_file():
        raise UsageError(
            f"There are no labels at '{os.fspath(target)}'.",
            code="labels.missing",
            cure="Give a label store or a Parquet file that exists.",
        )
    if not is_url and not Path(target).stat().st_size:
        # SQLite would make a store of it, which the reader of labels did not ask for.
        raise UsageError(
            f"'{os.fspath(target)}' is empty.",
            code="labels.missing",
            cure="Give a store that holds labels.",
        )
    if not is_url and Path(target).suffix == ".parquet":
        from dippm.datasets.store.parquet import read_parquet

        yield read_parquet(Path(target))
        return
    from dippm.datasets.store.label_store import LabelStore

    try:
        store = LabelStore.open(_target(target))
    except UsageError as exc:
        if exc.code != "store.not_a_store":
            raise
        raise UsageError(
            f"There are no labels in '{os.fspath(target)}': it is no label store.",
            code=exc.code,
            cure="Give a store that dippm dataset measure or import wrote, or a Parquet file that ends in .parquet.",
        ) from exc
    with store:
        yield store.labels()


def _make_requests(
    modes: Sequence[str],
    precisions: Sequence[str],
    layouts: Sequence[str],
    runtimes: Sequence[str],
    engines: Sequence[str],
    optimizers: Sequence[str],
    *,
    device: str,
) -> list[Request]:
    """Every combination that the device and the engine can run: training, for one, has no captured graphs.

    Raises:
        UnsupportedError: Why they cannot run the first one, where they can run none.
    """
    from dippm.datasets.campaign.plan import Request

    requests: list[Request] = []
    refusal: UnsupportedError | None = None
    for engine, mode in product(map(parse_engine, engines), modes):
        is_training = Conditions.parse(mode=mode).mode is Mode.TRAINING
        for precision, layout, runtime in product(precisions, layouts, runtimes):
            for optimizer in optimizers if is_training else (None,):
                conditions = Conditions.parse(
                    precision=precision, mode=mode, layout=layout, runtime=runtime, optimizer=optimizer
                )
                try:
                    configuration = Configuration(batch=1, conditions=conditions, engine=engine)
                    if engine is Engine.ONNXRUNTIME:
                        configuration.check_onnxruntime(device, is_file=False)
                    else:
                        configuration.check_torch(device)
                except UnsupportedError as exc:
                    refusal = refusal or exc
                else:
                    requests.append(Request(conditions=conditions, engine=engine))
    if not requests and refusal is not None:
        raise refusal
    return requests


def _parse_retried(names: Sequence[str]) -> frozenset[Outcome]:
    from dippm.datasets.campaign.report import NO_RESULT

    unknown = [name for name in names if name not in NO_RESULT]
    if unknown:
        raise UsageError(
            f"Rows can be measured again that ended as {' or '.join(NO_RESULT)}. Got '{unknown[0]}' instead.",
            code="retry.unknown",
        )
    return frozenset(outcome for outcome in NO_RESULT if outcome in names)


def _remove_rows(labels: LabelStore, plan: Plan, outcomes: frozenset[Outcome]) -> None:
    """Make rows of a campaign that ended so rows to be measured."""
    keys = frozenset(plan.label_keys())
    found = labels.labels(device=plan.device, source=OWN_SOURCE)
    labels.remove([row.key for row in found if row.measurement.outcome in outcomes and row.key in keys])


def check_limit(limit: int | None) -> int | None:
    """A limit of recipes as it is.

    Raises:
        UsageError: ``limit.invalid``.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"The limit must be 1 or more. Got {limit} instead.", code="limit.invalid")
    return limit


def _check_pass(number: int) -> int:
    if number < 1:
        raise UsageError(f"The number of a pass must be 1 or more. Got {number} instead.", code="pass.invalid")
    return number


def _check_share(share: float) -> float:
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"The share of energies must be from 0 to 1. Got {share:g} instead.", code="share.invalid")
    return share


def _target(store: str | os.PathLike[str]) -> str | Path:
    return store if isinstance(store, str) else Path(store)
