"""How libraries multiply with weights in few bits."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.packings import PACKED_BY, PACKINGS, number_of_packing, read_packings


@pytest.mark.parametrize("name", PACKINGS)
def test_a_packing_goes_by_its_name(name: str) -> None:
    number = number_of_packing({PACKED_BY: name, "other": 3})
    columns = [float(column[0]) for column in read_packings(np.array([number]))]
    packing = PACKINGS[name]
    assert columns == [packing.most_rows, packing.host_us, packing.unpacking_us]


@pytest.mark.parametrize("attributes", [{}, {PACKED_BY: "marlin"}, {PACKED_BY: 3}, {"other": "exllama"}])
def test_others_have_none(attributes: dict[str, object]) -> None:
    assert number_of_packing(attributes) == -1.0  # type: ignore[arg-type]


def test_unpacking_takes_no_less_of_the_host_and_nested_scales_take_more() -> None:
    assert all(each.unpacking_us >= each.host_us > 0.0 for each in PACKINGS.values())
    plain, nested = PACKINGS["bitsandbytes-4bit"], PACKINGS["bitsandbytes-4bit-nested"]
    assert nested.host_us - plain.host_us == nested.unpacking_us - plain.unpacking_us > 0.0
