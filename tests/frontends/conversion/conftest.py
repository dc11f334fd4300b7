"""A converter that does as it is told, a model for it, and a cache and a temporary folder of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.frontends.conversion.convert import ConvertedModel, convert
from dippm.frontends.conversion.limits import ConversionLimits

Run = Callable[..., ConvertedModel]


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIPPM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return tmp_path / "cache" / "conversions"


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    """A linear layer of 64 KiB after a reshape by a small constant."""
    weight = numpy_helper.from_array(np.ones((128, 128), np.float32), "w")
    shape = numpy_helper.from_array(np.array([-1, 128], np.int64), "shape")
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 128])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight, shape, scale]))
    path = tmp_path / "model.fake"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(name="run")
def _run(source: Path) -> Run:
    def run(
        limits: ConversionLimits | None = None, hints: dict[str, Any] | None = None, **options: Any
    ) -> ConvertedModel:
        return convert(
            framework="Fake",
            worker="fake_converter",
            source=source,
            files=[source],
            options=options,
            hints=hints,
            limits=limits or ConversionLimits(seconds=60, memory_mb=2000),
        )

    return run


@pytest.fixture
def temporary_folders() -> Callable[[], set[str]]:
    """Names of the folders that conversions have made and not removed."""
    return lambda: {entry for entry in os.listdir(tempfile.gettempdir()) if entry.startswith("dippm-")}
