"""What is compared, and what counts as a fall."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.devices import find_device
from dippm.evaluation.better_devices import Improvement
from dippm.evaluation.monotone_check import (
    BATCHES,
    FEW_BATCHES,
    SETTINGS,
    Check,
    Figure,
    Setting,
    Tallies,
    Variant,
    check_devices,
    check_work,
    explain_fall,
)
from dippm.graph import OpKind
from dippm.predictors.physics import PhysicsPredictor

_A100, _T4 = find_device("A100-SXM4-40GB"), find_device("Tesla T4")
_P100 = find_device("Tesla P100-PCIE-16GB")
_SETTING = Setting(device=_A100, conditions=Conditions(precision=Precision.AMP))
_NAME = "A100-SXM4-40GB, amp, inference"


@pytest.fixture(name="chain")
def _chain(new_builder):
    """Makes a chain of layers: blocks and width."""

    def make(blocks, width=1024):
        builder = new_builder()
        n = builder.N
        x = builder.input(n, width)
        for _ in range(blocks):
            x = builder.node(OpKind.LINEAR, [x, builder.weight(width, width)], n, width)
            x = builder.node(OpKind.RELU, [x], n, width)
        return builder.graph(x)

    return make


class _Altered:
    """The shipped predictor with altered answers."""

    def __init__(self, alter):
        self._alter = alter

    def predict(self, graph, **asked):
        return [self._alter(answer) for answer in PhysicsPredictor.load().predict(graph, **asked)]


def test_more_work_on_a_plain_chain_never_falls(chain):
    tallies = Tallies()
    graphs = {Variant.BASE: chain(4), Variant.DEEPER: chain(8)}
    # No network answers without tensor cores: what networks learned may fall by a little.
    inference = replace(_SETTING.conditions, precision=Precision.FP16)
    training = replace(inference, mode=Mode.TRAINING, optimizer=Optimizer.MOMENTUM)
    settings = [replace(_SETTING, device=_P100, conditions=conditions) for conditions in (inference, training)]
    check_work(PhysicsPredictor.load(), "chain", graphs, tallies, settings=settings)
    assert {key[0] for key in tallies} == {Check.BATCH, Check.DEPTH}
    assert tallies[Check.BATCH, Figure.TIME, "Tesla P100-PCIE-16GB, fp16, inference"].pairs == len(BATCHES) - 1
    assert tallies[Check.DEPTH, Figure.LIVE, "Tesla P100-PCIE-16GB, fp16, training"].pairs == len(FEW_BATCHES)
    assert [fall for tally in tallies.values() for fall in tally.falls] == []


def test_a_time_that_falls_is_found(chain):
    tallies = Tallies()
    faster_at_64 = _Altered(lambda each: replace(each, latency_ms=5.0 if each.batch == 64 else 10.0 + each.batch / 1e3))
    check_work(faster_at_64, "chain", {Variant.BASE: chain(1)}, tallies, settings=[_SETTING])
    tally = tallies[Check.BATCH, Figure.TIME, _NAME]
    (fall,) = tally.falls
    assert (fall.before.batch, fall.after.batch, fall.model) == (32, 64, "chain")
    assert fall.value == pytest.approx(10.032)
    assert fall.change == pytest.approx(5.0 / 10.032 - 1.0)
    assert (tally.pairs, tally.clear) == (9, 1)


def test_falls_by_rounding_do_not_count_and_small_ones_are_not_clear(chain):
    for share, falls in ((1e-12, 0), (1e-4, 9)):
        tallies = Tallies()
        shrinking = _Altered(
            lambda each, share=share: replace(each, latency_ms=1.0 - share * BATCHES.index(each.batch))
        )
        check_work(shrinking, "chain", {Variant.BASE: chain(1)}, tallies, settings=[_SETTING])
        tally = tallies[Check.BATCH, Figure.TIME, _NAME]
        assert (len(tally.falls), tally.clear) == (falls, 0)


def test_memory_without_context_and_slack_is_the_live_peak(chain):
    tallies = Tallies()
    more_slack = _Altered(
        lambda each: replace(
            each, memory_parts_mb={**each.memory_parts_mb, "slack": 1000.0 if each.batch == 1 else 0.0}
        )
    )
    check_work(more_slack, "chain", {Variant.BASE: chain(1)}, tallies, settings=[_SETTING])
    assert len(tallies[Check.BATCH, Figure.MEMORY, _NAME].falls) == 1
    assert tallies[Check.BATCH, Figure.LIVE, _NAME].falls == []


def test_a_device_that_gets_slower_is_found(chain):
    tallies = Tallies()
    by_bandwidth = _Altered(lambda each: replace(each, latency_ms=2.0 if each.device == "A100-SXM4-40GB" else 1.0))
    check_devices(by_bandwidth, "chain", chain(1), tallies, settings=[_SETTING], cards=[_T4, find_device("H100 PCIe")])
    assert tallies[Check.ONE_FIGURE, Figure.TIME, _NAME].pairs == len(FEW_BATCHES) * (len(Improvement) - 1)
    assert tallies[Check.ALL_FIGURES, Figure.TIME, _NAME].falls == []
    tallies = Tallies()
    check_devices(by_bandwidth, "chain", chain(1), tallies, settings=[], cards=[_T4, _A100])
    assert not tallies
    slower = _Altered(lambda each: replace(each, latency_ms=2.0 if each.device == "H100 PCIe" else 1.0))
    check_devices(slower, "chain", chain(1), tallies, settings=[_SETTING], cards=[_T4, find_device("H100 PCIe")])
    falls = tallies[Check.CARD, Figure.TIME, "all cards, amp, inference"].falls
    assert [(fall.before.device.name, fall.after.device.name, fall.change) for fall in falls] == [
        ("Tesla T4", "H100 PCIe", 1.0)
    ] * len(FEW_BATCHES)


def test_a_better_device_never_takes_longer_for_a_plain_chain(chain):
    tallies = Tallies()
    check_devices(PhysicsPredictor.load(), "chain", chain(3), tallies, settings=[_SETTING], cards=[_T4, _A100])
    # How far a call is from what networks know hangs on the device, and so, a little, does what is left of their word.
    changes = [fall.change for fall in tallies[Check.ALL_FIGURES, Figure.TIME, _NAME].falls]
    assert max(changes, default=0.0) < 0.001


def test_the_largest_fall_comes_first_and_is_explained(chain):
    tallies = Tallies()
    graphs = {Variant.BASE: chain(4)}
    falling = _Altered(lambda each: replace(each, latency_ms={64: 5.0, 256: 1.0}.get(each.batch, 10.0)))
    check_work(falling, "chain", graphs, tallies, settings=[_SETTING])
    worst = tallies[Check.BATCH, Figure.TIME, _NAME].worst
    assert [fall.before.batch for fall in worst] == [128, 32]
    # The shipped predictor itself, which is asked why, finds that both kinds take longer.
    assert explain_fall(PhysicsPredictor.load(), worst[0], graphs).split()[0] in ("linear", "relu")
    memory = replace(worst[0], figure=Figure.MEMORY)
    assert explain_fall(PhysicsPredictor.load(), memory, graphs).endswith("MiB")


def test_the_settings_hold_a_corrected_and_an_uncorrected_device_in_both_modes():
    names = {(setting.device.name, setting.conditions.mode) for setting in SETTINGS}
    assert {(device, mode) for device in ("GeForce RTX 3090", "A100-SXM4-40GB") for mode in Mode} <= names
