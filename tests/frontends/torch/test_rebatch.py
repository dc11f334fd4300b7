"""Where the batch goes in a view."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.frontends.torch.rebatch import Rebatcher  # noqa: E402


@pytest.mark.parametrize(
    ("before", "after", "axis", "expected"),
    [
        # exported source shape, exported view, the source's batch axis, view at batch 7
        ((1, 197, 768), (1, 197, 12, 64), 0, (7, 197, 12, 64)),
        ((1, 197, 768), (197, 768), 0, (1379, 768)),
        ((197, 1, 768), (197, 768), 1, (1379, 768)),
        ((197, 768), (197, 1, 768), 0, (197, 7, 768)),
        ((197, 1, 768), (197, 12, 64), 1, (197, 84, 64)),
        ((12, 197, 64), (1, 12, 197, 64), 0, (7, 12, 197, 64)),
        ((1, 8, 7, 8, 7, 96), (64, 49, 96), 0, (448, 49, 96)),
        ((64, 49, 96), (1, 8, 8, 7, 7, 96), 0, (7, 8, 8, 7, 7, 96)),
        ((1, 512, 1, 1), (1, 512), 0, (7, 512)),
        ((1, 512), (-1, 512), 0, (-1, 512)),
        ((1, 12, 64), (768,), 0, (5376,)),
    ],
)
def test_views_exported_for_one(
    before: tuple[int, ...], after: tuple[int, ...], axis: int, expected: tuple[int, ...]
) -> None:
    shape = list(before)
    shape[axis] *= 7
    source = torch.empty(shape, device="meta")
    sizes = [{"as_int": size} for size in before]
    graph = {"tensor_values": {"x": {"sizes": sizes}}}
    node = {"inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}]}
    adapted = Rebatcher(exported=1, wanted=7).adapt(
        "torch.ops.aten.view.default", {"self": source, "size": list(after)}, graph=graph, node=node
    )
    got = tuple(adapted["size"])
    assert source.view(got).shape == source.view(expected).shape


def test_class_token_is_repeated() -> None:
    token, patches = torch.empty(1, 1, 8, device="meta"), torch.empty(7, 4, 8, device="meta")
    adapted = Rebatcher(exported=1, wanted=7).adapt(
        "torch.ops.aten.cat.default", {"tensors": [token, patches], "dim": 1}, graph={}, node={}
    )
    assert torch.cat(adapted["tensors"], 1).shape == (7, 5, 8)
