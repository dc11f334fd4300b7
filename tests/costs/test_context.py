from __future__ import annotations

import pytest

from dippm.costs.context import blas_workspace_bytes, context_mb, eager_margin_mb
from dippm.costs.software import Software
from dippm.devices import find_device, load_catalog


@pytest.mark.parametrize(
    ("device", "mib"),
    [("V100", 8.125), ("T4", 8.125), ("A100", 8.125), ("RTX 4090", 8.125), ("H100", 32), ("B200", 32)],
)
def test_blas_workspace_by_compute_capability(device, mib):
    assert blas_workspace_bytes(find_device(device)) == mib * 2**20


def test_the_context_of_every_device_is_plausible():
    sizes = [context_mb(device) for device in load_catalog()]
    assert min(sizes) > 100
    assert max(sizes) < 900


def test_the_context_of_the_published_device():
    # 426 MiB without a model, and what a model's kernels add.
    assert context_mb(find_device("RTX 6000 Ada")) == pytest.approx(426 + 64)


@pytest.mark.parametrize("device", ["H200", "A100"])
def test_backward_passes_and_captures_add_each_their_own(device):
    spec = find_device(device)
    plain = context_mb(spec)
    grown = [context_mb(spec, trains=True) - plain, context_mb(spec, is_captured=True) - plain]
    assert all(66 <= more <= 84 for more in grown)  # as measured: see context.py
    assert context_mb(spec, trains=True, is_captured=True) == pytest.approx(plain + sum(grown))


def test_a_context_with_all_kernels_is_that_of_training_in_any_case():
    device, software = find_device("RTX 3090"), Software.parse("torch 1.12+cu113")
    assert context_mb(device, software, trains=True, is_captured=True) == context_mb(device, software)


def test_a_slice_has_a_smaller_context():
    assert context_mb(find_device("1g.5gb@A100-SXM4-40GB")) < context_mb(find_device("A100-SXM4-40GB")) / 2


def test_the_context_with_all_kernels_is_what_was_chosen_for_it():
    device, software = find_device("RTX 3090"), Software.parse("torch 1.12+cu113")
    assert context_mb(device, software) == pytest.approx(1708)
    assert eager_margin_mb(device, software) == 0


def test_code_does_not_grow_with_the_device():
    old = Software.parse("torch 1.12+cu113")
    grown = [context_mb(find_device(name), old) - context_mb(find_device(name)) for name in ("T4", "RTX 3090", "A100")]
    assert grown == pytest.approx([grown[0]] * 3)
    assert grown[0] > 1000


@pytest.mark.parametrize(("device", "software"), [("A100", "torch 1.12+cu113"), ("RTX 3090", "torch 1.10+cu113")])
def test_what_was_not_measured_is_less_sure(device, software):
    assert eager_margin_mb(find_device(device), Software.parse(software)) > 500


def test_cublas_took_memory_of_its_own_once():
    assert blas_workspace_bytes(find_device("A100"), Software.parse("torch 1.12")) == 0
