"""Labels that nobody measured: what a predictor says of a collection's models.

A network that learns from a few hundred measured models has seen too few graphs. Thousands of predicted ones show it
what size, depth and operators do; from measurements it then learns what the predictor does not know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from dippm.costs.conditions import Conditions
from dippm.costs.software import Software
from dippm.costs.software_graph import graph_of_release
from dippm.costs.software_support import check_software, driving_build
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import graphs_of_model
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import PREDICTED_SOURCE, Label
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["predict_labels"]


def predict_labels(
    recipes: Iterable[Recipe],
    cache: GraphCache,
    *,
    device: DeviceSpec,
    conditions: Conditions,
    software: Software,
    predictor: PhysicsPredictor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Label]:
    """Predict recipes as if they had been measured, one after the other, all batches of a model together.

    Left out are models whose graph the cache lacks, those that cannot run under these conditions, and batches that are
    more than the device holds.

    Args:
        recipes: What is predicted.
        cache: The graphs.
        device: The device.
        conditions: Precision, mode, layout, runtime and, in training, the optimizer.
        software: Releases of PyTorch and CUDA.
        predictor: What predicts them; the shipped predictor when left out.
        on_progress: Called with the number of models done and their total.

    Returns:
        Labels, each predicted when it is asked for, of the source
        :data:`~dippm.datasets.store.label.PREDICTED_SOURCE`.

    Raises:
        UnsupportedError: ``software.impossible`` or ``runtime.unsupported``, at the call, where nothing can run so.
    """
    check_software(driving_build(device, software), device, conditions.runtime)
    return _predict(recipes, cache, device, conditions, software, predictor or PhysicsPredictor.load(), on_progress)


def _predict(
    recipes: Iterable[Recipe],
    cache: GraphCache,
    device: DeviceSpec,
    conditions: Conditions,
    software: Software,
    predictor: PhysicsPredictor,
    on_progress: Callable[[int, int], None] | None,
) -> Iterator[Label]:
    of_model: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in recipes:
        of_model[recipe.model_key].append(recipe)
    for done, members in enumerate(of_model.values()):
        if on_progress is not None:
            on_progress(done, len(of_model))
        for cached, held in graphs_of_model(members, list(range(len(members))), cache):
            if cached is None:
                continue
            batches = [members[position].batch for position in held]
            try:
                predictions = predictor.predict(
                    graph_of_release(cached.graph, software),
                    batches=batches,
                    devices=[device],
                    conditions=conditions,
                    software=software,
                )
            except UnsupportedError:
                continue
            for position, prediction in zip(held, predictions, strict=True):
                if prediction.memory_mb is not None and prediction.memory_mb > device.capacity_mb:
                    continue
                yield Label(
                    recipe=members[position],
                    configuration=Configuration(batch=members[position].batch, conditions=conditions),
                    measurement=Measurement(
                        outcome=Outcome.OK,
                        device=device.name,
                        measured_at="",
                        latency_ms=prediction.latency_ms,
                        energy_j=prediction.energy_j,
                        memory_mb=prediction.memory_mb,
                        software=SoftwareStack(framework=str(software)),
                    ),
                    graph_hash=cached.fingerprint,
                    source=PREDICTED_SOURCE,
                )
    if on_progress is not None:
        on_progress(len(of_model), len(of_model))
