from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.api.prices import Price, parse_prices, price_entry, price_per_sample
from dippm.devices import find_device, slice_device
from dippm.errors import UsageError

DEVICES = [find_device("A100"), find_device("T4")]


def test_a_call_costs_its_share_of_the_hour_and_a_sample_its_share_of_the_call() -> None:
    prediction: Any = SimpleNamespace(latency_ms=1800.0, batch=5, conditions=SimpleNamespace(accumulation=4))
    price = Price.of(prediction, 2.0)
    assert (price.per_hour, price.per_call, price.per_sample) == (2.0, pytest.approx(1e-3), pytest.approx(5e-5))
    assert price.to_dict() == {"per_hour": 2.0, "per_call": 0.001, "per_sample": 5e-05}


def test_what_has_no_price_comes_last_and_says_nothing_of_one() -> None:
    cheap, dear = (Price(per_hour=each, per_call=each / 2, per_sample=each / 4) for each in (1.0, 2.0))
    assert sorted([None, dear, cheap], key=price_per_sample) == [cheap, dear, None]
    assert (price_entry(None), price_entry(dear)) == ({}, {"price": dear.to_dict()})


def test_prices_are_found_by_any_name_of_a_device() -> None:
    assert parse_prices(None, DEVICES) == {}
    found = parse_prices({"a100": 3, "T4": 0.5}, DEVICES)
    assert found == {DEVICES[0].name: 3.0, DEVICES[1].name: 0.5}


def test_prices_of_devices_of_ones_own_are_found_as_forgivingly() -> None:
    own = replace(DEVICES[0], name="My GPU", aliases=("mine",))
    for name in ("my gpu", "MINE", " My GPU "):
        assert parse_prices({name: 2}, [own]) == {"My GPU": 2.0}
    assert parse_prices({"1g.5gb@my gpu": 1}, [own, slice_device(own, "1g.5gb")]) == {"1g.5gb@My GPU": 1.0}
    assert parse_prices({"1g.5gb@my gpu": 1}, [slice_device(own, "1g.5gb")]) == {"1g.5gb@My GPU": 1.0}


def test_a_device_has_one_price_under_all_its_names() -> None:
    with pytest.raises(UsageError, match="two prices for 'A100-SXM4-40GB'") as caught:
        parse_prices({"A100": 1, "A100-SXM4-40GB": 2}, DEVICES)
    assert caught.value.code == "price.repeated"


@pytest.mark.parametrize("price", [0, -1.0, 1e-320, 1e308, float("nan"), float("inf"), True, "3", None])
def test_what_is_no_price_is_refused(price: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_prices({"A100": price}, DEVICES)
    assert caught.value.code == "price.invalid"


@pytest.mark.parametrize("name", ["H100", "Z9"])
def test_a_price_of_what_is_not_asked_about_is_a_slip(name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        parse_prices({name: 1.0}, DEVICES)
    assert caught.value.code == "price.unused"
