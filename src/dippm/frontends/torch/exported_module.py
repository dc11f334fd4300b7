"""Runs the graph of a ``torch.export`` archive, which is data: names of operators and their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.torch.autocast_regions import region
from dippm.frontends.torch.dtypes import exported_dtype
from dippm.frontends.torch.exported_operators import import_packages, resolve_operator
from dippm.frontends.torch.plans import plan_for, refusal
from dippm.frontends.torch.rebatch import Followed, Rebatcher

__all__ = ["ATTENTION", "ExportedModule", "argument_names", "meta_tensor", "module_of"]

_Json = Mapping[str, Any]
_MEMORY_FORMATS = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format,
}  # fmt: skip
_SKIPPED = ("torch.ops.aten._assert", "torch.ops.aten.sym_constrain", "torch.ops.aten._guard", "torch._check")
_AUTOCAST = "torch.ops.higher_order.wrap_with_autocast"
_GRADIENTS = "torch.ops.higher_order.wrap_with_set_grad_enabled"
#: Class of PyTorch's own attention, as programs name it.
ATTENTION = "torch.nn.modules.activation.MultiheadAttention"
_NUMBERS = frozenset({"torch.ops.aten.item.default", "torch.ops.aten._local_scalar_dense.default"})


class ExportedModule(nn.Module):
    """The program of a ``torch.export`` archive as a module whose weights have shapes and no values.

    Args:
        program: The archive's program, parsed from its JSON.
        shared: Weights that are one tensor, as name to the name of the first.
        values: Values of some buffers and constants.
        exported_batch: Batch size that the program was exported for where it is written into it, else None.
    """

    def __init__(
        self,
        program: _Json,
        *,
        shared: Mapping[str, str],
        values: Mapping[str, torch.Tensor],
        exported_batch: int | None,
    ) -> None:
        super().__init__()
        module = program["graph_module"]
        self._graph: _Json = module["graph"]
        import_packages(_targets(self._graph))
        self._weights: dict[str, torch.Tensor] = {}
        self._constant_inputs: dict[str, Any] = {}
        self.input_names: list[str] = []
        self._exported_batch = exported_batch
        self._scope = ""
        self._rebatcher: Rebatcher | None = None
        self._plans: dict[int, list[tuple[_Json, tuple[str, ...]]]] = {}
        # Where none of its tensors is on a GPU there may have been none.
        self._is_of_gpu = any(
            (meta.get("device") or {}).get("type") == "cuda" for meta in self._graph["tensor_values"].values()
        )
        by_name: dict[str, torch.Tensor] = {}
        for spec in module["signature"]["input_specs"]:
            for kind, table in (("parameter", self._parameters), ("buffer", self._buffers)):
                if kind in spec:
                    name = spec[kind][f"{kind}_name"]
                    argument = spec[kind]["arg"]["name"]
                    first = shared.get(name, name)
                    if first not in by_name:
                        meta = self._graph["tensor_values"][argument]
                        tensor = _known_tensor(meta, None if kind == "parameter" else values.get(first))
                        can_train = tensor.is_floating_point() or tensor.is_complex()
                        is_trained = can_train and bool(meta.get("requires_grad", True))
                        by_name[first] = nn.Parameter(tensor, is_trained) if kind == "parameter" else tensor
                    table[name] = by_name[first]  # type: ignore[assignment]
                    self._weights[argument] = by_name[first]
            if "tensor_constant" in spec:
                argument = spec["tensor_constant"]["arg"]["name"]
                name = spec["tensor_constant"]["tensor_constant_name"]
                tensor = _known_tensor(self._graph["tensor_values"][argument], values.get(name))
                self._buffers[name] = tensor
                self._weights[argument] = tensor
            if "constant_input" in spec:
                item = spec["constant_input"]
                self._constant_inputs[item["name"]] = next(iter(item["value"].values()))
            if "user_input" in spec and "as_tensor" in spec["user_input"]["arg"]:
                self.input_names.append(spec["user_input"]["arg"]["as_tensor"]["name"])
        #: Inputs with a batch, and which of their dimensions it is.
        self.batch_axes: dict[str, int] = dict.fromkeys(self.input_names, 0)
        #: Paths of the modules of PyTorch's own attention.
        self.attention_scopes = frozenset(
            path for path, kind in map(module_of, self._graph["nodes"]) if kind == ATTENTION
        )
        #: What follows the batch where it is of the exported batch's size.
        self.followed = Followed.VIEWS

    def input_meta(self, name: str) -> _Json:
        """Shape and type that an input was exported with."""
        meta: _Json = self._graph["tensor_values"][name]
        return meta

    def current_scope(self) -> str:
        """Path of the module that the running operator was exported from."""
        return self._scope

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> list[Any]:
        """Run the program on its inputs, given in order or by name."""
        values: dict[str, Any] = {**self._weights, **dict(zip(self.input_names, args, strict=False)), **kwargs}
        missing = [name for name in self.input_names if name not in values]
        if missing:
            raise ValueError(f"the program takes {len(self.input_names)} inputs; {', '.join(missing)} is missing")
        batch = next(
            (values[name].shape[axis] for name, axis in self.batch_axes.items() if values[name].dim() > axis), None
        )
        self._rebatcher = None
        if self._exported_batch is not None and batch not in {None, self._exported_batch}:
            self._rebatcher = Rebatcher(exported=self._exported_batch, wanted=int(batch or 1), followed=self.followed)
        outputs = self._run(self._graph, values)
        return list(outputs)

    def _run(self, graph: _Json, values: dict[str, Any]) -> list[Any]:
        nodes = self._plans.get(id(graph))
        if nodes is None:
            nodes = self._plans[id(graph)] = _with_last_uses(graph)
        for node, finished in nodes:
            self._run_node(graph, node, values)
            for name in finished:
                values.pop(name, None)
        return [self._value(item, values) for item in graph["outputs"]]

    def _run_node(self, graph: _Json, node: _Json, values: dict[str, Any]) -> None:
        target = str(node["target"])
        self._scope, _ = module_of(node)
        if target.startswith(_AUTOCAST):
            device, dtype, is_enabled = (self._value(item["arg"], values) for item in node["inputs"][:3])
            # What PyTorch writes without a GPU for one that is on, and of a CPU where no format is named.
            is_doubtful = (not is_enabled) if device == "cuda" else is_enabled and dtype is torch.bfloat16
            with region(is_enabled=is_enabled, dtype=dtype, is_doubtful=is_doubtful and not self._is_of_gpu):
                result: Any = self._run_inlined(node, values)
        elif target.startswith(_GRADIENTS):
            with torch.set_grad_enabled(self._value(node["inputs"][0]["arg"], values)):
                result = self._run_inlined(node, values)
        else:
            positional = [self._value(item["arg"], values) for item in node["inputs"] if not item.get("name")]
            named = {item["name"]: self._value(item["arg"], values) for item in node["inputs"] if item.get("name")}
            function = resolve_operator(target)
            if isinstance(function, torch._ops.OpOverload):
                plan = plan_for(function)
                if plan.is_refused:
                    raise refusal(plan)
                if plan.is_skipped:
                    return
            if self._rebatcher is not None and isinstance(function, torch._ops.OpOverload):
                named = self._rebatcher.adapt(target, named, graph=graph, node=node)
            if isinstance(function, torch._ops.OpOverload):
                result = function(*positional, **named)
            else:
                result = function(*positional, *named.values())
        _store(node["outputs"], result, values)

    def _run_inlined(self, node: _Json, values: dict[str, Any]) -> list[Any]:
        arguments = [item["arg"] for item in node["inputs"]]
        inner = next(item["as_graph"]["graph"] for item in arguments if "as_graph" in item)
        operands = [self._value(item, values) for item in arguments if "as_tensor" in item or "as_sym_int" in item]
        names = [_argument_name(item) for item in inner["inputs"]]
        return self._run(inner, dict(zip(names, operands, strict=False)))

    def _function(self, graph: _Json) -> Callable[..., list[Any]]:
        """A graph within the program, which an operator runs."""
        names = [_argument_name(item) for item in graph["inputs"]]
        return lambda *operands: self._run(graph, dict(zip(names, operands, strict=True)))

    def _value(self, argument: _Json, values: Mapping[str, Any]) -> Any:
        kind, content = next(iter(argument.items()))
        if kind == "as_graph":
            return self._function(content["graph"])
        reader = _READERS.get(kind)
        if reader is None:
            raise UnsupportedError(
                f"The exported program has an argument of kind '{kind}', which cannot be read.",
                code="torch.export_unsupported",
                cure="Export the model to ONNX and give that file.",
            )
        return reader(content, values)


def module_of(node: _Json) -> tuple[str, str]:
    """Path and class of the module that an operator was exported from, both ``""`` where the program does not say."""
    stack = (node.get("metadata") or {}).get("nn_module_stack") or ""
    if stack.count(",") < 2:
        return "", ""
    _, path, kind = stack.split(";")[-1].split(",", 2)
    return path, kind


def meta_tensor(meta: _Json) -> torch.Tensor:
    """A tensor without data of the shape, strides and type that an archive states."""
    sizes = [_size(item) for item in meta["sizes"]]
    strides = [_size(item) for item in meta["strides"]]
    return torch.empty_strided(sizes, strides, dtype=_dtype(meta["dtype"]), device="meta")


def _known_tensor(meta: _Json, value: torch.Tensor | None) -> torch.Tensor:
    """The tensor with its values where these fit what the program says of it, else without any."""
    tensor = meta_tensor(meta)
    return tensor if value is None or (value.shape, value.dtype) != (tensor.shape, tensor.dtype) else value


def _size(item: _Json) -> int:
    if "as_int" in item:
        return int(item["as_int"])
    hint = (item["as_expr"].get("hint") or {}).get("as_int")
    if hint is None:
        raise ModelReadError(
            "A weight of the exported program has no fixed size.", code="torch.export_invalid", cure="Export it again."
        )
    return int(hint)


def _dtype(code: int) -> torch.dtype:
    dtype = exported_dtype(code)
    if dtype is None:
        raise UnsupportedError(
            f"The exported program has a tensor of element type number {code}, which is not known.",
            code="torch.export_unsupported",
        )
    return dtype


def _argument_name(argument: _Json) -> str:
    content = next(iter(argument.values()))
    return str(content.get("name") or content.get("as_name")) if isinstance(content, dict) else ""


def _named(content: _Json, values: Mapping[str, Any]) -> Any:
    return values[content["name"]]


def _symbol(content: _Json, values: Mapping[str, Any]) -> Any:
    return values[content["as_name"]] if "as_name" in content else next(iter(content.values()))


def _optional(content: _Json, values: Mapping[str, Any]) -> Any:
    return values[content["as_tensor"]["name"]] if "as_tensor" in content else None


def _plain(content: Any, _values: Mapping[str, Any]) -> Any:
    return content


_READERS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "as_none": lambda _content, _values: None,
    "as_tensor": _named,
    "as_tensors": lambda content, values: [_named(item, values) for item in content],
    "as_nested_tensors": lambda content, values: [[_named(item, values) for item in row] for row in content],
    "as_optional_tensor": _optional,
    "as_optional_tensors": lambda content, values: [_optional(item, values) for item in content],
    "as_sym_int": _symbol,
    "as_sym_ints": lambda content, values: [_symbol(item, values) for item in content],
    "as_sym_float": _symbol,
    "as_sym_floats": lambda content, values: [_symbol(item, values) for item in content],
    "as_sym_bool": _symbol,
    "as_sym_bools": lambda content, values: [_symbol(item, values) for item in content],
    "as_scalar_type": lambda content, _values: _dtype(content),
    "as_memory_format": lambda content, _values: _MEMORY_FORMATS.get(content),
    "as_layout": lambda _content, _values: torch.strided,
    "as_device": lambda _content, _values: torch.device("cpu"),
    "as_complex": lambda content, _values: complex(content["real"], content["imag"]),
    "as_float": lambda content, _values: float(content),
    "as_floats": lambda content, _values: [float(item) for item in content],
    **dict.fromkeys(
        ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists", "as_float_lists"),
        _plain,
    ),
}


def _targets(graph: _Json) -> Iterator[str]:
    """Names of all that a graph calls, and the graphs within it."""
    for node in graph["nodes"]:
        yield str(node["target"])
        for item in node["inputs"]:
            if "as_graph" in item["arg"]:
                yield from _targets(item["arg"]["as_graph"]["graph"])


def _store(outputs: Sequence[_Json], result: Any, values: dict[str, Any]) -> None:
    """Put a node's result under the names that its outputs have."""
    is_spread = len(outputs) > 1 or (len(outputs) == 1 and "as_tensors" in outputs[0])
    if len(outputs) == 1 and isinstance(result, (list, tuple)) and "as_tensor" in outputs[0]:
        result = result[0]
    if not is_spread:
        for item in outputs:
            _bind(item, result, values)
        return
    if len(outputs) == 1:
        for item, value in zip(outputs[0]["as_tensors"], result, strict=False):
            values[item["name"]] = value
        return
    for item, value in zip(outputs, result, strict=False):
        _bind(item, value, values)


def _bind(item: _Json, value: Any, values: dict[str, Any]) -> None:
    if "as_tensors" in item:
        for inner, part in zip(item["as_tensors"], value, strict=False):
            values[inner["name"]] = part
    elif "as_none" not in item:
        name = _argument_name(item)
        if name:
            values[name] = value


def _with_last_uses(graph: _Json) -> list[tuple[_Json, tuple[str, ...]]]:
    """Each node with the names that no later node needs, so that tensors die as they would in eager mode."""
    nodes = _without_checks(graph)
    kept = argument_names(graph["outputs"])
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in (*argument_names(node["inputs"]), *argument_names(node["outputs"])):
            last[name] = position
    finished: list[list[str]] = [[] for _ in nodes]
    for name, position in last.items():
        if name not in kept:
            finished[position].append(name)
    return [(node, tuple(names)) for node, names in zip(nodes, finished, strict=True)]


def _without_checks(graph: _Json) -> list[_Json]:
    """The nodes without those that only check the program's own assumptions.

    ``torch.export.draft_export`` reads the value that a branch was decided by, to check that it is what it was.
    """
    read: set[str] = set()
    for node in graph["nodes"]:
        if str(node["target"]) in _NUMBERS or not read.isdisjoint(argument_names(node["inputs"])):
            read |= argument_names(node["outputs"])
    needed = argument_names(graph["outputs"])
    kept = []
    for node in reversed(graph["nodes"]):
        outputs = argument_names(node["outputs"])
        is_check = bool(outputs) and outputs <= read and needed.isdisjoint(outputs) and _is_number(str(node["target"]))
        if is_check or str(node["target"]).startswith(_SKIPPED):
            continue
        needed |= argument_names(node["inputs"])
        kept.append(node)
    return kept[::-1]


def _is_number(target: str) -> bool:
    return target in _NUMBERS or target.startswith(("_operator.", "math.", "torch.sym_"))


def argument_names(value: Any) -> set[str]:
    """Every tensor and symbol name below a piece of the program."""
    if isinstance(value, list):
        return set().union(*(argument_names(item) for item in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    names: set[str] = set()
    for key, content in value.items():
        if key in {"as_tensor", "as_custom_obj"} and isinstance(content, dict):
            names.add(content["name"])
        elif key == "as_name":
            names.add(content)
        elif key in {"as_tensors", "as_nested_tensors"}:
            rows = content if key == "as_tensors" else [item for row in content for item in row]
            names.update(item["name"] for item in rows)
        elif key in {"arg", "as_optional_tensor", "as_optional_tensors"} or key.startswith("as_sym"):
            names |= argument_names(content)
    return names
