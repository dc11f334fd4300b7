"""How new test rows are, and the splits that make them so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dippm.datasets.graph_samples import GraphSamples, Part
from dippm.datasets.store.label import Label
from dippm.evaluation.novelty import Novelty, leave_families_out, novelty_of_samples, split_for


def test_novelty_goes_by_graph_and_family(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    samples = make_samples(
        [
            make_label(0, family="resnet", batch=1),
            make_label(0, family="resnet", batch=8),
            make_label(1, family="resnet"),
            make_label(2, family="bert"),
        ]
    )
    parts = np.array([Part.TRAINING, Part.TEST, Part.TEST, Part.TEST], dtype=np.int8)
    assert novelty_of_samples(samples, parts).tolist() == ["seen", "seen", "partly seen", "unseen"]


@pytest.mark.parametrize("novelty", list(Novelty))
@pytest.mark.parametrize("seed", [0, 1])
def test_a_split_has_test_rows_of_its_novelty(zoo: GraphSamples, novelty: Novelty, seed: int) -> None:
    parts = split_for(zoo, novelty, seed=seed)
    assert parts is not None
    is_test = parts == Part.TEST
    assert (novelty_of_samples(zoo, parts)[is_test] == novelty).any()
    shares = [float((parts == part).mean()) for part in (Part.TRAINING, Part.VALIDATION, Part.TEST)]
    # A family is a fifth of these rows.
    assert shares == pytest.approx([0.7, 0.15, 0.15], abs=0.06)
    again = split_for(zoo, novelty, seed=seed)
    assert again is not None
    assert (again == parts).all()


def test_held_out_families_are_in_no_other_part(zoo: GraphSamples) -> None:
    parts = split_for(zoo, Novelty.UNSEEN, seed=3)
    assert parts is not None
    tested = set(zoo.families[parts == Part.TEST].tolist())
    assert tested
    assert tested.isdisjoint(zoo.families[parts != Part.TEST].tolist())


def test_seeds_draw_other_families(zoo: GraphSamples) -> None:
    drawn = set()
    for seed in range(8):
        parts = split_for(zoo, Novelty.UNSEEN, seed=seed)
        assert parts is not None
        drawn.add(tuple(sorted(set(zoo.families[parts == Part.TEST].tolist()))))
    assert len(drawn) > 1


@pytest.mark.parametrize("groups", [2, 3, 99])
def test_every_family_is_left_out_once(zoo: GraphSamples, groups: int) -> None:
    found = leave_families_out(zoo, groups, seed=0)
    names = [name for group in found for name in group]
    assert sorted(names) == sorted(set(zoo.families.tolist()))
    assert len(found) == min(groups, len(names))
    for group, parts in found.items():
        assert (parts == Part.TEST).tolist() == np.isin(zoo.families, group).tolist()
        assert {Part.TRAINING, Part.VALIDATION} <= set(parts.tolist())
    assert leave_families_out(zoo, 0, seed=0) == {}


def test_groups_have_about_equally_many_rows(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    sizes = {"a": 9, "b": 5, "c": 4, "d": 3, "e": 1}
    labels = [
        make_label(100 * place + number, family=family)
        for place, (family, size) in enumerate(sizes.items())
        for number in range(size)
    ]
    assert list(leave_families_out(make_samples(labels), 2, seed=0)) == [("a", "d"), ("b", "c", "e")]


def test_data_without_such_rows_have_no_split(
    make_label: Callable[..., Label], make_samples: Callable[..., GraphSamples]
) -> None:
    single = make_samples([make_label(number) for number in range(20)])
    assert split_for(single, Novelty.SEEN, seed=0) is None
    assert split_for(single, Novelty.UNSEEN, seed=0) is None
    assert leave_families_out(single, 2, seed=0) == {}
    assert split_for(single, Novelty.PARTLY_SEEN, seed=0) is not None
