"""Where the batch goes in a view."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.frontends.torch.rebatch import Followed, Rebatcher  # noqa: E402


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


def adapted(
    name: str, arguments: dict[str, object], *, exported: int, followed: Followed, **before: list[int]
) -> object:
    values = {key: {"sizes": [{"as_int": size} for size in sizes]} for key, sizes in before.items()}
    node = {"inputs": [{"name": key, "arg": {"as_tensor": {"name": key}}} for key in before]}
    rebatcher = Rebatcher(exported=exported, wanted=7, followed=followed)
    return rebatcher.adapt(f"torch.ops.aten.{name}.default", arguments, graph={"tensor_values": values}, node=node)


@pytest.mark.parametrize(
    ("exported", "shape", "counts", "expected"),
    [
        (2, (1, 5, 8), [2, 1, 1], [7, 1, 1]),
        (2, (5, 8), [2, 1, 1], [7, 1, 1]),
        (2, (5, 1, 8), [1, 2, 1], [1, 7, 1]),
        (2, (5, 8), [2, 1], [7, 1]),
        (2, (1, 5, 8), [1, 2, 1], [1, 2, 1]),
        (2, (1, 1, 8), [2, 2, 1], [7, 2, 1]),
        (1, (1, 5, 8), [1, 1, 1], [7, 1, 1]),
        (1, (1, 5, 8), [1, 4, 1], [1, 4, 1]),
        (1, (5, 8), [1, 1], [1, 1]),
    ],
)
def test_a_table_is_repeated_for_each_sample(
    exported: int, shape: tuple[int, ...], counts: list[int], expected: list[int]
) -> None:
    arguments = {"self": torch.empty(shape, device="meta"), "repeats": counts}
    got = adapted("repeat", arguments, exported=exported, followed=Followed.REPEATS, self=list(shape))
    assert got == {**arguments, "repeats": expected}
    assert adapted("repeat", arguments, exported=exported, followed=Followed.VIEWS, self=list(shape)) == arguments


def test_what_follows_the_batch_by_itself_is_not_repeated_more_often() -> None:
    arguments = {"self": torch.empty(7, 1, 8, device="meta"), "repeats": [1, 2, 1]}
    assert adapted("repeat", arguments, exported=2, followed=Followed.RANGES, self=[2, 1, 8]) == arguments


def test_ranges_of_as_many_numbers_as_samples() -> None:
    offsets = {"start": 0, "end": 18, "step": 9}
    assert adapted("arange", offsets, exported=2, followed=Followed.RANGES) == {**offsets, "end": 63}
    assert adapted("arange", {"end": 2}, exported=2, followed=Followed.RANGES) == {"end": 7}
    assert adapted("arange", {"end": 2}, exported=2, followed=Followed.REPEATS) == {"end": 2}
    assert adapted("arange", {"end": 1}, exported=1, followed=Followed.RANGES) == {"end": 1}
    begin = {"start": 0, "end": 9, "step": 9}
    assert adapted("arange", begin, exported=1, followed=Followed.RANGES) == {**begin, "end": 63}


@pytest.mark.parametrize("last", [False, True])
def test_offsets_of_bags_follow_their_indices(last: bool) -> None:
    held = {
        "indices": torch.empty(63, dtype=torch.int64, device="meta"),
        "offsets": torch.empty(2 + last, dtype=torch.int64, device="meta"),
        "include_last_offset": last,
    }
    got = adapted("_embedding_bag", held, exported=2, followed=Followed.RANGES, indices=[18], offsets=[2 + last])
    assert isinstance(got, dict)
    assert got["offsets"].shape == (7 + last,)
