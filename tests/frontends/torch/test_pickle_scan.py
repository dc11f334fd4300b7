"""Pickles are looked into, never run."""

from __future__ import annotations

import collections
import pickle

import pytest

from dippm.frontends.torch.pickle_scan import scan_pickles


class Own:
    pass


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_globals_are_found_in_every_protocol(protocol: int) -> None:
    scan = scan_pickles(pickle.dumps([Own(), Own()], protocol=protocol))
    assert scan.is_complete
    assert any(name.endswith("Own") for name in scan.foreign)


@pytest.mark.parametrize("protocol", [2, 4])
def test_plain_containers_are_harmless(protocol: int) -> None:
    content = collections.OrderedDict(a=[1, 2.5, "text"], b={"c": None, "d": (True, b"x")})
    assert scan_pickles(pickle.dumps(content, protocol=protocol)).foreign == ()


def test_names_by_reference_are_followed() -> None:
    # 'os' and 'system' are stored first and fetched from the memo for STACK_GLOBAL.
    payload = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x9400h\x00h\x01\x93."
    assert scan_pickles(payload).globals == ("os.system",)


def test_names_made_of_nothing_known_are_foreign() -> None:
    assert scan_pickles(b"\x80\x04K\x01K\x02\x93.").foreign == ("?",)


def test_cut_short() -> None:
    assert not scan_pickles(pickle.dumps(Own())[:-3]).is_complete


@pytest.mark.parametrize(
    ("name", "is_foreign"),
    [
        ("torch._utils _rebuild_tensor_v2", False),
        ("torch FloatStorage", False),
        ("torch float32", False),
        ("torch.nn.modules.linear Linear", True),
        ("torch load", True),
        ("torch.hub load", True),
        ("torch.serialization load", True),
        ("builtins eval", True),
        ("os system", True),
        ("collections OrderedDict", False),
    ],
)
def test_what_a_state_dict_may_name(name: str, is_foreign: bool) -> None:
    module, attribute = name.split()
    scan = scan_pickles(f"c{module}\n{attribute}\n.".encode())
    assert bool(scan.foreign) is is_foreign
