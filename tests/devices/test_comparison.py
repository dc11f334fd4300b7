"""Which device is better than which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.devices import DeviceSpec, find_device, is_better, load_catalog

_CARD = find_device("A100")


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("sm_count", 109),
        ("base_clock_mhz", 1200.0),
        ("boost_clock_mhz", 1500.0),
        ("bandwidth_gb_s", 1600.0),
        ("l2_mb", 50.0),
        ("board_power_w", 450.0),
        ("peak_tflops", {**_CARD.peak_tflops, "fp8_tensor": 400.0}),
    ],
)
def test_one_better_figure_is_enough_where_no_other_is_worse(figure: str, value: object) -> None:
    better: DeviceSpec = replace(_CARD, **{figure: value})  # type: ignore[arg-type]
    assert is_better(better, _CARD)
    assert not is_better(_CARD, better)
    worse = replace(better, sm_count=107) if figure == "l2_mb" else replace(better, l2_mb=30.0)
    assert not is_better(worse, _CARD)


def test_nothing_is_better_than_itself_or_for_its_memory() -> None:
    assert not is_better(_CARD, _CARD)
    assert not is_better(replace(_CARD, memory_mb=2.0 * _CARD.memory_mb), _CARD)


def test_a_card_of_the_next_generation_is_better_in_all_but_its_clock() -> None:
    assert is_better(find_device("H100"), _CARD)
    assert not is_better(find_device("RTX 4090"), find_device("RTX 5060"))
    assert not any(
        is_better(one, other) and is_better(other, one) for one in load_catalog() for other in load_catalog()
    )
