"""Inference in onnxruntime as one call."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dippm.costs.precision import Precision, whole_model_type
from dippm.errors import MissingExtraError, UnsupportedError, UsageError
from dippm.frontends.inputs import InputEntry, InputShapes, unknown_input
from dippm.measuring.arithmetic import stored_dtype, whole_model_dtype
from dippm.measuring.configuration import Configuration
from dippm.measuring.sample_inputs import Inputs

__all__ = ["file_call", "module_call"]

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
_NUMPY_TYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8, "tensor(bool)": np.bool_,
}  # fmt: skip
_INTEGER_LIMIT = 2  # any table has two rows


@contextmanager
def module_call(
    module: nn.Module, inputs: Inputs, configuration: Configuration, *, device: str
) -> Iterator[Callable[[], object]]:
    """A PyTorch module, exported to ONNX, as a function without arguments.

    The file that it is exported to is removed as soon as it is loaded. On a GPU the module waits in the host's memory
    while onnxruntime holds the same weights on the device.

    Args:
        module: The model; a whole-model precision converts it in place.
        inputs: Its inputs, which fix the batch of the export.
        configuration: How it is run.
        device: The device.

    Yields:
        The call, which returns the model's outputs.

    Raises:
        UnsupportedError: ``engine.unsupported`` for a precision or layout that onnxruntime cannot be told to use.
        MissingExtraError: where the exporter is not installed.
    """
    configuration.check_onnxruntime(device, is_file=False)
    if find_spec("onnxscript") is None:
        raise MissingExtraError(package="onnxscript", extra="dev", purpose="export a PyTorch module to ONNX")
    dtype = whole_model_dtype(configuration.conditions.precision)
    if dtype is not None and dtype is not stored_dtype(module):
        module, inputs = module.to(dtype), inputs.to_dtype(dtype)
    with ExitStack() as until_measured:
        with tempfile.TemporaryDirectory(prefix="dippm-") as folder:
            path = Path(folder, "model.onnx")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                args, kwargs = inputs.arguments
                torch.onnx.export(
                    module,
                    args,
                    str(path),
                    kwargs=kwargs,
                    dynamo=True,
                    verbose=False,
                    optimize=True,
                )
            arrays = [tensor.cpu().numpy() for tensor in (*inputs.args, *inputs.kwargs.values())]
            del inputs, args, kwargs  # their tensors are on the device
            until_measured.enter_context(_off_device(module, device))
            session = _open_session(path, configuration, device)
        feeds = {item.name: array for item, array in zip(session.get_inputs(), arrays, strict=True)}
        yield _bound(session, feeds, device)


@contextmanager
def file_call(
    path: Path, shapes: InputShapes, configuration: Configuration, *, device: str
) -> Iterator[Callable[[], object]]:
    """An ONNX file as a function without arguments.

    Args:
        path: The file.
        shapes: Shapes of one sample; empty to take those of the file, all but their first dimension, the batch.
        configuration: How it is run.
        device: The device.

    Yields:
        The call, which returns the model's outputs.

    Raises:
        UnsupportedError: ``engine.unsupported`` for a precision or layout that onnxruntime cannot be told to use, but
            for 16 bits, which are taken for the format of the file's weights, or for inputs that are no tensors of
            numbers.
        UsageError: ``input.shape_needed`` where the file leaves a size open; ``input.name_unknown``.
    """
    stored = whole_model_type(configuration.conditions.precision)
    configuration.check_onnxruntime(device, is_file=True, stored=stored)
    session = _open_session(path, configuration, device)
    given = _by_name([item.name for item in session.get_inputs()], shapes)
    random = np.random.default_rng(0)
    feeds = {
        item.name: _random_array(random, item, given.get(item.name), batch=configuration.batch)
        for item in session.get_inputs()
    }
    yield _bound(session, feeds, device)


@contextmanager
def _off_device(module: nn.Module, device: str) -> Iterator[None]:
    """Keep a module on the CPU for a while, and what it took on the device free."""
    if device == "cpu":
        yield
        return
    module.to("cpu")
    gc.collect()
    torch.cuda.empty_cache()
    try:
        yield
    finally:
        module.to(device)


def _open_session(path: Path, configuration: Configuration, device: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    if device == "cpu":
        return onnxruntime.InferenceSession(str(path), options, providers=[_CPU])
    if _CUDA not in onnxruntime.get_available_providers():
        raise UnsupportedError(
            f"onnxruntime {onnxruntime.__version__} was built without CUDA.",
            code="engine.unsupported",
            cure="Install it with: pip install onnxruntime-gpu",
        )
    is_tf32 = configuration.conditions.precision is Precision.TF32
    cuda = {"device_id": _index(device), "use_tf32": int(is_tf32)}
    session = onnxruntime.InferenceSession(str(path), options, providers=[(_CUDA, cuda), _CPU])
    if _CUDA not in session.get_providers():  # it falls back to the CPU without an error
        raise UnsupportedError("onnxruntime could not load its CUDA libraries.", code="engine.unsupported")
    return session


def _bound(session: Any, feeds: Mapping[str, np.ndarray[Any, Any]], device: str) -> Callable[[], object]:
    if device == "cpu":
        return lambda: session.run(None, dict(feeds))
    import onnxruntime

    index = _index(device)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", index))
    for item in session.get_outputs():
        binding.bind_output(item.name, "cuda", index)

    def call() -> object:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return _DeviceOutputs(binding)

    return call


class _DeviceOutputs(list[Any]):
    """Outputs that lie on the device and are copied to the host when somebody looks at them."""

    def __init__(self, binding: Any) -> None:
        super().__init__()
        self._binding = binding

    def __iter__(self) -> Iterator[Any]:
        return iter(self._binding.copy_outputs_to_cpu())


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _by_name(names: list[str], shapes: InputShapes) -> dict[str, InputEntry]:
    given = dict(zip(names, shapes.positional, strict=False)) | dict(shapes.named or {})
    if unknown := sorted(set(given) - set(names)):
        raise unknown_input(unknown[0], names, of="The file")
    if len(shapes.positional) > len(names):
        raise UsageError(
            f"The file's inputs are {', '.join(names)}. Got {len(shapes.positional)} by position.",
            code="input.name_unknown",
            cure="Give at most one shape for each input.",
        )
    return given


def _random_array(
    random: np.random.Generator, item: Any, entry: InputEntry | None, *, batch: int
) -> np.ndarray[Any, Any]:
    dtype = _NUMPY_TYPES.get(item.type)
    if dtype is None:
        raise UnsupportedError(f"The input '{item.name}' is a {item.type}.", code="engine.unsupported")
    sizes = item.shape[1:] if entry is None else entry.shape
    if not all(isinstance(size, int) for size in sizes):
        raise UsageError(
            f"The file leaves the size of the input '{item.name}' open: {item.shape}.",
            code="input.shape_needed",
            cure=f"Give it without the batch, as {item.name}=3,224,224.",
        )
    # A scalar of the file has no batch.
    size = entry.at(batch) if entry is not None else (batch, *sizes) if item.shape else ()
    if "mask" in item.name or dtype is np.bool_:
        return np.ones(size, dtype=dtype)
    if np.issubdtype(dtype, np.floating):
        return np.asarray(random.standard_normal(size), dtype=dtype)
    return np.asarray(random.integers(0, _INTEGER_LIMIT, size), dtype=dtype)
