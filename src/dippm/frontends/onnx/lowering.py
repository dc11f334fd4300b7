"""From a ModelProto to a :class:`~dippm.frontends.onnx.program.Program`: functions inlined, operators in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dippm.errors import ModelReadError, UnsupportedError
from dippm.frontends.onnx.decoding import Decoder, decode_scope
from dippm.frontends.onnx.element_types import element_type
from dippm.frontends.onnx.export_records import find_noted_operators, find_untrained, find_written_norms
from dippm.frontends.onnx.external_data import ExternalFiles
from dippm.frontends.onnx.ops import find_rule
from dippm.frontends.onnx.ordering import order_nodes, remove_unused
from dippm.frontends.onnx.program import (
    ABSENT,
    AttributeValue,
    Block,
    InputDeclaration,
    Op,
    Program,
    Weight,
    describe_node,
)
from dippm.frontends.onnx.roles import assign_roles
from dippm.graph import DType

if TYPE_CHECKING:
    import onnx

__all__ = ["lower"]

_OLDEST_OPSET = 7
_OP_LIMIT = 500_000
_NESTING_LIMIT = 24
_STANDARD_DOMAINS = ("", "ai.onnx")
# onnxruntime writes these domains when it saves a model that it has laid out for the machine it ran on.
_LAID_OUT_DOMAINS = frozenset({"com.microsoft.nchwc", "com.ms.internal.nhwc"})
_OWN_RULE_DOMAINS = ("", "ai.onnx", "com.microsoft")
# A parameter of a module, or what PyTorch's exporter made of one: "layers.0.linear1.weight", "onnx::MatMul_12".
_EXPORTED_NAME = re.compile(r"\w+(\.\w+)+$|onnx::")


def lower(model: onnx.ModelProto, files: ExternalFiles) -> Program:
    """Turn a parsed model into plain operators.

    Args:
        model: The model, with or without its weights' payloads.
        files: The model's external data.

    Raises:
        ModelReadError: ``onnx.invalid`` where names do not fit together, ``onnx.cycle``, ``onnx.too_large``,
            ``onnx.external_path``, ``onnx.function``.
        UnsupportedError: ``onnx.opset`` for files older than opset 7, ``onnx.laid_out`` for files that onnxruntime has
            rewritten for one kind of machine.
    """
    return _Lowering(model, files).run()


class _Scope:
    """Names visible at one point: those of a graph, then those of the graphs around it."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: _Scope | None = None) -> None:
        self.names: dict[str, int] = {}
        self.parent = parent

    def find(self, name: str) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            number = scope.names.get(name)
            if number is not None:
                return number
            scope = scope.parent
        return None


class _Lowering:
    def __init__(self, model: onnx.ModelProto, files: ExternalFiles) -> None:
        self._model = model
        self._decoder = Decoder(files)
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._program = Program(ops=[], names=[], weights={}, inputs=[], outputs=[])
        self._op_count = 0

    def run(self) -> Program:
        program = self._program
        opsets = _opsets(self._model.opset_import)
        program.opset = opsets.get("", 0)
        is_standard_used = any(node.domain in _STANDARD_DOMAINS for node in self._model.graph.node)
        if is_standard_used and program.opset < _OLDEST_OPSET:
            raise UnsupportedError(
                f"The ONNX file uses opset {program.opset}; the oldest that is read is {_OLDEST_OPSET}.",
                code="onnx.opset",
                cure="Convert it: onnx.version_converter.convert_version(model, 17).",
            )
        graph = self._model.graph
        laid_out = next((node for node in graph.node if node.domain in _LAID_OUT_DOMAINS), None)
        if laid_out is not None:
            raise UnsupportedError(
                f"onnxruntime has rewritten the file for one kind of machine ('{laid_out.domain}.{laid_out.op_type}').",
                code="onnx.laid_out",
                cure="Give the file that it was made from, or save it with ORT_ENABLE_EXTENDED at most.",
            )
        scope = _Scope()
        self._declare_weights(graph, scope)
        for info in graph.input:
            if info.name not in scope.names:
                program.inputs.append(self._declare_input(info, scope))
        self._lower_nodes(graph.node, scope, program.ops, opsets, bindings={}, path="", depth=0)
        for info in graph.output:
            number = scope.find(info.name)
            if number is None:
                raise _invalid(f"output '{info.name}' is made by no operator")
            program.outputs.append(number)
        if not program.outputs:
            raise _invalid("the graph has no outputs")
        if not all(isinstance(name, str) for name in program.names):
            # protobuf hands over as bytes what is no UTF-8.
            raise ModelReadError(
                "The ONNX file is damaged: it holds names that are no text.",
                code="onnx.damaged",
                cure="Copy or export the file again.",
            )
        for info in graph.value_info:
            number = scope.names.get(info.name)
            if number is not None:
                program.declared[number] = _declared_type(info.type)
        program.untrained.update(scope.names[name] for name in find_untrained(graph) if name in scope.names)
        program.norms = find_written_norms(self._model, program.opset)
        program.noted = find_noted_operators(graph)
        remove_unused(program)
        assign_roles(program)
        missing = self._decoder.files.missing
        if missing:
            names = ", ".join(sorted(missing)[:3])
            program.warnings.append(f"External weight files are absent ({names}); their stated sizes are used.")
        return program

    def _new_value(self, name: str, scope: _Scope) -> int:
        if name in scope.names:
            raise _invalid(f"value '{name}' is made twice")
        number = len(self._program.names)
        self._program.names.append(name)
        scope.names[name] = number
        return number

    def _declare_weights(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        for tensor in graph.initializer:
            weight = self._decoder.tensor(tensor)
            self._program.weights[self._new_value(weight.name, scope)] = weight
        for sparse in graph.sparse_initializer:
            weight = self._decoder.sparse_tensor(sparse)
            self._program.weights[self._new_value(weight.name, scope)] = weight

    def _declare_input(self, info: onnx.ValueInfoProto, scope: _Scope) -> InputDeclaration:
        number = self._new_value(info.name, scope)
        # An optional tensor is taken to be there.
        kind = info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
        if not kind.HasField("tensor_type"):
            return InputDeclaration(value=number, name=info.name, dtype=DType.OTHER, dims=None, is_tensor=False)
        tensor = kind.tensor_type
        dims: tuple[int | str, ...] | None = None
        if tensor.HasField("shape"):
            dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
            # Some writers spell an open dimension as 0 or -1.
            dims = tuple(d if isinstance(d, str) or (isinstance(d, int) and d > 0) else "" for d in dims)
        return InputDeclaration(value=number, name=info.name, dtype=element_type(tensor.elem_type), dims=dims)

    def _lower_nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        scope: _Scope,
        ops: list[Op],
        opsets: Mapping[str, int],
        *,
        bindings: Mapping[str, AttributeValue],
        path: str,
        depth: int,
    ) -> None:
        """Append the operators of one node list to ``ops``."""
        if depth > _NESTING_LIMIT:
            raise ModelReadError(
                f"The ONNX file nests graphs or functions more than {_NESTING_LIMIT} deep, or a function calls itself.",
                code="onnx.too_large",
            )
        for node in order_nodes(nodes):
            self._op_count += 1
            if self._op_count > _OP_LIMIT:
                raise ModelReadError(
                    f"The ONNX file holds more than {_OP_LIMIT} operators once its functions are inlined.",
                    code="onnx.too_large",
                )
            self._lower_node(node, scope, ops, opsets, bindings=bindings, path=path, depth=depth)

    def _lower_node(
        self,
        node: onnx.NodeProto,
        scope: _Scope,
        ops: list[Op],
        opsets: Mapping[str, int],
        *,
        bindings: Mapping[str, AttributeValue],
        path: str,
        depth: int,
    ) -> None:
        inputs = []
        for name in node.input:
            number = scope.find(name) if name else ABSENT
            if number is None:
                described = describe_node(node.op_type, node.name, node.output)
                raise _invalid(f"{described} reads '{name}', which nothing makes")
            inputs.append(number)
        domain = "" if node.domain == "ai.onnx" else node.domain
        attributes: dict[str, AttributeValue] = {}
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in bindings:
                    attributes[attribute.name] = bindings[attribute.ref_attr_name]
            elif attribute.HasField("g"):
                attributes[attribute.name] = self._lower_block(attribute.g, scope, opsets, bindings, path, depth)
            elif attribute.graphs:
                blocks = [self._lower_block(g, scope, opsets, bindings, path, depth) for g in attribute.graphs]
                attributes[attribute.name] = blocks
            else:
                value = self._decoder.attribute(attribute)
                if value is not None:
                    attributes[attribute.name] = value
        own_path = decode_scope(node) or path
        function = self._functions.get((node.domain, node.op_type, node.overload))
        is_ruled = node.domain in _OWN_RULE_DOMAINS and find_rule(domain, node.op_type) is not None
        if function is not None and not is_ruled:
            self._inline(function, node, inputs, attributes, scope, ops, path=own_path, depth=depth)
            return
        if domain == "" and node.op_type == "Identity" and inputs and inputs[0] in self._program.weights:
            if node.output and node.output[0]:
                self._lower_renamed(node.output[0], inputs[0], scope)
            return
        outputs = tuple(self._new_value(name, scope) if name else ABSENT for name in node.output)
        if domain == "" and node.op_type == "Constant" and depth == 0:
            # Known once for all runs, where those of a loop's body are made anew in each turn.
            written = attributes.get("value")
            if isinstance(written, Weight) and len(outputs) == 1:
                self._program.constants[outputs[0]] = written
                return
        ops.append(
            Op(
                op_type=str(node.op_type),
                domain=str(domain),
                version=opsets.get(domain, 1),
                inputs=tuple(inputs),
                outputs=outputs,
                attributes=attributes,
                scope=own_path,
                name=node.name,
            )
        )

    def _lower_renamed(self, name: str, number: int, scope: _Scope) -> None:
        """A stored tensor under another name."""
        if not _EXPORTED_NAME.match(name):
            self._bind(name, number, scope)
            return
        # PyTorch's exporter merges weights of equal values and leaves an Identity with the name of each one lost.
        merged = self._program.weights[number]
        self._program.weights[self._new_value(name, scope)] = Weight(
            name=name, shape=merged.shape, dtype=merged.dtype, data=merged.data
        )

    def _bind(self, name: str, number: int, scope: _Scope) -> None:
        """Give a value made before a name in another scope, or one more."""
        if name in scope.names:
            raise _invalid(f"value '{name}' is made twice")
        scope.names[name] = number

    def _lower_block(
        self,
        graph: onnx.GraphProto,
        scope: _Scope,
        opsets: Mapping[str, int],
        bindings: Mapping[str, AttributeValue],
        path: str,
        depth: int,
    ) -> Block:
        inner = _Scope(scope)
        self._declare_weights(graph, inner)
        inputs = tuple(self._new_value(info.name, inner) for info in graph.input if info.name not in inner.names)
        ops: list[Op] = []
        self._lower_nodes(graph.node, inner, ops, opsets, bindings=bindings, path=path, depth=depth + 1)
        outputs = []
        for info in graph.output:
            number = inner.find(info.name)
            if number is None:
                raise _invalid(f"output '{info.name}' of a subgraph is made by no operator")
            outputs.append(number)
        return Block(ops=ops, inputs=inputs, outputs=tuple(outputs))

    def _inline(
        self,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        inputs: Sequence[int],
        attributes: Mapping[str, AttributeValue],
        scope: _Scope,
        ops: list[Op],
        *,
        path: str,
        depth: int,
    ) -> None:
        inner = _Scope()
        for name, number in zip(function.input, inputs, strict=False):
            inner.names[name] = number
        for name in function.input[len(inputs) :]:
            inner.names[name] = ABSENT
        bindings = dict(attributes)
        for attribute in function.attribute_proto:
            value = self._decoder.attribute(attribute)
            if value is not None:
                bindings.setdefault(attribute.name, value)
        opsets = _opsets(function.opset_import)
        self._lower_nodes(function.node, inner, ops, opsets, bindings=bindings, path=path, depth=depth + 1)
        for name, formal in zip(node.output, function.output, strict=False):
            made = inner.find(formal)
            if made is None or made == ABSENT:
                raise ModelReadError(
                    f"Function '{function.name}' of the ONNX file never makes its output '{formal}'.",
                    code="onnx.function",
                )
            if name:
                self._bind(name, made, scope)


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {("" if item.domain == "ai.onnx" else item.domain): item.version for item in imports}


def _declared_type(proto: onnx.TypeProto) -> tuple[DType, tuple[int, ...] | None]:
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return element_type(tensor.elem_type), None
    dims = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else -1 for d in tensor.shape.dim)
    return element_type(tensor.elem_type), dims


def _invalid(what: str) -> ModelReadError:
    return ModelReadError(
        f"The ONNX graph does not fit together: {what[:300]}.",
        code="onnx.invalid",
        cure="Check it with onnx.checker.check_model and export it again.",
    )
