from __future__ import annotations

import pytest

from dippm.costs.context import blas_workspace_bytes, context_mb
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


def test_a_slice_has_a_smaller_context():
    assert context_mb(find_device("1g.5gb@A100-SXM4-40GB")) < context_mb(find_device("A100-SXM4-40GB")) / 2
