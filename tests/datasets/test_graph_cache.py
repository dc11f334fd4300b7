from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dippm.costs.conditions import Mode
from dippm.datasets import graph_cache
from dippm.datasets.graph_cache import GraphCache, build_graphs, read_recipe
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import DippmError, UsageError
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
        other_batches=tuple(draw(st.lists(st.integers(1, 9), max_size=2))),
        known_batches=tuple(draw(st.lists(st.integers(1, 9), max_size=2))),
        unsupported_ops=draw(st.dictionaries(st.text(max_size=5), st.integers(1, 9), max_size=2)),
        warnings=tuple(draw(st.lists(st.text(max_size=5), max_size=2))),
    )


@given(graph=graphs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_graph_is_read_back_as_it_was(graph: Graph, tmp_path: Path) -> None:
    with TemporaryDirectory(dir=tmp_path) as folder:
        cache = GraphCache(folder)
        cache.save(KEY, graph, fingerprint="f")
        entry = cache.load(KEY, batch=graph.fixed_batch or 1)
        assert entry is not None
        assert entry.graph == graph
        assert entry.fingerprint == "f"
        assert (cache.load(KEY, batch=11) is None) == (graph.fixed_batch is not None)


@pytest.fixture
def entry_file(tmp_path: Path, builder: Any) -> Path:
    image = builder.input(builder.N, 3, 8, 8)
    builder.node(OpKind.RELU, [image], builder.N, 3, 8, 8)
    GraphCache(tmp_path).save(KEY, builder.graph(), fingerprint="f")
    return tmp_path / KEY[:2] / f"{KEY}.json.gz"


def test_a_damaged_entry_counts_as_absent(entry_file: Path, tmp_path: Path) -> None:
    cache, whole = GraphCache(tmp_path), entry_file.read_bytes()
    assert cache.load(KEY, batch=1) is not None
    for end in range(len(whole)):
        entry_file.write_bytes(whole[:end])
        assert cache.load(KEY, batch=1) is None
    for place in range(10, len(whole)):
        entry_file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert cache.load(KEY, batch=1) is None
    for content in (b"[]", b'{"format":0}', b"null", b'{"format":1,"model_key":"0123456789abcdef"}'):
        entry_file.write_bytes(gzip.compress(content))
        assert cache.load(KEY, batch=1) is None


def test_equal_graphs_make_equal_files_and_another_models_file_is_not_taken(entry_file: Path, tmp_path: Path) -> None:
    cache, before = GraphCache(tmp_path), entry_file.read_bytes()
    entry = cache.load(KEY, batch=1)
    assert entry is not None
    cache.save(KEY, entry.graph, fingerprint="f")
    assert entry_file.read_bytes() == before
    assert list(cache.keys()) == [KEY]
    other = "01ffffffffffffff"
    entry_file.rename(entry_file.with_name(f"{other}.json.gz"))
    assert cache.load(other, batch=1) is None


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, builder: Any) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError) as caught:
        GraphCache(tmp_path / "file").save(KEY, builder.graph(builder.input(1)), fingerprint="f")
    assert caught.value.code == "graph_cache.unwritable"


@pytest.mark.slow
def test_graphs_of_a_collection_are_built_once_and_broken_ones_again(tmp_path: Path) -> None:
    recipes = load_collection("cpu-small")[:3]
    models = {recipe.model_key: recipe for recipe in recipes}
    cache, seen = GraphCache(tmp_path), []
    assert build_graphs(recipes, cache, jobs=1, on_progress=lambda done, total: seen.append((done, total))) == []
    assert seen == [(done, len(models)) for done in range(len(models) + 1)]
    assert sorted(cache.keys()) == sorted(models)
    for key, recipe in models.items():
        entry = cache.load(key, batch=recipe.batch)
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
    assert all(cache.load(key, batch=recipe.batch) is not None for key, recipe in models.items())


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    values = load_collection("cpu-small")[0].to_dict() | {"architecture": "no:such"}
    recipe = type(load_collection("cpu-small")[0]).from_dict(values)
    (failure,) = build_graphs([recipe], GraphCache(tmp_path), jobs=1)
    assert failure.recipe.model_key == recipe.model_key
    assert "no:such" in failure.reason
    with pytest.raises(UsageError, match="processes"):
        build_graphs([recipe], GraphCache(tmp_path), jobs=0)


@pytest.fixture
def read_models(monkeypatch: pytest.MonkeyPatch, new_builder: Callable[[], Any]) -> list[tuple[str, int]]:
    """The models and batches that are read, in this process; graphs of "open" hold for every batch, others for one."""
    read = []

    def read_recipe(recipe: Recipe, *, mode: Mode = Mode.INFERENCE) -> Graph:
        read.append((recipe.architecture, recipe.batch))
        builder = new_builder()
        batch = builder.N if recipe.architecture == "open" else recipe.batch
        builder.node(OpKind.RELU, [builder.input(batch, 4)], batch, 4)
        graph: Graph = builder.graph()
        if recipe.architecture == "open":
            return graph
        held = recipe.batch if recipe.architecture == "fixed" else 1
        return replace(graph, fixed_batch=held, fixed_batch_reason="It asks for its batch.")

    monkeypatch.setattr(graph_cache, "read_recipe", read_recipe)
    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", lambda jobs, **_: ThreadPoolExecutor(jobs))
    return read


def test_a_graph_for_one_batch_alone_is_built_for_each(tmp_path: Path, read_models: list[tuple[str, int]]) -> None:
    base = load_collection("cpu-small")[0]
    fixed, opened = (
        [replace(base, architecture=name, batch=batch) for batch in (8, 1, 32)] for name in ("fixed", "open")
    )
    cache, seen = GraphCache(tmp_path), []
    first = [*fixed[:2], *opened, *fixed[:1]]
    assert build_graphs(first, cache, jobs=1, on_progress=lambda *counts: seen.append(counts)) == []
    assert sorted(read_models) == [("fixed", 1), ("fixed", 8), ("open", 8)]
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert set(cache.keys()) == {fixed[0].model_key, opened[0].model_key}
    read_models.clear()
    assert build_graphs(first, cache, jobs=1) == []
    assert read_models == []
    assert build_graphs(fixed, cache, jobs=1) == []
    assert read_models == [("fixed", 32)]
    for recipe in fixed:
        entry = cache.load(recipe.model_key, batch=recipe.batch)
        assert entry is not None
        assert entry.graph.fixed_batch == recipe.batch
        assert entry.graph.tensors[0].shape[0].at(99) == recipe.batch
    assert cache.load(fixed[0].model_key, batch=2) is None
    assert cache.load(opened[0].model_key, batch=2) is not None


def test_a_batch_that_a_model_cannot_have_is_named(tmp_path: Path, read_models: list[tuple[str, int]]) -> None:
    single = [replace(load_collection("cpu-small")[0], architecture="single", batch=batch) for batch in (1, 8, 32)]
    (failure,) = build_graphs(single, GraphCache(tmp_path), jobs=1)
    assert failure.recipe == single[1]
    assert "batch 1 only: It asks for its batch." in failure.reason
    assert read_models == [("single", 1), ("single", 8)]
    assert GraphCache(tmp_path).load(single[0].model_key, batch=1) is not None


def test_graphs_of_a_mode_are_known_apart(tmp_path: Path, new_builder: Callable[[], Any]) -> None:
    folder = tmp_path / "graphs"
    evaluated = GraphCache(folder)
    trained = evaluated.of(Mode.TRAINING)
    assert (trained.of(Mode.TRAINING), trained.of(Mode.INFERENCE).mode) == (trained, Mode.INFERENCE)
    graphs = {}
    for cache, kind in ((evaluated, OpKind.RELU), (trained, OpKind.DROPOUT)):
        builder = new_builder()
        builder.node(kind, [builder.input(builder.N, 4)], builder.N, 4)
        graphs[cache.mode] = builder.graph()
        assert cache.load(KEY, batch=1) is None
        cache.save(KEY, graphs[cache.mode], fingerprint=kind.value)
    for cache in (evaluated, trained):
        entry = cache.load(KEY, batch=1)
        assert entry is not None
        assert entry.graph == graphs[cache.mode]
        assert list(cache.keys()) == [KEY]
    trained.save("ab" * 8, graphs[Mode.TRAINING], fingerprint="f")
    assert list(evaluated.keys()) == [KEY]
    assert list(trained.keys()) == sorted(["ab" * 8, KEY])


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "from dataclasses import replace\n"
        "from dippm.datasets.graph_cache import GraphCache, build_graphs\n"
        "from dippm.datasets.recipes.collections import load_collection\n"
        "recipe = replace(load_collection('cpu-small')[0], architecture='no:such')\n"
        "(failure,) = build_graphs([recipe], GraphCache('graphs'), jobs=1)\n"
        "print(failure.reason)\n"
    )
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "no:such" in run.stdout
    assert run.stderr == ""


def _die_of_some(recipes: list[Recipe], _cache: GraphCache) -> None:
    if recipes[0].architecture == "fatal":
        os._exit(1)


def _die(*_: object) -> None:
    os._exit(1)


@pytest.fixture
def _as_module(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Other processes find what stands here."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)


@pytest.mark.usefixtures("_as_module")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_model_that_ends_its_process_is_named_and_costs_no_other(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_cache, "_read_and_save", _die_of_some)
    base = load_collection("cpu-small")[0]
    recipes = [replace(base, architecture=name) for name in ("fatal", "one", "two", "three")]
    seen: list[tuple[int, int]] = []
    (failure,) = build_graphs(recipes, GraphCache(tmp_path), jobs=jobs, on_progress=lambda *at: seen.append(at))
    assert failure.recipe == recipes[0]
    assert "died" in failure.reason
    assert seen == [(done, 4) for done in range(5)]


@pytest.mark.usefixtures("_as_module")
def test_processes_that_do_not_start_are_no_failure_of_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_cache, "_prepare", _die)
    with pytest.raises(DippmError) as caught:
        build_graphs(load_collection("cpu-small")[:3], GraphCache(tmp_path), jobs=1)
    assert caught.value.code == "worker.not_started"
