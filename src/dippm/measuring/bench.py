"""Measures configurations one after the other in this process; the model is built once and kept between them."""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata

import torch
from torch import nn

from dippm.costs.conditions import Layout, Mode, Runtime
from dippm.frontends.inputs import InputShapes
from dippm.measuring.arithmetic import backend_switches, stored_dtype, whole_model_dtype
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.failures import describe, is_out_of_memory
from dippm.measuring.inference import inference_call
from dippm.measuring.kernel_trace import trace_operators
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.measuring.meter import open_meter
from dippm.measuring.model_files import FileSource
from dippm.measuring.model_source import ModelSource
from dippm.measuring.operator_run import OperatorRun
from dippm.measuring.outputs import is_finite
from dippm.measuring.protocol import Plan, Run, TooSlowError, run_protocol
from dippm.measuring.sample_inputs import make_inputs
from dippm.measuring.training import training_call

__all__ = ["Bench"]

_SEED = 0
# Where models come from: another version may build another model by the same name.
_LIBRARIES = ("timm", "torchvision", "transformers")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Built:
    """The model at hand; without a module where onnxruntime reads the file itself.

    Args:
        key: Of its source.
        module: The module.
        shapes: Of its inputs.
        stored: The 16-bit format that it was built in, if it was.
    """

    key: str
    module: nn.Module | None
    shapes: InputShapes
    stored: torch.dtype | None = None

    def is_changed_by(self, configuration: Configuration) -> bool:
        """Whether a run leaves it in another format or layout."""
        conditions = configuration.conditions
        dtype = whole_model_dtype(conditions.precision)
        return (dtype is not None and dtype is not self.stored) or conditions.layout is not Layout.NCHW


class Bench:
    """A device with a model on it.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:INDEX"``.
        plan: How often each model is run.
        owns_process: Whether nothing else runs in this process, whose garbage collection may then be arranged for
            speed.

    Raises:
        UnsupportedError: ``device.unavailable``.
        MissingExtraError: where PyTorch is not installed.
    """

    def __init__(self, device: str, plan: Plan | None = None, *, owns_process: bool = False) -> None:
        self._meter = open_meter(device)
        self._owns_process = owns_process
        self._plan = plan or Plan()
        self._built: _Built | None = None
        self._context_mb: float | None = None
        self._is_usable = True
        self._busy_s = 0.0

    @property
    def device_name(self) -> str:
        """The device as it names itself."""
        return self._meter.device_name

    @property
    def software(self) -> SoftwareStack:
        """Versions, with PyTorch and the libraries of models as the framework."""
        return self._meter.software(_framework(Engine.TORCH))

    @property
    def is_usable(self) -> bool:
        """False after an error that CUDA recovers from in a new process alone."""
        return self._is_usable

    @property
    def busy_s(self) -> float:
        """Time that the device spent on warm-up and measured calls so far, s."""
        return self._busy_s

    def measure(self, source: ModelSource, configurations: Iterable[Configuration]) -> Iterator[Measurement]:
        """Measure a model in each configuration, in order; whatever happens in one is its outcome."""
        for configuration in configurations:
            yield self._measure(source, configuration)

    def trace(self, source: ModelSource, configuration: Configuration) -> tuple[OperatorRun, ...]:
        """The kernels of one eager call, after one that makes libraries choose them.

        Args:
            source: The model.
            configuration: How it is run; a runtime other than eager is passed over, for its kernels belong to no one
                operator.

        Raises:
            DippmError: As in building the model, and in running it.
        """
        conditions = replace(configuration.conditions, runtime=Runtime.EAGER)
        configuration = replace(configuration, conditions=conditions)
        try:
            if self._needs_build(source, configuration):
                self._build(source, configuration)
            with backend_switches(conditions.precision), self._call(source, configuration) as call:
                call()
                return trace_operators(call, self._meter.synchronise)
        except Exception:
            self._built = None
            self._is_usable = self._meter.is_usable()
            raise
        finally:
            if self._built is not None and self._built.is_changed_by(configuration):
                self._built = None
            if self._is_usable:
                self._meter.release_memory()

    def _measure(self, source: ModelSource, configuration: Configuration) -> Measurement:
        started, build_s, has_raised = time.perf_counter(), 0.0, False
        try:
            if self._needs_build(source, configuration):
                built_from = time.perf_counter()
                self._build(source, configuration)
                build_s = time.perf_counter() - built_from
            run, is_valid = self._run(source, configuration, deadline_s=started + self._plan.limit_s)
            measurement = self._figures(run, configuration.engine)
            if not is_valid:
                message = "The output holds NaN or infinities."
                measurement = replace(measurement, outcome=Outcome.NOT_FINITE, message=message)
        except Exception as exc:  # noqa: BLE001 - whatever a model does is a result
            measurement = self._measurement(_outcome(exc), configuration.engine, message=describe(exc))
            has_raised = True
        is_changed = self._built is not None and self._built.is_changed_by(configuration)
        if measurement.outcome is not Outcome.OK or is_changed:
            self._built = None  # its weights are another format's now, or hold NaN, or are of a broken run
        if has_raised:
            # Asked when the exception is gone, and with it the tensors of the frames that it went through.
            self._is_usable = self._meter.is_usable() and not self._may_be_capturing(configuration)
        if self._is_usable:
            self._meter.release_memory()
        return replace(
            measurement,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            duration_s=time.perf_counter() - started - build_s,
            build_s=build_s,
        )

    def _may_be_capturing(self, configuration: Configuration) -> bool:
        """Whether an error may have cut a capture off: PyTorch then stays on the stream of the capture."""
        return self._meter.device != "cpu" and configuration.conditions.runtime is Runtime.CUDA_GRAPH

    def _needs_build(self, source: ModelSource, configuration: Configuration) -> bool:
        built = self._built
        if built is None or built.key != source.model_key:
            return True
        return (built.module is None) is not _is_file_of(configuration.engine, source)

    def _build(self, source: ModelSource, configuration: Configuration) -> None:
        self._built = None
        self._meter.release_memory()
        if self._owns_process:
            # A collection goes through all objects of all imported libraries, a third of a second each time. What is
            # alive while there is no model stays to the end, and is taken out of its sight.
            gc.freeze()
        self._context_mb = self._meter.base_memory_mb()
        if _is_file_of(configuration.engine, source):
            self._built = _Built(key=source.model_key, module=None, shapes=InputShapes())
            return
        module, shapes = source.build(self._meter.device)
        self._built = _Built(key=source.model_key, module=module, shapes=shapes, stored=stored_dtype(module))
        if self._meter.device != "cpu":
            # What initialisers took for a moment stays with the caching allocator, and would be counted in the first
            # configuration and in no other.
            self._meter.release_memory()

    def _run(self, source: ModelSource, configuration: Configuration, *, deadline_s: float) -> tuple[Run, bool]:
        with backend_switches(configuration.conditions.precision), self._call(source, configuration) as call:
            started = time.perf_counter()
            try:
                run = run_protocol(
                    call,
                    self._meter,
                    self._plan,
                    takes_energy=self._plan.takes_energy(f"{source.model_key} {configuration}"),
                    deadline_s=deadline_s,
                )
            finally:
                self._busy_s += time.perf_counter() - started
            # The output ends here: kept to the end of the row, it would be part of the next one's memory.
            return replace(run, output=None), is_finite(run.output)

    def _call(self, source: ModelSource, configuration: Configuration) -> AbstractContextManager[Callable[[], object]]:
        """The model with inputs in this configuration as a function without arguments."""
        device = self._meter.device
        if isinstance(source, FileSource) and source.onnx_path is not None and configuration.engine is not Engine.TORCH:
            from dippm.measuring.onnxruntime_engine import file_call

            return file_call(source.onnx_path, source.inputs, configuration, device=device)
        built = self._built
        if built is None or built.module is None:
            raise RuntimeError("the model is built before it is run")
        torch.manual_seed(_SEED)
        inputs = make_inputs(built.module, built.shapes, batch=configuration.batch, device=device)
        if configuration.engine is Engine.ONNXRUNTIME:
            from dippm.measuring.onnxruntime_engine import module_call

            return module_call(built.module, inputs, configuration, device=device)
        prepare = training_call if configuration.conditions.mode is Mode.TRAINING else inference_call
        return prepare(built.module, inputs, configuration, device=device)

    def _figures(self, run: Run, engine: Engine) -> Measurement:
        walls = [1e3 * took.wall_s for took in run.times]
        device_times = [1e3 * took.device_s for took in run.times if took.device_s is not None]
        memory, counter, is_torch = run.memory, self._meter.energy, engine is Engine.TORCH
        return replace(
            self._measurement(Outcome.OK, engine),
            warmup_runs=run.warmup_runs,
            timed_runs=len(walls),
            latency_ms=statistics.fmean(walls),
            latency_std_ms=statistics.stdev(walls),
            latency_median_ms=statistics.median(walls),
            latency_min_ms=min(walls),
            latency_max_ms=max(walls),
            # onnxruntime has streams and an allocator of its own, which PyTorch does not see.
            device_time_ms=statistics.fmean(device_times) if device_times and is_torch else None,
            allocated_peak_mb=memory.allocated_peak_mb if is_torch else None,
            reserved_peak_mb=memory.reserved_peak_mb if is_torch else None,
            energy_j=run.energy_j,
            energy_source=None if counter is None or run.energy_j is None else counter.source,
            energy_window_s=run.energy_window_s,
            memory_mb=memory.memory_mb,
            memory_source=memory.memory_source,
            # onnxruntime's own allocator is outside of PyTorch's too, and no part of the context.
            context_mb=memory.context_mb if is_torch and memory.context_mb is not None else self._context_mb,
            state=run.state,
        )

    def _measurement(self, outcome: Outcome, engine: Engine, *, message: str = "") -> Measurement:
        return Measurement(
            outcome=outcome,
            message=message,
            device=self._meter.device_name,
            measured_at="",
            context_mb=self._context_mb,
            idle_power_w=self._meter.idle_power_w,
            software=self._meter.software(_framework(engine)),
        )


def _is_file_of(engine: Engine, source: ModelSource) -> bool:
    """Whether the engine reads the source's file itself."""
    return engine is Engine.ONNXRUNTIME and isinstance(source, FileSource) and source.onnx_path is not None


def _outcome(exc: Exception) -> Outcome:
    if isinstance(exc, TooSlowError):
        return Outcome.TIMED_OUT
    return Outcome.OUT_OF_MEMORY if is_out_of_memory(exc) else Outcome.FAILED


@functools.cache
def _framework(engine: Engine) -> str:
    """The engine's version and those of all installed libraries of models, whichever this one is from."""
    versions = [f"{name} {version.partition('+')[0]}" for name in _LIBRARIES if (version := _installed(name))]
    if engine is Engine.TORCH:
        return ", ".join([f"torch {str(torch.__version__).partition('+')[0]}", *versions])
    import onnxruntime

    return ", ".join([f"onnxruntime {onnxruntime.__version__}", *versions])


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
