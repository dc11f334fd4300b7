import pytest

from dippm.costs.rates import Rates, rates_on_each
from dippm.devices import find_device
from dippm.errors import DippmError


@pytest.mark.parametrize("value", [-0.1, float("nan"), 1e6])
def test_a_rate_that_cannot_be_is_refused(value: float) -> None:
    with pytest.raises(DippmError, match="tensor_gemm"):
        Rates(tensor_gemm=value)


def test_rates_of_an_architecture_stand_for_the_others_on_its_cards() -> None:
    rates = Rates(stream=0.5, measured={"9.0": {"pool": 0.1}})
    on_hopper = rates.on(find_device("H200"))
    assert (on_hopper.pool, on_hopper.stream, on_hopper.measured) == (0.1, 0.5, {})
    assert rates.of("9.0") is on_hopper
    assert rates.on(find_device("A100")) == rates.of("8.0") == Rates(stream=0.5)


@pytest.mark.parametrize("own", [{"pool": -1.0}, {"tensor_gemm": float("nan")}, {"no_such_rate": 1.0}])
def test_a_rate_of_an_architecture_that_cannot_be_is_refused(own: dict[str, float]) -> None:
    with pytest.raises(DippmError, match=next(iter(own))):
        Rates(measured={"9.0": own})


def test_hosts_of_an_architecture_have_a_factor_of_their_own() -> None:
    rates = Rates(host_scale=0.9, hosts={"9.0": 0.5}, measured={"9.0": {"pool": 0.1}})
    on_hopper, elsewhere = rates.host_on(find_device("H100")), rates.host_on(find_device("A100"))
    assert on_hopper.host_scale == pytest.approx(0.45)
    assert elsewhere is rates
    # It is the host's alone, and does not hang on what was measured of the device.
    assert on_hopper.measured == rates.measured
    assert rates.on(find_device("H100")).host_on(find_device("H100")).host_scale == pytest.approx(0.45)


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e3, float("nan")])
def test_no_host_takes_nothing(factor: float) -> None:
    with pytest.raises(DippmError, match=r"9\.0"):
        Rates(hosts={"9.0": factor})


def test_devices_have_the_same_rates_or_each_its_own() -> None:
    devices = [find_device("A100"), find_device("H200")]
    rates, others = Rates(measured={"9.0": {"stream": 0.9}}), Rates(stream=0.3)
    assert [own.stream for own in rates_on_each(devices, rates, by_architecture=True)] == [rates.stream, 0.9]
    assert rates_on_each(devices, rates, by_architecture=False) == (rates, rates)
    assert [own.stream for own in rates_on_each(devices, [others, rates], by_architecture=True)] == [0.3, 0.9]
    with pytest.raises(ValueError, match="argument 2"):
        rates_on_each(devices, [rates], by_architecture=True)
