"""Models that take several, keyword, nested, integer and unbatched inputs, as modules and as exported programs."""

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import dippm
from dippm.errors import UsageError
from dippm.graph import DType, Graph

torch = pytest.importorskip("torch")

_IDS, _MASK = "12:int64", "12:bool"


@dataclass
class Batch:
    ids: object
    mask: object
    scale: float = 1.0


class Nested(torch.nn.Module):
    """Takes a dict or a dataclass, a tensor, a table without a batch, an optional pair, a flag and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 16)
        self.layer = torch.nn.Linear(16, 16)
        self.of_table = torch.nn.Linear(8, 16)

    def forward(self, batch, extra, *, table, pair=None, flip=False, repeats: int = 1):
        ids, mask = (batch["ids"], batch["mask"]) if isinstance(batch, dict) else (batch.ids, batch.mask)
        x = self.embedding(ids) * mask.unsqueeze(-1) + self.of_table(table)
        if pair is not None:
            x = x + pair[0] * pair[1]
        for _ in range(repeats):
            x = self.layer(x)
        x = x + extra
        return {"result": x.flip(1) if flip else x}


def _kinds(graph: Graph) -> Counter[str]:
    return Counter(node.kind.value for node in graph.nodes)


def _shapes(graph: Graph) -> dict[str, str]:
    return {
        graph.tensors[index].name: ",".join(map(str, graph.tensors[index].shape)) + f":{graph.tensors[index].dtype}"
        for index in graph.inputs
    }


@pytest.mark.parametrize("batch", [{"ids": _IDS, "mask": _MASK}, Batch(_IDS, _MASK)])
def test_nested_inputs(batch: object) -> None:
    graph = dippm.load(Nested(), input={"batch": batch, "extra": (12, 16), "table": "12,8:unbatched"})
    assert graph.fixed_batch is None
    assert _shapes(graph) == {
        "batch.ids": "N,12:int64",
        "batch.mask": "N,12:bool",
        "extra": "N,12,16:float32",
        "table": "12,8:float32",
    }
    assert _kinds(graph)["linear"] == 2
    answer = dippm.predict(graph, batch=4)
    assert answer.inputs["table"] == (12, 8)
    assert answer.inputs["batch.ids"] == (4, 12)


def test_optional_arguments_flags_and_numbers() -> None:
    given = {"batch": {"ids": _IDS, "mask": _MASK}, "extra": "12,16", "table": "12,8:unbatched"}
    plain = dippm.load(Nested(), input=given)
    more = dippm.load(
        Nested(), input={**given, "pair": ["12,16", ((12, 16), "float32")], "flip": True, "repeats": "=3"}
    )
    assert _kinds(more) - _kinds(plain) == Counter(linear=2, mul=1, add=1, copy=1)
    assert list(_shapes(more))[-2:] == ["pair.0", "pair.1"]


def test_nested_inputs_by_dotted_names() -> None:
    graph = dippm.load(
        Nested(),
        input={
            "batch.ids": _IDS,
            "batch.mask": _MASK,
            "extra": "12,16",
            "table": "12,8:unbatched",
            "repeats": "=2",
        },
    )
    assert _kinds(graph)["linear"] == 3


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="'extra'") as caught:
        dippm.load(Nested(), input={"batch": {"ids": _IDS, "mask": _MASK}, "table": "12,8:unbatched"})
    assert caught.value.code == "input.name_unknown"


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_an_exported_program_keeps_its_inputs(tmp_path: Path, is_dynamic: bool) -> None:
    size = 3
    ids, mask = torch.zeros(size, 12, dtype=torch.int64), torch.ones(size, 12, dtype=torch.bool)
    options = {"table": torch.zeros(12, 8), "pair": [torch.zeros(size, 12, 16)] * 2, "flip": True, "repeats": 2}
    dynamic = None
    if is_dynamic:
        first = {0: torch.export.Dim("batch")}
        dynamic = {
            "batch": {"ids": first, "mask": first}, "extra": first, "table": None, "pair": [first, first],
            "flip": None, "repeats": None,
        }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Nested().eval(),
            ({"ids": ids, "mask": mask}, torch.zeros(size, 12, 16)),
            options,
            dynamic_shapes=dynamic,
        )
        torch.export.save(program, tmp_path / "model.pt2")
    graph = dippm.load(tmp_path / "model.pt2")
    assert graph.fixed_batch is None
    assert _shapes(graph)["table"] == "12,8:float32"
    assert _shapes(graph)["batch_ids"] == "N,12:int64"
    given = {
        "batch": {"ids": _IDS, "mask": _MASK}, "extra": "12,16", "table": "12,8:unbatched", "pair": ["12,16"] * 2,
    }  # fmt: skip
    own = dippm.load(Nested(), input={**given, "flip": True, "repeats": 2})
    assert _kinds(graph) == _kinds(own) == _kinds(dippm.load(tmp_path / "model.pt2", input=given))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_what_earlier_steps_left_may_be_empty(mode: str) -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
            old = self.linear(past).softmax(-1)
            keys = torch.cat([old, self.linear(x)], 1)[:, None]
            return torch.nn.functional.scaled_dot_product_attention(keys, keys, keys)

    first, later = (
        dippm.predict(Cached(), input={"x": (8, 16), "past": (past, 16)}, batch=2, device="A100", mode=mode)
        for past in (0, 4)
    )
    passes = 3 if mode == "training" else 1
    assert first.macs >= passes * 2 * 8 * (16 * 16 + 2 * 8 * 16) * 0.9
    assert first.macs < later.macs
    assert first.latency_ms <= later.latency_ms
    assert not any(warning for warning in first.warnings if "rule" in warning)


def test_a_module_that_takes_nothing_needs_no_shapes() -> None:
    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8, 8))

        def forward(self) -> torch.Tensor:
            return self.weight @ self.weight

    for given in (None, {}):
        out = dippm.predict(Product(), input=given, batch=4, device="A100")
        assert out.macs == 8**3
        assert any("No input of the model has a batch" in warning for warning in out.warnings)
    with pytest.raises(UsageError) as caught:
        dippm.load(Product(), input="8")
    assert caught.value.code == "input.name_unknown"


class Scaled(torch.nn.Module):
    def forward(self, x, factor):
        return torch.nn.functional.relu(x) * factor


def test_one_number_for_the_whole_batch(tmp_path: Path) -> None:
    graph = dippm.load(Scaled(), input=["3,8", ((), "unbatched")])
    assert _shapes(graph) == {"input_0": "N,3,8:float32", "input_1": ":float32"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(
            torch.export.export(Scaled(), (torch.zeros(2, 3, 8), torch.tensor(2.0))), tmp_path / "scaled.pt2"
        )
    exported = dippm.load(tmp_path / "scaled.pt2")
    assert [exported.tensors[index].shape for index in exported.inputs] == [
        graph.tensors[index].shape for index in graph.inputs
    ]


class Gather(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, nodes, edges):
        return self.layer(nodes).index_add(0, edges[1], nodes[edges[0]])


def test_a_model_without_any_batch() -> None:
    graph = dippm.load(Gather(), input=["50,8:unbatched", "2,90:int64:unbatched"])
    assert _shapes(graph) == {"input_0": "50,8:float32", "input_1": "2,90:int64"}
    assert {tensor.dtype for tensor in graph.tensors} == {DType.FLOAT32, DType.INT64}
    assert dippm.predict(graph).macs == 50 * 8 * 8


@pytest.mark.parametrize("is_scripted", [False, True])
def test_the_names_that_are_printed_are_understood(is_scripted: bool) -> None:
    module = Gather()
    if is_scripted:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.trace(module, (torch.ones(5, 8), torch.ones(2, 9, dtype=torch.int64)))
    given = {"input_1": "2,90:int64:unbatched", "input_0": "50,8:unbatched"}
    printed = _shapes(dippm.load(module, input=given))
    assert printed == {"input_0": "50,8:float32", "input_1": "2,90:int64"}
    own = {"nodes": "50,8:unbatched", "edges": "2,90:int64:unbatched"}
    assert _shapes(dippm.load(module, input=own)).keys() == {"nodes", "edges"}
    with pytest.raises(UsageError) as caught:
        dippm.load(module, input={"input_0": "50,8:unbatched", "edges": "2,90:int64:unbatched"})
    assert caught.value.code == "input.name_unknown"


def test_a_printed_name_is_the_module_s_own_where_it_has_it() -> None:
    class Turned(torch.nn.Module):
        def forward(self, x, input):  # noqa: A002 - PyTorch's own layers call it so
            return x + input[:, :1]

    graph = dippm.load(Turned(), input={"x": (4,), "input": (8,)})
    assert _shapes(graph) == {"x": "N,4:float32", "input": "N,8:float32"}
    assert _shapes(dippm.load(torch.nn.Linear(8, 8), input={"input": (8,)})) == {"input": "N,8:float32"}
    assert _shapes(dippm.load(torch.nn.Sequential(torch.nn.ReLU()), input={"input": (8,)})) == {"input": "N,8:float32"}
