from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dippm.datasets.graph_cache import GraphCache, build_graphs, read_recipe
from dippm.datasets.recipes.collections import load_collection
from dippm.errors import UsageError
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec
from dippm.graph.fingerprint import fingerprint

KEY = "0123456789abcdef"

_sizes = st.integers(min_value=0, max_value=2**40)
_dims = st.builds(Dim, _sizes, _sizes)
_attributes = st.dictionaries(
    st.text(max_size=5),
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.tuples(_sizes, _sizes),
    max_size=3,
)
_tensors = st.lists(
    st.builds(
        TensorSpec,
        name=st.text(max_size=8),
        shape=st.lists(_dims, max_size=4).map(tuple),
        dtype=st.sampled_from(DType),
        role=st.sampled_from([role for role in TensorRole if role is not TensorRole.ACTIVATION]),
        storage_bytes_per_sample=st.none() | _sizes,
        storage_bytes_fixed=st.none() | _sizes,
    ),
    min_size=1,
    max_size=5,
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    tensors = draw(_tensors)
    indices = st.integers(min_value=0, max_value=len(tensors) - 1)
    nodes = st.builds(
        Node,
        kind=st.sampled_from(OpKind),
        inputs=st.lists(indices | st.just(-1), max_size=3).map(tuple),
        outputs=st.lists(indices, max_size=2).map(tuple),
        attributes=_attributes,
        scope=st.text(max_size=8),
        source_op=st.text(max_size=8),
        releases=st.lists(indices, max_size=2).map(tuple),
    )
    return Graph(
        source=draw(st.text(max_size=8)),
        framework="test",
        tensors=tuple(tensors),
        nodes=tuple(draw(st.lists(nodes, max_size=5))),
        inputs=(0,),
        outputs=(0,),
        has_lifetimes=draw(st.booleans()),
        fixed_batch=draw(st.none() | st.integers(1, 9)),
        fixed_batch_reason=draw(st.text(max_size=8)),
        unsupported_ops=draw(st.dictionaries(st.text(max_size=5), st.integers(1, 9), max_size=2)),
        warnings=tuple(draw(st.lists(st.text(max_size=5), max_size=2))),
    )


@given(graph=graphs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_graph_is_read_back_as_it_was(graph: Graph, tmp_path: Path) -> None:
    cache = GraphCache(tmp_path)
    cache.save(KEY, graph, fingerprint="f")
    entry = cache.load(KEY)
    assert entry is not None
    assert entry.graph == graph
    assert entry.fingerprint == "f"


@pytest.fixture
def entry_file(tmp_path: Path, builder: Any) -> Path:
    image = builder.input(builder.N, 3, 8, 8)
    builder.node(OpKind.RELU, [image], builder.N, 3, 8, 8)
    GraphCache(tmp_path).save(KEY, builder.graph(), fingerprint="f")
    return tmp_path / KEY[:2] / f"{KEY}.json.gz"


def test_a_damaged_entry_counts_as_absent(entry_file: Path, tmp_path: Path) -> None:
    cache, whole = GraphCache(tmp_path), entry_file.read_bytes()
    assert cache.load(KEY) is not None
    for end in range(len(whole)):
        entry_file.write_bytes(whole[:end])
        assert cache.load(KEY) is None
    for place in range(10, len(whole)):
        entry_file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert cache.load(KEY) is None
    for content in (b"[]", b'{"format":0}', b"null", b'{"format":1,"model_key":"0123456789abcdef"}'):
        entry_file.write_bytes(gzip.compress(content))
        assert cache.load(KEY) is None


def test_equal_graphs_make_equal_files_and_another_models_file_is_not_taken(entry_file: Path, tmp_path: Path) -> None:
    cache, before = GraphCache(tmp_path), entry_file.read_bytes()
    entry = cache.load(KEY)
    assert entry is not None
    cache.save(KEY, entry.graph, fingerprint="f")
    assert entry_file.read_bytes() == before
    assert list(cache.keys()) == [KEY]
    other = "01ffffffffffffff"
    entry_file.rename(entry_file.with_name(f"{other}.json.gz"))
    assert cache.load(other) is None


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, builder: Any) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError) as caught:
        GraphCache(tmp_path / "file").save(KEY, builder.graph(builder.input(1)), fingerprint="f")
    assert caught.value.code == "graph_cache.unwritable"


@pytest.mark.slow
def test_graphs_of_a_collection_are_built_once_and_broken_ones_again(tmp_path: Path) -> None:
    recipes = load_collection("cpu-small")[:6]
    models = {recipe.model_key: recipe for recipe in recipes}
    cache, seen = GraphCache(tmp_path), []
    assert build_graphs(recipes, cache, jobs=1, on_progress=lambda done, total: seen.append((done, total))) == []
    assert seen == [(done, len(models)) for done in range(len(models) + 1)]
    assert sorted(cache.keys()) == sorted(models)
    for key, recipe in models.items():
        entry = cache.load(key)
        assert entry is not None
        graph = read_recipe(recipe)
        assert entry.graph == graph
        assert entry.fingerprint == fingerprint(graph)
    files = sorted(tmp_path.glob("*/*"))
    times = {path: os.stat(path).st_mtime_ns for path in files}
    files[0].write_bytes(files[0].read_bytes()[:-7])
    seen.clear()
    assert build_graphs(recipes, cache, jobs=1, on_progress=lambda done, total: seen.append((done, total))) == []
    assert seen == [(len(models) - 1, len(models)), (len(models), len(models))]
    assert {path: os.stat(path).st_mtime_ns for path in files[1:]} == {path: times[path] for path in files[1:]}
    assert all(cache.load(key) is not None for key in models)


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    values = load_collection("cpu-small")[0].to_dict() | {"architecture": "no:such"}
    recipe = type(load_collection("cpu-small")[0]).from_dict(values)
    (failure,) = build_graphs([recipe], GraphCache(tmp_path), jobs=1)
    assert failure.recipe.model_key == recipe.model_key
    assert "no:such" in failure.reason
    with pytest.raises(UsageError, match="processes"):
        build_graphs([recipe], GraphCache(tmp_path), jobs=0)
