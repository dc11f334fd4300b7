from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from dippm.errors import MissingExtraError
from dippm.measuring import cpu_rates
from dippm.measuring.cpu_rates import measure_cpu_rates


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_the_rates_of_this_machine_are_possible(threads: int) -> None:
    rates = measure_cpu_rates(threads=1)
    assert rates.threads == 1
    assert torch.get_num_threads() == threads
    # A core does at most 64 FLOPs in a cycle of FP32, and calling an operator takes some of Python's time.
    assert 0.1 < rates.gflops < 64 * 8
    assert 0.1 < rates.convolution_gflops < 64 * 8
    assert 0.1 < rates.bandwidth_gb_s < 1000
    assert 0.1 < rates.fresh_gb_s < rates.cache_gb_s < 5000
    assert 0.05 < rates.dispatch_us < rates.convolution_us < 10_000


def test_left_out_it_takes_the_threads_of_the_process(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_rates, "_best_s", lambda call: 1e-3)
    torch.set_num_threads(2)
    rates = measure_cpu_rates()
    assert rates.threads == 2
    assert rates.gflops == pytest.approx(2 * 1024**3 / 1e-3 / 1e9)
    assert rates.bandwidth_gb_s == pytest.approx(2 * 2**27 / 1e-3 / 1e9)
    assert rates.dispatch_us == pytest.approx(1.0)
    assert rates.convolution_gflops == pytest.approx(2 * 64**2 * 9 * 56**2 / 1e-3 / 1e9)
    assert rates.cache_gb_s == pytest.approx(2 * 2**20 / 1e-3 / 1e9)
    assert rates.fresh_gb_s == pytest.approx(2**26 / 1e-3 / 1e9)
    assert rates.convolution_us == pytest.approx(1e3 / 50)


def test_the_best_run_counts_and_the_first_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = iter([9.0, 5.0, 2.0, 4.0])
    now = 0.0

    def call() -> None:
        nonlocal now
        now += next(takes)

    monkeypatch.setattr(cpu_rates, "time", SimpleNamespace(perf_counter=lambda: now))
    assert cpu_rates._best_s(call) == 2.0


def test_without_pytorch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_rates, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="measure"):
        measure_cpu_rates()
