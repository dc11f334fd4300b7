"""A forward pass that fails says the same as a module and as a TorchScript file."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dippm
from dippm.errors import DippmError, ModelReadError, UnsupportedError
from dippm.graph import DType

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # fails
            return self.layer(x)
        return x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(x)


class Keep(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x[x > 0])  # fails


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(9, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # fails


class Strict(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != 3:
            raise ValueError("three wanted")  # fails
        return x


class Beyond(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = [x.shape[0], x.shape[1]]
        return x * sizes[2]  # fails


def _line(kind: type) -> int:
    lines, start = inspect.getsourcelines(kind)
    return start + next(place for place, line in enumerate(lines) if "# fails" in line)


def _error(model: Any) -> DippmError:
    with pytest.raises(DippmError) as caught:
        dippm.load(model, input="8")
    return caught.value


FAILING = [
    (Gate, Gate, "decides by the values"),
    (Outer, Gate, "decides by the values"),
    (Keep, Keep, "sizes depend on the values"),
    (Layer, Layer, "a linear layer takes 9 features"),
    (Strict, Strict, "ValueError"),
    (Beyond, Beyond, "list index out of range"),
]


@pytest.mark.parametrize(("kind", "failing", "text"), FAILING)
def test_a_script_fails_as_its_module_does(
    tmp_path: Path, save_script: Callable[..., Path], kind: type[nn.Module], failing: type, text: str
) -> None:
    module, script = _error(kind()), _error(save_script(kind(), tmp_path / "m.pt"))
    assert script.code == module.code
    for error in (module, script):
        assert text in str(error)
        assert f"{Path(__file__).name}:{_line(failing)}" in str(error)


@pytest.mark.parametrize("kind", [Keep, Layer])
def test_a_trace_names_the_line_too(tmp_path: Path, save_script: Callable[..., Path], kind: type[nn.Module]) -> None:
    path = save_script(kind(), tmp_path / "m.pt", example=torch.ones(1, 9))
    assert f"{Path(__file__).name}:{_line(kind)}" in str(_error(path))


def test_the_cure_of_a_script_names_the_module_that_was_scripted(
    tmp_path: Path, save_script: Callable[..., Path]
) -> None:
    path = save_script(Gate(), tmp_path / "gate.pt")
    assert "the module that was scripted" in (_error(path).cure or "")
    assert "scripted" not in (_error(Gate()).cure or "")
    save_script(Gate(), path, example=torch.ones(1, 8))  # the cure, taken
    assert [node.source_op for node in dippm.load(path, input="8").nodes] == ["aten.linear"]


def test_a_module_that_calls_a_script_is_told_what_the_script_says() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mixed = nn.Sequential(nn.Linear(8, 8), torch.jit.script(Gate()))
    error = _error(mixed)
    assert error.code == "torch.data_dependent"
    assert f"{Path(__file__).name}:{_line(Gate)}" in str(error)


class Rescued(nn.Module):
    """Goes on after an operator that failed, to fail in a script that has run none."""

    def __init__(self) -> None:
        super().__init__()
        self.strict = torch.jit.script(Strict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            torch.linalg.cross(x, x)
        except RuntimeError:
            x = torch.relu(x)
        return self.strict(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_an_exception_that_the_module_caught_is_not_its_error() -> None:
    assert "ValueError" in str(error := _error(Rescued()))
    assert "three wanted" in str(error)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.layer = nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(ids))


@pytest.mark.parametrize("is_traced", [False, True])
def test_an_embedding_of_a_script_takes_integers(
    tmp_path: Path, save_script: Callable[..., Path], is_traced: bool
) -> None:
    example = torch.zeros(1, 5, dtype=torch.int64) if is_traced else None
    graph = dippm.load(save_script(Words(), tmp_path / "m.pt", example=example), input="5")
    assert [graph.tensors[index].dtype for index in graph.inputs] == [DType.INT64]
    assert graph.fixed_batch is None


def test_floating_point_numbers_that_were_asked_for_are_refused(
    tmp_path: Path, save_script: Callable[..., Path]
) -> None:
    with pytest.raises(DippmError) as caught:
        dippm.load(save_script(Words(), tmp_path / "m.pt"), input="5:float32")
    assert caught.value.code == "input.dtype_wrong"


def _quantised(width: int, dtype: torch.dtype = torch.qint8) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(width, width), nn.ReLU()).eval(), {nn.Linear}, dtype=dtype
        )


# Small weights are loaded with their values, and large ones without, which PyTorch cannot pack then.
@pytest.mark.parametrize("width", [8, 256])
@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize(
    ("dtype", "operator"), [("qint8", "quantized.linear_dynamic"), ("float16", "quantized.linear_dynamic_fp16")]
)
def test_quantised_scripts_are_refused_by_name(
    tmp_path: Path, save_script: Callable[..., Path], width: int, is_traced: bool, dtype: str, operator: str
) -> None:
    module = _quantised(width, getattr(torch, dtype))
    path = save_script(module, tmp_path / "m.pt", example=torch.ones(1, width) if is_traced else None)
    with pytest.raises(UnsupportedError) as caught:
        dippm.load(path, input=str(width))
    assert caught.value.code == "torch.quantised"
    assert operator in str(caught.value)
    assert "pack" not in str(caught.value)
    assert "quantised from" in (caught.value.cure or "")


def test_quantised_modules_are_refused_by_name() -> None:
    error = _error(_quantised(8))
    assert error.code == "torch.quantised"
    assert "quantized.linear_dynamic" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    ],
)
def test_a_gpu_that_is_asked_for_and_is_not_there_is_no_wrong_shape(error: Exception) -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    with pytest.raises(UnsupportedError, match=r"test_forward_errors\.py:\d+") as caught:
        dippm.load(Asks(), input="8")
    assert caught.value.code == "torch.needs_gpu"
    assert caught.value.cure is not None
    assert "torch.cuda.is_available()" in caught.value.cure


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.requires_grad_(True)
            return torch.autograd.grad(self.layer(x).sum(), x)[0]


class PerSample(nn.Module):
    """Gradients of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        def loss(weights: Any, sample: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.layer, weights, (sample[None],)).square().sum()

        weights = dict(self.layer.named_parameters())
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)


class Nested(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor(list(x), layout=self.layout).to_padded_tensor(0.0)


class Sparse(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(8).to_sparse(layout=layout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(self.matrix, x.reshape(8, -1))


@pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage|invariant checks).*:UserWarning")
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (Forces, "torch.differentiates"),
        (PerSample, "torch.differentiates"),
        (lambda: Nested(torch.jagged), "torch.sparse"),
        (lambda: Nested(torch.strided), "torch.sparse"),
        (lambda: Sparse(torch.sparse_coo), "torch.sparse"),
        (lambda: Sparse(torch.sparse_csr), "torch.sparse"),
        (lambda: Sparse(torch.sparse_csc), "torch.sparse"),
    ],
)
def test_what_cannot_be_recorded_is_no_wrong_shape(make: Callable[[], nn.Module], code: str, mode: str) -> None:
    with pytest.raises(UnsupportedError, match=r"test_forward_errors\.py:\d+") as caught:
        dippm.load(make(), input="8", mode=mode)
    assert caught.value.code == code


@torch.library.custom_op("dippm_tests::twice", mutates_args=())
def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_an_operator_of_the_models_own_without_a_shape_is_no_wrong_shape() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _twice(x)

    error = _error(Twice())
    assert error.code == "torch.no_shape_rule"
    assert "register_fake" in (error.cure or "")


def test_an_operator_of_pytorch_without_a_shape_is_to_be_left_out() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.histogram(x, 4)[0]

    error = _error(Counts())
    assert error.code == "torch.no_shape_rule"
    assert "without that operator" in (error.cure or "")


def test_a_script_that_never_runs_is_not_told_to_take_another_shape(
    tmp_path: Path, save_script: Callable[..., Path]
) -> None:
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    error = _error(save_script(module, tmp_path / "m.pt"))
    assert error.code == "torch.script_cannot_run"
    assert "remove_parametrizations" in (error.cure or "")


class Mistaken(nn.Module):
    """A layer and a mistake in the code around it, of each kind that Python tells apart."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.mistake = mistake

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.layer(x)
        return getattr(self, self.mistake)(x, mask)  # type: ignore[no-any-return]

    def attribute(self, x: Any, mask: Any) -> Any:
        return x.no_such_method()  # fails: attribute

    def absent(self, x: Any, mask: Any) -> Any:
        return x * mask.sum()  # fails: absent

    def name(self, x: Any, mask: Any) -> Any:
        return x + undefined  # type: ignore[name-defined]  # noqa: F821  # fails: name

    def unbound(self, x: Any, mask: Any) -> Any:
        if mask is not None:
            scale = 2
        return x * scale  # fails: unbound

    def module(self, x: Any, mask: Any) -> Any:
        import not_there_at_all  # type: ignore[import-not-found]  # fails: module

        return not_there_at_all.f(x)

    def key(self, x: Any, mask: Any) -> Any:
        return {"a": x}["b"]  # fails: key

    def arguments(self, x: Any, mask: Any) -> Any:
        return self.layer(x, mask)  # fails: arguments

    def fraction(self, x: Any, mask: Any) -> Any:
        return x.view(-1, x.shape[1] / 2)  # fails: fraction

    def unwritten(self, x: Any, mask: Any) -> Any:
        raise NotImplementedError("later")  # fails: unwritten

    def endless(self, x: Any, mask: Any) -> Any:
        return self.endless(x, mask)  # fails: endless


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("attribute", "AttributeError: 'Tensor' object has no attribute 'no_such_method'."),
        ("absent", "AttributeError: 'NoneType' object has no attribute 'sum'."),
        ("name", "NameError: name 'undefined' is not defined."),
        ("unbound", "UnboundLocalError: "),
        ("module", "ModuleNotFoundError: No module named 'not_there_at_all'."),
        ("key", "KeyError: 'b'."),
        ("arguments", "TypeError: Linear.forward() takes 2 positional arguments but 3 were given."),
        ("fraction", "TypeError: view()"),
        ("unwritten", "NotImplementedError: later."),
        ("endless", "RecursionError: "),
    ],
)
@pytest.mark.parametrize("batch_hint", [None, 4])
def test_a_mistake_in_the_models_code_is_told_as_one(mistake: str, text: str, batch_hint: int | None) -> None:
    with pytest.raises(ModelReadError) as caught:
        dippm.load(Mistaken(mistake), input="8", batch_hint=batch_hint)
    error = caught.value
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = 1 + next(place for place, line in enumerate(lines) if line.endswith(f"# fails: {mistake}"))
    assert error.code == "torch.forward_failed"
    assert f"The code of Mistaken failed at {__file__}:{line}: {text}" in str(error)


def test_a_module_without_a_forward_is_told() -> None:
    error = _error(nn.Module())
    assert error.code == "torch.forward_failed"
    assert 'missing the required "forward" function' in str(error)


def test_an_operator_that_raises_as_a_mistake_does_is_none() -> None:
    with torch.library._scoped_library("dippm_mistakes", "DEF") as library:
        library.define("half(Tensor x) -> Tensor")

        class Own(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.dippm_mistakes.half(x)  # type: ignore[no-any-return]

        assert _error(Own()).code == "torch.no_shape_rule"


@pytest.mark.parametrize(
    ("read", "asked"),
    [
        (lambda x: np.asarray(x.detach().cpu()), "Tensor.numpy"),
        (lambda x: x.untyped_storage().tolist(), "Tensor.untyped_storage"),
    ],
)
def test_values_that_are_read_past_all_operators_are_no_mistake(read: Callable[[Any], Any], asked: str) -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            read(x)
            return x * 2

    error = _error(Reads())
    assert error.code == "torch.data_dependent"
    assert f"({asked})" in str(error)


def test_what_pytorch_has_not_written_is_no_mistake_of_the_models() -> None:
    class Seeks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.distributions.Distribution(validate_args=False).sample_n(2)
            return x * 2

    assert _error(Seeks()).code == "torch.no_shape_rule"
