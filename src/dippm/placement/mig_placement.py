"""Which MIG slices may stand together on one GPU, and where.

A GPU instance takes a run of memory slices, may start at some of them only, and overlaps no other
(``nvidia-smi mig -lgipp``; "Supported MIG Profiles" in the NVIDIA Multi-Instance GPU User Guide). Everything else that
the guide's tables of combinations say follows: an A100 has eight memory slices and seven compute slices, ``3g.20gb``
starts at memory slice 0 or 4 and ``4g.20gb`` at 0 only, so that 4g and 3g fit together, and of two 3g the one at 0
takes four memory slices with three compute slices, which leaves one compute slice to nobody.

Variants of a profile with media engines (``+me``) have its size and its placements, at most one to a GPU; the catalogue
leaves them out, and so does this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dippm.devices import DeviceSpec, MigProfile
from dippm.errors import UnsupportedError

__all__ = ["MigCard", "Slot"]

# What a card without MIG counts: as much as the largest profile of most cards that have it.
_WHOLE_CARD_SLICES = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One MIG slice at its place.

    Args:
        profile: Name of the profile.
        start: Memory slice at which it starts, 0 or more.
    """

    profile: str
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Arrangement:
    """Slices that may stand together, in the order of where they start.

    Args:
        slots: The slices.
        taken: The memory slices that they take, as bits.
        sizes: Compute slices of each, the largest first.
    """

    slots: tuple[Slot, ...]
    taken: int
    sizes: tuple[int, ...]


class MigCard:
    """What may stand on one card.

    Args:
        device: A whole card, with MIG or without.
    """

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._profiles = {profile.name: profile for profile in device.mig_profiles}
        self._all: tuple[_Arrangement, ...] | None = None

    @property
    def memory_slices(self) -> int:
        """Memory slices of the card; 1 where it has no MIG."""
        return self.device.memory_slices or 1

    def compute_slices(self, profile: str | None = None) -> int:
        """Compute slices that a profile takes; the whole card takes those of its largest one, 7 where it has none."""
        if profile is not None:
            return self._profiles[profile].compute_slices
        return max((each.compute_slices for each in self._profiles.values()), default=_WHOLE_CARD_SLICES)

    def layouts(self, profiles: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """How many of each profile fit on one GPU, at most: whatever fits is part of one of these.

        Args:
            profiles: Names of the profiles to use.

        Returns:
            Counts in the order of ``profiles``, the most of the last profile first; none is part of another.

        Raises:
            UnsupportedError: ``pack.placements`` where it is not known where one of them may stand.
        """
        self._check_placements(profiles)
        counts = {
            tuple(sum(slot.profile == name for slot in each.slots) for name in profiles)
            for each in self._extend(_NOTHING, [self._profiles[name] for name in profiles])
        }
        largest = [
            each for each in counts if not any(other != each and all(map(int.__le__, each, other)) for other in counts)
        ]
        return tuple(sorted(largest, key=lambda each: each[::-1], reverse=True))

    def arrange(self, counts: Mapping[str, int]) -> tuple[Slot, ...]:
        """Place slices on one GPU so that as much as possible can still be added.

        Args:
            counts: How many of which profile; they fit together.

        Returns:
            The slices by where they start: of all places those that leave room for the most compute slices, then for
            the largest slices, then the first ones.
        """
        wanted = +Counter(counts)
        self._check_placements(wanted)
        fitting = [
            each
            for each in self._extend(_NOTHING, [self._profiles[name] for name in wanted])
            if Counter(slot.profile for slot in each.slots) == wanted
        ]
        best = max(fitting, key=lambda each: (self._room(each), [-slot.start for slot in each.slots]))
        return best.slots

    def free_compute_slices(self, slots: Sequence[Slot]) -> int:
        """Compute slices, at most, that can still be made into slices beside these."""
        return self._room(self._as_arrangement(slots))[0]

    def is_at_least_as_easy(self, profile: str | None, other: str | None) -> bool:
        """Whether a profile may stand wherever another may, and takes no more of the card; None is the whole card."""
        if profile is None or other is None:
            return other is None
        first, second = self._profiles[profile], self._profiles[other]
        return (
            first.compute_slices <= second.compute_slices
            and first.memory_slices <= second.memory_slices
            and set(first.placements) >= set(second.placements)
            and first.max_instances >= _most_instances(first)
        )

    def _room(self, standing: _Arrangement) -> tuple[int, tuple[int, ...]]:
        """Compute slices that can be added, and the sizes of the slices that they make, the largest first."""
        if self._all is None:
            known = [profile for profile in self._profiles.values() if profile.placements]
            self._all = tuple(self._extend(_NOTHING, known))
        left = self.compute_slices() - sum(standing.sizes)
        present = Counter(slot.profile for slot in standing.slots)
        return max(
            (sum(added.sizes), added.sizes)
            for added in self._all
            if not added.taken & standing.taken
            and sum(added.sizes) <= left
            and all(
                count <= self._profiles[name].max_instances
                for name, count in (present + Counter(slot.profile for slot in added.slots)).items()
            )
        )

    def _extend(self, standing: _Arrangement, profiles: Sequence[MigProfile]) -> Iterator[_Arrangement]:
        """These slices, and all that come of adding more after the last one."""
        yield standing
        end, used = standing.taken.bit_length(), sum(standing.sizes)
        for profile in profiles:
            count = sum(slot.profile == profile.name for slot in standing.slots)
            if count < profile.max_instances and used + profile.compute_slices <= self.compute_slices():
                for start in profile.placements:
                    if start >= end:
                        slots = (*standing.slots, Slot(profile=profile.name, start=start))
                        yield from self._extend(self._as_arrangement(slots), profiles)

    def _as_arrangement(self, slots: Sequence[Slot]) -> _Arrangement:
        found = [self._profiles[slot.profile] for slot in slots]
        return _Arrangement(
            slots=tuple(slots),
            taken=sum(((1 << each.memory_slices) - 1) << slot.start for slot, each in zip(slots, found, strict=True)),
            sizes=tuple(sorted((each.compute_slices for each in found), reverse=True)),
        )

    def _check_placements(self, profiles: Iterator[str] | Sequence[str] | Mapping[str, int]) -> None:
        unknown = [name for name in profiles if not self._profiles[name].placements]
        if unknown:
            raise UnsupportedError(
                f"Where {', '.join(unknown)} may stand on device '{self.device.name}' is not known.",
                code="pack.placements",
                cure="Give placements in the device file, or pack on another device.",
            )


_NOTHING = _Arrangement(slots=(), taken=0, sizes=())


def _most_instances(profile: MigProfile) -> int:
    """How many of a profile its placements alone allow."""
    count, end = 0, 0
    for start in profile.placements:
        if start >= end:
            count, end = count + 1, start + profile.memory_slices
    return count
