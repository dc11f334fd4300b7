"""Which devices and runtimes a release of PyTorch and CUDA can drive at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dippm.costs.conditions import Runtime
from dippm.costs.software import DEFAULT_SOFTWARE, Release, Software
from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError

__all__ = ["check_driven", "check_software", "driving_build"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Needs:
    """The oldest releases that build for devices of one major compute capability.

    Code for one minor runs on later minors of the same major (CUDA C++ programming guide, "Binary Compatibility"), so
    the major decides.
    """

    cuda: Release
    torch: Release


# CUDA: the release notes of each toolkit. PyTorch: the first release that is shipped with such a CUDA (compatibility
# matrix in PyTorch's RELEASE.md; 1.7's release notes for CUDA 11.0).
_NEEDS = {
    8: _Needs(cuda=(11, 0), torch=(1, 7)),
    9: _Needs(cuda=(11, 8), torch=(2, 0)),
    10: _Needs(cuda=(12, 8), torch=(2, 7)),
    12: _Needs(cuda=(12, 8), torch=(2, 7)),
}
# CUDA 13 builds for no device before Turing; PyTorch up to 2.14 is shipped with CUDA 12.6 for these as well
# (github.com/pytorch/pytorch, issue 190385).
_DROPPED_BEFORE, _DROPPED_BY = (7, 5), (13, 0)
_LAST_THAT_DRIVES: Release = (12, 6)
# torch.compile came with PyTorch 2.0, torch.cuda.graph with 1.10 (their release notes).
_RUNTIME_SINCE: dict[Runtime, Release] = {Runtime.COMPILE: (2, 0), Runtime.CUDA_GRAPH: (1, 10)}
# Triton, in which inductor writes kernels, starts with Volta (GPUTooOldForTriton in torch/_inductor).
_COMPILED_FROM = (7, 0)
# Releases of the toolkit (developer.nvidia.com/cuda-toolkit-archive); there was no 12.7, though drivers name it.
_TOOLKITS: tuple[Release, ...] = (
    (8, 0), (9, 0), (9, 1), (9, 2), (10, 0), (10, 1), (10, 2),
    *((11, minor) for minor in range(9)),
    *((12, minor) for minor in (0, 1, 2, 3, 4, 5, 6, 8, 9)),
    (13, 0), (13, 1), (13, 2), (13, 3),
)  # fmt: skip
# The first and the last major release of CUDA that PyTorch was built with, from a release on: wheels (pytorch.org,
# "Previous versions"; RELEASE.md), NVIDIA's containers and wheels for its small boards, conda-forge, people's own.
_MAJORS_SINCE: dict[Release, tuple[int, int]] = {
    (1, 0): (8, 10), (1, 1): (9, 10), (1, 6): (9, 11), (1, 8): (10, 11), (1, 13): (10, 12), (1, 14): (11, 12),
    (2, 8): (12, 13),
}  # fmt: skip


def check_software(software: Software, device: DeviceSpec, runtime: Runtime) -> None:
    """Refuse software that there is not, or that cannot run like that, or not on the device.

    Raises:
        UnsupportedError: ``software.impossible``, or ``runtime.unsupported`` where no software could.
    """
    _check_build(software)
    since = _RUNTIME_SINCE.get(runtime)
    if since is not None and software.torch < since:
        raise UnsupportedError(
            f"The runtime '{runtime}' came with torch {_text(since)}. Got {software} instead.",
            code="software.impossible",
            cure=f"Use the eager runtime, or torch {_text(since)} or later.",
        )
    if runtime is Runtime.COMPILE and device.compute_capability < _COMPILED_FROM:
        raise UnsupportedError(
            f"torch.compile makes kernels for GPUs of compute capability {_text(_COMPILED_FROM)} and later. "
            f"{device.name} has {_text(device.compute_capability)}.",
            code="runtime.unsupported",
            cure="Use the eager runtime, or another device.",
        )
    check_driven(device, software)
    needs = _NEEDS.get(device.compute_capability[0])
    if needs is None:
        return
    is_too_old = software.torch < needs.torch if software.cuda is None else software.cuda < needs.cuda
    if is_too_old:
        raise UnsupportedError(
            f"{device.name} needs CUDA {_text(needs.cuda)} or later, with which torch {_text(needs.torch)} was the "
            f"first to be shipped. Got {software} instead.",
            code="software.impossible",
            cure="Name newer software, or a device of its time.",
        )


def check_driven(device: DeviceSpec, software: Software) -> None:
    """Refuse a build of CUDA that drives a device no more.

    Raises:
        UnsupportedError: ``software.impossible``.
    """
    if _is_dropped(device, software):
        raise UnsupportedError(
            f"CUDA {_text(_DROPPED_BY)} and later do not drive {device.name}, which has compute capability "
            f"{_text(device.compute_capability)}. Got {software} instead.",
            code="software.impossible",
            cure=f"Name a build with CUDA 12, such as '{driving_build(device, DEFAULT_SOFTWARE)}'.",
        )


def driving_build(device: DeviceSpec, software: Software) -> Software:
    """The software as it drives a device: today's, which nobody need have named, with its last CUDA that does."""
    if software == DEFAULT_SOFTWARE and _is_dropped(device, software):
        return replace(software, cuda=_LAST_THAT_DRIVES)
    return software


def _check_build(software: Software) -> None:
    """Refuse a CUDA that there is not or that PyTorch was not built with; what is newer than the tables may be."""
    if software.cuda is None:
        return
    since = max(release for release in _MAJORS_SINCE if release <= software.torch)
    first, last = _MAJORS_SINCE[since]
    newest = _TOOLKITS[-1]
    # The newest releases may yet be built with the next one.
    may_be_newer = since == max(_MAJORS_SINCE)
    is_there = software.cuda in _TOOLKITS or newest < software.cuda < (newest[0] + 2, 0)
    if is_there and first <= software.cuda[0] and (may_be_newer or software.cuda[0] <= last):
        return
    torch, cuda = f"torch {_text(software.torch)}", f"CUDA {_text(software.cuda)}"
    told = f"{torch} was not built with {cuda}; it" if is_there else f"There is no {cuda}; {torch}"
    majors = [str(major) for major in range(first, last + 1)]
    raise UnsupportedError(
        f"{told} goes with CUDA {' or '.join([', '.join(majors[:-1]), majors[-1]])}.",
        code="software.impossible",
        cure="Name a release of these, or leave CUDA out.",
    )


def _is_dropped(device: DeviceSpec, software: Software) -> bool:
    is_new = software.cuda is not None and software.cuda >= _DROPPED_BY
    return is_new and device.compute_capability < _DROPPED_BEFORE


def _text(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
