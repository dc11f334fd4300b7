"""Several models on the MIG slices of several GPUs: fewest GPUs, then fewest compute slices.

Each replica of a model has a slice of its own. What a model may run on is asked of whoever calls; of slices where one
may stand wherever another may and takes no more, the larger one is never needed. What is left is a covering problem:
so many GPUs of each layout (:meth:`~dippm.placement.mig_placement.MigCard.layouts`) that every replica has a slice. It
is solved exactly (:mod:`~dippm.placement.integer_program`); where that takes too long, the answer is the best one found
and says how much better one could be at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dippm.devices import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.placement.integer_program import Row, Solution, minimize
from dippm.placement.mig_placement import MigCard, Slot

__all__ = ["Demand", "GpuKind", "PackedGpu", "PackedSlice", "Packing", "Place", "pack"]

_MOST_STEPS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuKind:
    """GPUs of one kind.

    Args:
        device: The whole card.
        count: How many there are, 0 or more; None for as many as are needed.
    """

    device: DeviceSpec
    count: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Place:
    """What a model may run on.

    Args:
        kind: Which kind of GPU, by its place among the kinds.
        profile: Name of a MIG profile, or None for the whole card without MIG.
    """

    kind: int
    profile: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Replicas of one model.

    Args:
        name: What to call it; no two are called the same.
        places: Everything that it may run on, at least one.
        replicas: How many, 1 or more.
    """

    name: str
    places: tuple[Place, ...]
    replicas: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSlice:
    """One replica on its slice.

    Args:
        name: Name of the demand.
        profile: The MIG profile, or None for the whole card without MIG.
        start: Memory slice at which it starts.
        memory_slices: Memory slices that it takes.
        compute_slices: Compute slices that it takes.
    """

    name: str
    profile: str | None
    start: int
    memory_slices: int
    compute_slices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedGpu:
    """One GPU in use.

    Args:
        kind: Which kind of GPU.
        device: Name of the card.
        memory_slices: Memory slices of the card.
        slices: What stands on it, by where it starts.
        free_compute_slices: Compute slices, at most, that can still be made into slices.
    """

    kind: int
    device: str
    memory_slices: int
    slices: tuple[PackedSlice, ...]
    free_compute_slices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """Where everything stands.

    Args:
        gpus: The GPUs in use, by kind.
        gpus_at_least: No packing takes fewer.
        compute_slices: Compute slices in use.
        compute_slices_at_least: No packing on as many GPUs takes fewer.
    """

    gpus: tuple[PackedGpu, ...]
    gpus_at_least: int
    compute_slices: int
    compute_slices_at_least: int

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no packing is better."""
        return len(self.gpus) == self.gpus_at_least and self.compute_slices == self.compute_slices_at_least


def pack(demands: Sequence[Demand], kinds: Sequence[GpuKind], *, most_steps: int = _MOST_STEPS) -> Packing:
    """Pack demands on the fewest GPUs, of those packings on one with the fewest compute slices.

    Args:
        demands: What to place, at least one.
        kinds: The GPUs to place it on.
        most_steps: How long to look for a proof: linear programs to solve, for each of the two aims.

    Returns:
        The packing; the same for the same question.

    Raises:
        UnsupportedError: ``pack.no_room`` where the GPUs are too few, ``pack.unproved`` where that was neither proved
            nor a packing found, ``pack.placements`` where it is not known how the slices of a card may stand.
    """
    program = _Program(demands, kinds)
    fewest = minimize(program.gpu_costs, program.rows, whole=program.branching, most_steps=most_steps)
    if fewest.values is None or fewest.cost is None or fewest.cost_at_least is None:
        raise _no_room(kinds, is_proved=fewest.is_proved)
    smallest = _Found.of(program, fewest.values)
    compute_at_least = smallest.compute_slices
    if program.has_choice:
        limit = Row(weights=dict.fromkeys(program.branching, -1), at_least=-fewest.cost)
        least = minimize(
            program.slice_costs,
            [*program.rows, limit],
            whole=program.branching,
            most_steps=most_steps,
            known=Solution(values=fewest.values, cost=smallest.compute_slices, cost_at_least=0),
        )
        if least.values is not None and least.cost_at_least is not None:
            smallest, compute_at_least = _Found.of(program, least.values), least.cost_at_least
    return Packing(
        gpus=smallest.gpus(),
        gpus_at_least=fewest.cost_at_least,
        compute_slices=smallest.compute_slices,
        compute_slices_at_least=compute_at_least,
    )


class _Program:
    """The covering problem.

    Variables: GPUs of each layout of each kind, then replicas of each class of demands on each place. Where the former
    are whole, the latter solve a transport problem, whose vertices are whole.
    """

    def __init__(self, demands: Sequence[Demand], kinds: Sequence[GpuKind]) -> None:
        self.cards = [MigCard(kind.device) for kind in kinds]
        classes: dict[tuple[Place, ...], list[str]] = {}
        for demand in demands:
            places = tuple(sorted(self._needed(demand.places), key=lambda place: (place.kind, place.profile or "")))
            classes.setdefault(places, []).extend([demand.name] * demand.replicas)
        self.classes = tuple(classes.items())
        # Layouts: what one GPU of a kind offers.
        self.layouts: list[tuple[int, dict[str | None, int]]] = []
        for number, card in enumerate(self.cards):
            used = {place.profile for places, _ in self.classes for place in places if place.kind == number}
            profiles = [profile.name for profile in card.device.mig_profiles if profile.name in used]
            if profiles:
                self.layouts += [
                    (number, {name: count for name, count in zip(profiles, counts, strict=True) if count})
                    for counts in card.layouts(profiles)
                ]
            if None in used:
                self.layouts.append((number, {None: 1}))
        self.branching = range(len(self.layouts))
        self.assignments = [(number, place) for number, (places, _) in enumerate(self.classes) for place in places]
        self.gpu_costs = [1] * len(self.layouts) + [0] * len(self.assignments)
        self.slice_costs = [0] * len(self.layouts) + [
            self.cards[place.kind].compute_slices(place.profile) for _, place in self.assignments
        ]
        self.has_choice = any(
            len({self.cards[place.kind].compute_slices(place.profile) for place in places}) > 1
            for places, _ in self.classes
        )
        self.rows = [*self._every_replica_has_a_slice(), *self._every_slice_is_there(), *self._no_more_gpus(kinds)]

    def _needed(self, places: Sequence[Place]) -> list[Place]:
        """Without those places that another one makes needless."""
        kept: list[Place] = []
        for place in places:
            easier = [
                other
                for other in places
                if other.kind == place.kind
                and other != place
                and self.cards[place.kind].is_at_least_as_easy(other.profile, place.profile)
            ]
            # Of two that are as easy as each other the first one stays.
            if not any(
                not self.cards[place.kind].is_at_least_as_easy(place.profile, other.profile) or other in kept
                for other in easier
            ):
                kept.append(place)
        return kept

    def _every_replica_has_a_slice(self) -> list[Row]:
        return [
            Row(
                weights={
                    len(self.layouts) + column: 1
                    for column, (owner, _) in enumerate(self.assignments)
                    if owner == number
                },
                at_least=len(names),
            )
            for number, (_, names) in enumerate(self.classes)
        ]

    def _every_slice_is_there(self) -> list[Row]:
        rows = []
        for place in dict.fromkeys(place for _, place in self.assignments):
            offered = {
                column: offer[place.profile]
                for column, (kind, offer) in enumerate(self.layouts)
                if kind == place.kind and place.profile in offer
            }
            taken = {
                len(self.layouts) + column: -1 for column, (_, each) in enumerate(self.assignments) if each == place
            }
            rows.append(Row(weights=offered | taken, at_least=0))
        return rows

    def _no_more_gpus(self, kinds: Sequence[GpuKind]) -> list[Row]:
        return [
            Row(
                weights={column: -1 for column, (owner, _) in enumerate(self.layouts) if owner == number},
                at_least=-kind.count,
            )
            for number, kind in enumerate(kinds)
            if kind.count is not None
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A solution, as GPUs of layouts and replicas on places."""

    program: _Program
    layout_counts: tuple[int, ...]
    assigned: tuple[int, ...]

    @classmethod
    def of(cls, program: _Program, values: Sequence[int]) -> _Found:
        """The solution that these values say; replicas over what is asked for are left out."""
        split = len(program.layouts)
        assigned = list(values[split:])
        for number, (_, names) in enumerate(program.classes):
            over = sum(
                count for count, (owner, _) in zip(assigned, program.assignments, strict=True) if owner == number
            ) - len(names)
            for column, (owner, _) in reversed(list(enumerate(program.assignments))):
                if owner == number and over > 0:
                    less = min(over, assigned[column])
                    assigned[column] -= less
                    over -= less
        return cls(program=program, layout_counts=tuple(values[:split]), assigned=tuple(assigned))

    @property
    def compute_slices(self) -> int:
        """Compute slices in use."""
        costs = self.program.slice_costs[len(self.program.layouts) :]
        return sum(count * cost for count, cost in zip(self.assigned, costs, strict=True))

    def gpus(self) -> tuple[PackedGpu, ...]:
        """The GPUs, each filled in the order of the demands."""
        waiting: dict[Place, deque[str]] = {}
        left = [deque(names) for _, names in self.program.classes]
        for count, (owner, place) in zip(self.assigned, self.program.assignments, strict=True):
            waiting.setdefault(place, deque()).extend(left[owner].popleft() for _ in range(count))
        packed = []
        placed: dict[tuple[int, tuple[tuple[str, int], ...]], tuple[Slot, ...]] = {}
        for (kind, offer), gpus in zip(self.program.layouts, self.layout_counts, strict=True):
            for _ in range(gpus):
                names = {
                    profile: [
                        queue.popleft()
                        for queue in [waiting.get(Place(kind=kind, profile=profile), deque())]
                        for _ in range(min(count, len(queue)))
                    ]
                    for profile, count in offer.items()
                }
                packed.append(self._fill(kind, names, placed))
        return tuple(sorted((gpu for gpu in packed if gpu.slices), key=lambda gpu: gpu.kind))

    def _fill(
        self,
        kind: int,
        names: dict[str | None, list[str]],
        placed: dict[tuple[int, tuple[tuple[str, int], ...]], tuple[Slot, ...]],
    ) -> PackedGpu:
        card = self.program.cards[kind]
        device = card.device.name
        if None in names:
            whole = tuple(
                PackedSlice(
                    name=name,
                    profile=None,
                    start=0,
                    memory_slices=card.memory_slices,
                    compute_slices=card.compute_slices(),
                )
                for name in names[None]
            )
            return PackedGpu(
                kind=kind, device=device, memory_slices=card.memory_slices, slices=whole, free_compute_slices=0
            )
        counts = tuple((profile, len(each)) for profile, each in names.items() if profile is not None)
        if (kind, counts) not in placed:
            placed[kind, counts] = card.arrange(dict(counts))
        slots = placed[kind, counts]
        sizes = {profile.name: profile.memory_slices for profile in card.device.mig_profiles}
        queues: dict[str | None, deque[str]] = {profile: deque(each) for profile, each in names.items()}
        return PackedGpu(
            kind=kind,
            device=device,
            memory_slices=card.memory_slices,
            slices=tuple(
                PackedSlice(
                    name=queues[slot.profile].popleft(),
                    profile=slot.profile,
                    start=slot.start,
                    memory_slices=sizes[slot.profile],
                    compute_slices=card.compute_slices(slot.profile),
                )
                for slot in slots
            ),
            free_compute_slices=card.free_compute_slices(slots),
        )


def _no_room(kinds: Sequence[GpuKind], *, is_proved: bool) -> UnsupportedError:
    fleet = ", ".join(f"{'any number of' if kind.count is None else kind.count} {kind.device.name}" for kind in kinds)
    if is_proved:
        return UnsupportedError(
            f"The models do not all fit on {fleet}.", code="pack.no_room", cure="Give more GPUs, or fewer models."
        )
    return UnsupportedError(
        f"No packing of the models on {fleet} was found, and it is not proved that there is none.",
        code="pack.unproved",
        cure="Give more GPUs, or fewer models.",
    )
