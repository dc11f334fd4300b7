"""Which MIG slice a model needs, from the memory that it is predicted to take.

Eq. 2 of the DIPPM paper (Panner Selvam and Brorsson, 2023), for the predicted memory alpha on an A100 with 40 GB::

    MIG(alpha) = 1g.5gb    if  0 GB < alpha <  5 GB
                 2g.10gb   if  5 GB < alpha < 10 GB
                 3g.20gb   if 10 GB < alpha < 20 GB
                 7g.40gb   if 20 GB < alpha < 40 GB
                 None      otherwise

Its limits are exclusive, so alpha of exactly 5, 10 or 20 GB falls between two slices and gets None, like a model that
is too large for the card. Its limits are also nominal: a 1g.5gb slice has 4.75 GiB, so a model of 4.9 GB is sent to a
slice where it runs out of memory. It never recommends 1g.10gb or 4g.20gb, which the A100 has as well. The default
policy closes these gaps; ``policy="paper"`` keeps them, for comparison with published results.
"""

from __future__ import annotations

import enum
import math

from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError, UsageError, quote

__all__ = ["MigPolicy", "choose_mig"]

# The paper writes GB; like every memory figure here, they are read as multiples of 1024 MiB.
_PAPER_LIMITS_MB = (
    (0.0, 5 * 1024.0, "1g.5gb"),
    (5 * 1024.0, 10 * 1024.0, "2g.10gb"),
    (10 * 1024.0, 20 * 1024.0, "3g.20gb"),
    (20 * 1024.0, 40 * 1024.0, "7g.40gb"),
)


class MigPolicy(enum.StrEnum):
    """How a slice is chosen."""

    SAFE = "safe"
    """The interval's upper end must fit what the slice really offers."""
    PAPER = "paper"
    """Eq. 2 of the DIPPM paper to the letter, on the predicted value."""


def choose_mig(
    memory_mb: float,
    device: DeviceSpec,
    *,
    interval_high_mb: float | None = None,
    policy: MigPolicy | str = MigPolicy.SAFE,
) -> str | None:
    """Chooses the smallest MIG slice of a device on which a model runs.

    The default policy takes the slice with the least memory that is at least the interval's upper end (inclusive), and
    of slices with equal memory the one with the fewest compute slices. Policy ``"paper"`` is Eq. 2 of the DIPPM paper,
    with its gaps (see the module's text); it looks at the predicted value only.

    Args:
        memory_mb: Predicted memory, MiB, above 0.
        device: A whole card.
        interval_high_mb: Upper end of the interval of what the model needs, MiB, above 0; below ``memory_mb`` where it
            holds cached memory that it can give back. None compares ``memory_mb`` itself.
        policy: ``"safe"`` (default) or ``"paper"``.

    Returns:
        The profile's name, such as ``"1g.5gb"``; None if no slice is large enough, or the device has none (a MIG slice
        has none either).

    Raises:
        UsageError: A memory figure is not finite or out of its range (code ``"placement.memory"``), or the policy is
            unknown (code ``"placement.policy"``).
        UnsupportedError: Policy ``"paper"`` on a card without the A100-40GB's profiles, of which alone Eq. 2 speaks;
            code ``"placement.policy_device"``.
    """
    _check_memory(memory_mb, interval_high_mb)
    if not isinstance(policy, MigPolicy) and policy not in tuple(MigPolicy):
        raise UsageError(
            f"A MIG policy must be one of {', '.join(MigPolicy)}. Got {quote(policy)} instead.", code="placement.policy"
        )
    if policy == MigPolicy.PAPER:
        return _apply_equation_2(memory_mb, device)
    needed_mb = memory_mb if interval_high_mb is None else interval_high_mb
    # Profiles are ordered by memory, then compute slices, so the first that fits is the smallest.
    return next((profile.name for profile in device.mig_profiles if needed_mb <= profile.memory_mb), None)


def _apply_equation_2(memory_mb: float, device: DeviceSpec) -> str | None:
    lacking = {name for _, _, name in _PAPER_LIMITS_MB} - {profile.name for profile in device.mig_profiles}
    if lacking:
        raise UnsupportedError(
            f"Policy 'paper' is Eq. 2 of the DIPPM paper, for the A100 with 40 GB; device '{device.name}' has no "
            f"{', '.join(sorted(lacking))}.",
            code="placement.policy_device",
            cure="Take device 'A100-SXM4-40GB' or 'A100-PCIE-40GB', or policy 'safe'.",
        )
    return next((name for low, high, name in _PAPER_LIMITS_MB if low < memory_mb < high), None)


def _check_memory(memory_mb: float, interval_high_mb: float | None) -> None:
    if not (math.isfinite(memory_mb) and memory_mb > 0):
        raise UsageError(
            f"memory_mb must be a finite number of MiB above 0. Got {quote(memory_mb)} instead.",
            code="placement.memory",
        )
    if interval_high_mb is not None and not (math.isfinite(interval_high_mb) and interval_high_mb > 0):
        raise UsageError(
            f"interval_high_mb must be a finite number of MiB above 0. Got {quote(interval_high_mb)} instead.",
            code="placement.memory",
        )
