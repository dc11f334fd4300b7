"""Software that cannot drive a device or a runtime is refused, with the releases that can."""

from __future__ import annotations

import pytest

from dippm.costs.conditions import Runtime
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_software, driving_build
from dippm.devices import find_device, load_catalog
from dippm.errors import UnsupportedError


@pytest.mark.parametrize(
    ("given", "device", "runtime", "says"),
    [
        ("torch 1.12+cu113", "RTX 3090", Runtime.COMPILE, "torch 2.0"),
        ("torch 1.9", "RTX 3090", Runtime.CUDA_GRAPH, "torch 1.10"),
        ("torch 1.6", "A100", Runtime.EAGER, "CUDA 11.0"),
        ("torch 1.13+cu117", "H100", Runtime.EAGER, "CUDA 11.8"),
        ("torch 1.13", "H200", Runtime.EAGER, "torch 2.0"),
        ("torch 2.7+cu126", "B200", Runtime.EAGER, "CUDA 12.8"),
        ("torch 2.6", "RTX 5090", Runtime.EAGER, "torch 2.7"),
        ("torch 2.12+cu130", "V100-PCIE-32GB", Runtime.EAGER, "CUDA 13.0 and later do not drive"),
        ("torch 2.13+cu132", "P100", Runtime.EAGER, "cu126"),
        ("torch 2.13+cu130", "P100", Runtime.EAGER, "do not drive Tesla P100"),
    ],
)
def test_what_cannot_run_is_refused(given, device, runtime, says):
    with pytest.raises(UnsupportedError, match=says) as caught:
        check_software(Software.parse(given), find_device(device), runtime)
    assert caught.value.code == "software.impossible"


@pytest.mark.parametrize(
    ("given", "device", "runtime"),
    [
        ("torch 1.12+cu113", "RTX 3090", Runtime.EAGER),
        ("torch 1.4+cu92", "V100-PCIE-32GB", Runtime.EAGER),
        # Code for compute capability 8.0 runs on 8.9.
        ("torch 1.12+cu113", "RTX 4090", Runtime.EAGER),
        ("torch 2.0+cu118", "H100", Runtime.COMPILE),
        ("torch 2.7", "B200", Runtime.CUDA_GRAPH),
        ("torch 2.13+cu126", "V100-PCIE-32GB", Runtime.EAGER),
        ("torch 2.12+cu130", "T4", Runtime.EAGER),
    ],
)
def test_what_can_run_is_not(given, device, runtime):
    check_software(Software.parse(given), find_device(device), runtime)


def test_what_is_assumed_runs_everywhere():
    for device in load_catalog():
        for runtime in set(Runtime) - {Runtime.COMPILE}:
            check_software(driving_build(device, DEFAULT_SOFTWARE), device, runtime)


@pytest.mark.parametrize(
    ("device", "given", "build"),
    [
        ("P100", "torch 2.13+cu130", "torch 2.13+cu126"),
        ("T4", "torch 2.13+cu130", "torch 2.13+cu130"),
        ("P100", "torch 2.13", "torch 2.13"),
        ("P100", "torch 2.12+cu130", "torch 2.12+cu130"),
    ],
)
def test_todays_software_alone_is_taken_as_it_drives_a_device(device, given, build):
    assert str(driving_build(find_device(device), Software.parse(given))) == build


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("torch 2.0+cu999", r"There is no CUDA 99\.9; torch 2\.0 goes with CUDA 11 or 12\. Name a release of these"),
        ("torch 2.13+cu150", r"There is no CUDA 15\.0; torch 2\.13 goes with CUDA 12 or 13\. "),
        ("torch 2.7+cu127", r"There is no CUDA 12\.7; "),
        ("torch 2.14+cu127", r"There is no CUDA 12\.7; "),
        ("torch 2.14+cu80", r"torch 2\.14 was not built with CUDA 8\.0; it goes with CUDA 12 or 13\. "),
        ("torch 2.0+cu130", r"torch 2\.0 was not built with CUDA 13\.0; it goes with CUDA 11 or 12\. "),
        ("torch 1.12+cu121", r"torch 1\.12 was not built with CUDA 12\.1; it goes with CUDA 10 or 11\. "),
        ("torch 1.4+cu118", r"torch 1\.4 was not built with CUDA 11\.8; it goes with CUDA 9 or 10\. "),
    ],
)
def test_a_build_that_there_is_not_is_refused_with_those_that_there_are(given, says):
    with pytest.raises(UnsupportedError, match=says) as caught:
        check_software(Software.parse(given), find_device("RTX 3090"), Runtime.EAGER)
    assert caught.value.code == "software.impossible"


@pytest.mark.parametrize(
    "given",
    # Wheels, one of conda-forge, NVIDIA's containers 23.03, 24.06 and 25.12, and what is newer than the tables.
    ["torch 1.7+cu110", "torch 1.13+cu117", "torch 2.0+cu118", "torch 2.4+cu124", "torch 2.9+cu129", "torch 2.13+cu132",
     "torch 2.0, CUDA 11.2", "torch 2.0, CUDA 12.1", "torch 2.4, CUDA 12.5", "torch 2.10, CUDA 13.1",
     "torch 2.14+cu140", "torch 3.0+cu130",
     # NVIDIA's small boards, a release of CUDA without its second number, and one that may yet come.
     "torch 1.14, CUDA 11.4", "torch 2.8, CUDA 12", "torch 2.2 CUDA 11", "torch 2.13+cu134"],
)  # fmt: skip
def test_builds_that_there_are_or_may_be_are_not_refused(given):
    check_software(Software.parse(given), find_device("RTX 3090"), Runtime.EAGER)


@pytest.mark.parametrize(("device", "capability"), [("P100", "6.0"), ("GTX 1080 Ti", "6.1")])
def test_compiled_code_needs_volta(device, capability):
    check_software(Software.parse("torch 2.13"), find_device("V100-PCIE-32GB"), Runtime.COMPILE)
    with pytest.raises(UnsupportedError, match=f"7.0 and later.* has {capability}") as caught:
        check_software(DEFAULT_SOFTWARE, find_device(device), Runtime.COMPILE)
    assert caught.value.code == "runtime.unsupported"
