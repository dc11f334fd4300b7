"""Which MIG slices may stand together, against the tables of NVIDIA's MIG user guide."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from dippm.devices import find_device, load_catalog
from dippm.errors import UnsupportedError
from dippm.placement.mig_placement import MigCard, Slot

#: The guide's combinations for cards with seven compute slices, by compute slices; 1 is the profile with one memory
#: slice.
GUIDE_OF_SEVEN = {
    (7,), (4, 3), (4, 2, 1), (4, 1, 1, 1), (3, 3), (3, 2, 1), (3, 1, 1, 1), (3, 2, 2), (3, 2, 1, 1), (3, 1, 1, 1, 1),
    (2, 2, 2, 1), (2, 2, 1, 1, 1), (2, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1),
}  # fmt: skip
GUIDE_OF_FOUR = {(4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)}
SEVEN = ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100 PCIe", "H100 80GB HBM3", "H200")
FOUR = ("A30", "RTX PRO 6000 Blackwell Server Edition")


def main_profiles(card: MigCard) -> dict[str, int]:
    """Compute slices by profile, without those that have twice the memory of their compute."""
    return {
        profile.name: profile.compute_slices
        for profile in card.device.mig_profiles
        if not (profile.compute_slices == 1 and profile.memory_slices == 2)
    }


def fits(card: MigCard, *profiles: str) -> bool:
    names = sorted(set(profiles))
    wanted = [profiles.count(name) for name in names]
    return any(all(a <= b for a, b in zip(wanted, layout, strict=True)) for layout in card.layouts(names))


@pytest.mark.parametrize(
    ("device", "guide"), [*((name, GUIDE_OF_SEVEN) for name in SEVEN), *((name, GUIDE_OF_FOUR) for name in FOUR)]
)
def test_combinations_are_those_of_the_guide(device: str, guide: set[tuple[int, ...]]) -> None:
    card = MigCard(find_device(device))
    sizes = main_profiles(card)
    layouts = card.layouts(list(sizes))
    for count in range(1, 8):
        for combination in combinations_with_replacement(sorted(sizes.values(), reverse=True), count):
            wanted = [combination.count(size) for size in sizes.values()]
            # The guide lists what nothing can be added to; whatever fits is part of such a combination.
            is_part = any(all(combination.count(size) <= full.count(size) for size in combination) for full in guide)
            fits_here = any(all(a <= b for a, b in zip(wanted, layout, strict=True)) for layout in layouts)
            assert fits_here == is_part, combination


@pytest.mark.parametrize(
    ("together", "is_possible"),
    [
        (["4g.20gb", "3g.20gb"], True),
        (["4g.20gb", "4g.20gb"], False),
        (["3g.20gb", "3g.20gb", "1g.5gb"], False),
        (["2g.10gb"] * 3 + ["1g.5gb"], True),
        (["2g.10gb"] * 3 + ["1g.10gb"], True),
        (["1g.10gb"] * 4, True),
        (["1g.10gb"] * 4 + ["1g.5gb"], False),
        (["1g.10gb"] * 3 + ["1g.5gb"] * 2, True),
        (["4g.20gb", "1g.10gb", "1g.10gb"], True),
        (["4g.20gb", "1g.10gb", "1g.10gb", "1g.5gb"], False),
        (["7g.40gb", "1g.5gb"], False),
    ],
)
def test_slices_with_the_memory_of_two(together: list[str], is_possible: bool) -> None:
    assert fits(MigCard(find_device("A100")), *together) == is_possible


def test_slices_leave_room_for_the_largest() -> None:
    card = MigCard(find_device("A100"))
    assert card.arrange({"3g.20gb": 1}) == (Slot(profile="3g.20gb", start=4),)
    assert card.arrange({"1g.5gb": 1}) == (Slot(profile="1g.5gb", start=6),)
    assert [slot.start for slot in card.arrange({"3g.20gb": 1, "4g.20gb": 1})] == [0, 4]


@pytest.mark.parametrize(
    ("standing", "free"),
    [
        ([], 7),
        ([("3g.20gb", 4)], 4),
        ([("3g.20gb", 0)], 3),
        ([("3g.20gb", 0), ("3g.20gb", 4)], 0),
        ([("1g.5gb", 0)], 6),
        ([("7g.40gb", 0)], 0),
        ([("1g.10gb", 0), ("1g.10gb", 2), ("1g.10gb", 4), ("1g.10gb", 6)], 0),
    ],
)
def test_what_is_left(standing: list[tuple[str, int]], free: int) -> None:
    slots = [Slot(profile=profile, start=start) for profile, start in standing]
    assert MigCard(find_device("A100")).free_compute_slices(slots) == free


@pytest.mark.parametrize("device", [spec.name for spec in load_catalog() if spec.mig_profiles])
def test_every_layout_can_be_placed(device: str) -> None:
    card = MigCard(find_device(device))
    profiles = {profile.name: profile for profile in card.device.mig_profiles}
    for counts in card.layouts(list(profiles)):
        slots = card.arrange(dict(zip(profiles, counts, strict=True)))
        taken = [
            position
            for slot in slots
            for position in range(slot.start, slot.start + profiles[slot.profile].memory_slices)
        ]
        assert len(taken) == len(set(taken))
        assert max(taken) < card.memory_slices
        assert sum(profiles[slot.profile].compute_slices for slot in slots) <= card.compute_slices()
        assert sum(profiles[slot.profile].sm_count for slot in slots) <= card.device.sm_count
        assert all(slot.start in profiles[slot.profile].placements for slot in slots)


def test_smaller_profiles_are_easier() -> None:
    card = MigCard(find_device("A100"))
    order = ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", None]
    for place, one in enumerate(order):
        for other, another in enumerate(order):
            assert card.is_at_least_as_easy(one, another) == (place <= other)


def test_unknown_placements_are_refused() -> None:
    card = find_device("A30")
    blind = replace(card, mig_profiles=tuple(replace(profile, placements=()) for profile in card.mig_profiles))
    with pytest.raises(UnsupportedError) as caught:
        MigCard(blind).layouts(["1g.6gb"])
    assert caught.value.code == "pack.placements"
    assert MigCard(blind).free_compute_slices([]) == 0
