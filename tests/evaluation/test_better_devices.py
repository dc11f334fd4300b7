"""Devices that are better in one figure or in all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.devices import find_device, load_catalog
from dippm.evaluation.better_devices import Improvement, dominating_pairs, improve

_CARD = find_device("A100-SXM4-40GB")


def _figures(device):
    return {
        "sms": device.sm_count,
        "base": device.base_clock_mhz,
        "boost": device.boost_clock_mhz,
        "memory": device.memory_mb,
        "usable": device.usable_memory_mb or 0.0,
        "bandwidth": device.bandwidth_gb_s,
        "l2": device.l2_mb,
        "power": device.board_power_w,
        **device.peak_tflops,
    }


@pytest.mark.parametrize(
    "device", [_CARD, find_device("RTX 3090"), find_device("Tesla P4")], ids=lambda each: each.name
)
@pytest.mark.parametrize("what", Improvement)
def test_nothing_gets_worse(device, what):
    before, after = _figures(device), _figures(improve(device, what))
    assert all(after[name] >= before[name] for name in before)
    if what is not Improvement.TENSOR_CORES or "fp16_tensor" in before:
        assert any(after[name] > before[name] for name in before)


def test_all_figures_are_better_at_once():
    before, after = _figures(_CARD), _figures(improve(_CARD, Improvement.ALL))
    assert all(after[name] > before[name] for name in before if before[name])


def test_one_figure_leaves_the_others_alone():
    better = improve(_CARD, Improvement.BANDWIDTH)
    assert replace(better, bandwidth_gb_s=_CARD.bandwidth_gb_s) == _CARD


def test_more_multiprocessors_are_each_as_fast_as_before():
    better = improve(_CARD, Improvement.SMS)
    for name, rate in _CARD.peak_tflops.items():
        assert better.peak_tflops[name] / better.sm_count == pytest.approx(rate / _CARD.sm_count)


def test_pairs_go_one_way_and_nothing_is_better_than_itself():
    pairs = {(worse.name, better.name) for worse, better in dominating_pairs(load_catalog())}
    assert ("Tesla T4", "H100 80GB HBM3") in pairs
    assert not any((better, worse) in pairs for worse, better in pairs)
    assert dominating_pairs([_CARD, _CARD]) == []


def test_what_memory_there_is_does_not_matter():
    larger = replace(_CARD, memory_mb=2 * _CARD.memory_mb)
    smaller_but_faster = replace(_CARD, memory_mb=_CARD.memory_mb, bandwidth_gb_s=2 * _CARD.bandwidth_gb_s)
    assert dominating_pairs([larger, smaller_but_faster]) == [(larger, smaller_but_faster)]


def test_a_format_that_only_one_of_them_has_counts_for_it():
    without = replace(_CARD, peak_tflops={"fp32": _CARD.peak_tflops["fp32"]})
    assert dominating_pairs([without, _CARD]) == [(without, _CARD)]
