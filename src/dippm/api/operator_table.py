"""Which operators dippm knows, and how it predicts the time of each."""

from __future__ import annotations

from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.graph import OpKind

__all__ = ["operators"]

_METHODS = {
    WorkFamily.GEMM: "learned kernel times (FP32); tiles and waves on tensor cores",
    WorkFamily.CONVOLUTION: "learned kernel times (FP32); tiles and waves on tensor cores; direct for thin groups",
    WorkFamily.ATTENTION: "fused kernel: padded tiles and bandwidth",
    WorkFamily.RECURRENT: "input product once, recurrent product per step",
    WorkFamily.ELEMENTWISE: "learned element-wise kernel at the same traffic",
    WorkFamily.ROW: "learned softmax and layer-norm kernels (FP32), else traffic",
    WorkFamily.REDUCTION: "traffic",
    WorkFamily.POOL: "traffic",
    WorkFamily.MOVE: "traffic",
    WorkFamily.OTHER: "traffic; reported where unknown",
    WorkFamily.FREE: "launches nothing",
}


def operators() -> list[tuple[str, list[str], str]]:
    """Every kind of operator with the frameworks' operators that become it, and how its time is predicted.

    ONNX operators are listed under the kind ``"(onnx)"``: one of them may become several kinds.
    """
    from dippm.frontends.onnx.ops import known_operators
    from dippm.frontends.torch.operators import OPERATORS

    names: dict[OpKind, list[str]] = {}
    for name, rule in sorted(OPERATORS.items()):
        names.setdefault(rule.kind, []).append(f"aten.{name}")
    rows = [(kind.value, names.get(kind, []), _METHODS[FAMILY_OF_KIND[kind]]) for kind in OpKind]
    onnx = [f"{domain}.{name}" if domain else name for domain, name in known_operators()]
    return [*rows, ("(onnx)", onnx, "by the kinds above")]
