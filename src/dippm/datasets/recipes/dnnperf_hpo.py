"""DNNPerf's first kind of data: TensorFlow-Slim's families under random batch size, channels, height and width."""

from __future__ import annotations

from dippm.datasets.recipes.drawing import draw_collection, share_equally
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach
from dippm.datasets.recipes.spaces import hpo, recurrent

__all__ = ["FAMILIES", "REACH", "recipes"]

FAMILIES = share_equally(
    {
        "lenet": hpo.sample_lenet,
        "alexnet": hpo.sample_alexnet,
        "vgg": hpo.sample_vgg,
        "overfeat": hpo.sample_overfeat,
        "inception": hpo.sample_inception,
        "resnet-v1": hpo.sample_resnet_v1,
        "resnet-v2": hpo.sample_resnet_v2,
        "mobilenet": hpo.sample_mobilenet,
        "rnn": recurrent.sample_rnn,
        "lstm": recurrent.sample_lstm,
        "gru": recurrent.sample_gru,
    },
    recipes=6000,
    batches_per_model=3,
)
"""Eleven families in equal numbers."""

REACH = Reach(sizes=(64, 256), width=(1.0, 1.0), depth=(1.0, 1.0))
_LIMITS = Limits(batches=tuple(range(1, 129)), gmacs=1000, memory_gb=32)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All 6,000 recipes in stratified order.

    Args:
        seed: Another seed gives other inputs and batches, in the same numbers.
    """
    return draw_collection("dnnperf-hpo", FAMILIES, reach=REACH, limits=_LIMITS, seed=seed)
