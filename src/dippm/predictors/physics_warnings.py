"""What a prediction of the physics cannot vouch for, in words."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.costs.device_sheets import FED_WELL_FROM
from dippm.costs.energy import PowerModel, is_always_limited
from dippm.costs.head_convolutions import plain_head_terms
from dippm.costs.open_loops import warn_of_open_loops
from dippm.costs.packings import PACKED_BY
from dippm.costs.precision import Arithmetic, Precision, autocast_type, whole_model_type
from dippm.costs.rates import Rates
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_graph import count_raised_products
from dippm.costs.software_support import driving_build
from dippm.costs.tensor_rates import tensor_format
from dippm.costs.timeline import Purpose
from dippm.costs.training_step.sparse_gradients import warn_of_dense
from dippm.devices import DeviceSpec
from dippm.graph import DType, Graph, OpKind, TensorRole
from dippm.graph.linear_layers import count_quantised, find_stacks
from dippm.predictors.answerable import name_unsupported, warn_of_batch
from dippm.predictors.prepared_graph import UNMEASURED_KINDS, CompiledGraph, PreparedGraphs

__all__ = ["find_cache_copies", "find_plain_heads", "warn_of_answer", "warn_of_question"]

_FP8 = tuple(Arithmetic).index(Arithmetic.FP8)
# What the labels' steps update by; a step without an update has nothing that was not measured.
_TIMED_OPTIMIZERS = (Optimizer.MOMENTUM, Optimizer.NONE)
# Releases of PyTorch that the times were measured with.
_TIMED_WITH = {Mode.INFERENCE: (2, 4), Mode.TRAINING: (1, 12)}
# Below this share of the time the device waits for the host.
_BUSY = 0.8
# From this share on copies of a cache are worth a word, and heads that may run by other kernels.
_COPYING, _HEADS = 0.05, 0.1
# Less memory than this is not, MiB.
_WORTH_A_WORD_MB = 1.0


def warn_of_question(
    prepared: PreparedGraphs,
    compiled: CompiledGraph,
    device: DeviceSpec,
    *,
    is_measured: bool,
    unseen: AbstractSet[OpKind],
    power: PowerModel,
    power_devices: Collection[str],
) -> tuple[str, ...]:
    """What follows from model, device and conditions, at every batch.

    Args:
        prepared: The graphs that are predicted together.
        compiled: The one of them that is meant.
        device: The device.
        is_measured: Whether whole models were measured on the device under these conditions.
        unseen: Kinds of operators that no model had which the time was learned from.
        power: Power model.
        power_devices: Names of the devices whose energy the power model was fitted on.
    """
    graph, conditions = compiled.graph, prepared.conditions
    software, as_run = prepared.compiled.software, prepared.as_run[compiled.runs_in]
    most_runs = float(prepared.compiled.most_runs[compiled.nodes].max(initial=1.0))
    warnings = [*graph.warnings, *warn_of_open_loops(most_runs), *_software_warning(software, as_run, device)]
    if graph.fixed_batch is None and not graph.has_batch:
        warnings.append("No input of the model has a batch: every batch is answered alike.")
    if names := name_unsupported(graph):
        warnings.append(f"Operators without a rule of their own, costed by their bytes: {names}.")
    if not UNMEASURED_KINDS.isdisjoint(compiled.kinds):
        unmeasured = sorted({node.kind.value for node in graph.nodes if node.kind in UNMEASURED_KINDS})
        if unmeasured:
            warnings.append(f"No measurement stands behind the time of these operators: {', '.join(unmeasured)}.")
    if not is_measured:
        warnings.append(
            f"No whole model was measured on {device.name} in {compiled.runs_in}, {conditions.runtime}: the "
            "interval is wider for that."
        )
    if prepared.compiled.eager is not None:
        warnings.append(
            "No compiled training step was measured here: the time is the eager step's less what the rules of fusion "
            "say, and so is memory, which is met within 10 % on 25 of 26 published steps."
        )
    elif conditions.runtime is Runtime.COMPILE:
        warnings.append(
            "Memory is that of the eager runtime: of 60 image models that filled 24 GB compiled ones fitted the same "
            "batch in 26 cases, a larger one in 29, a smaller one in 5."
        )
    if (half := compiled.kept_half) is not None:
        lower = autocast_type(conditions.precision)
        if lower is None:
            warnings.append(f"The model runs in {half.value}, the type that its weights are stored in.")
        else:
            casts = "the rest alone" if lower is half else f"them to {lower.value} at every use"
            warnings.append(
                f"The model's weights are stored as {half.value}: {conditions.precision.value} casts {casts}."
            )
    if compiled.is_halved and graph.keeps_fp32_parts:
        warnings.append(
            f"The model was read in float32: what its own code computes in float32 is taken for "
            f"{conditions.precision.value} as well, and time and memory may be off for that. Read it with "
            f'precision="{conditions.precision.value}" of dippm.load, or give the module in that type.'
        )
    warnings += _attention_warning(compiled, compiled.runs_in)
    has_fp8 = tensor_format(device, Arithmetic.FP8) is Arithmetic.FP8
    if np.any(prepared.compiled.plan.arithmetic[compiled.nodes] == _FP8):
        warnings.append(
            "No measurement stands behind the time of products in FP8."
            if has_fp8
            else f"The data sheet of {device.name} has no rate of FP8: such products are timed as BF16."
        )
    elif compiled.stores_fp8:
        warnings.append(
            "Products of weights in FP8 are timed in the type of the activations: kernels of FP8 may be faster."
            if has_fp8
            else f"Weights in FP8 are counted as they are stored; on {device.name}, which has no units for FP8, "
            f"{_what_becomes_of_fp8(graph)}, which takes twice the memory."
        )
    if (missing := compiled.missing_format(device)) is not None:
        is_bf16 = missing is DType.BFLOAT16
        is_own = missing not in {autocast_type(compiled.runs_in), whole_model_type(compiled.runs_in)}
        cure = (
            " It has one for fp16, which --precision takes."
            if is_bf16 and "fp16_tensor" in device.peak_tflops and not is_own
            else ""
        )
        asks = ", which the model asks autocast for" if is_own else ""
        warnings.append(
            f"{device.name} has no unit for {'bf16' if is_bf16 else 'fp16'}{asks}: FP32 arithmetic on 16-bit tensors "
            f"is assumed.{cure}"
        )
    if conditions.precision is Precision.TF32 and "tf32_tensor" not in device.peak_tflops:
        warnings.append(f"{device.name} has no unit for tf32: this is FP32.")
    if names := ", ".join(sorted(kind.value for kind in (unseen - {OpKind.VIEW}) & compiled.kinds)):
        warnings.append(f"No model that the time was learned from has these operators: {names}.")
    if compiled.stores_packed:
        warnings += _packed_warning(graph, conditions.mode)
    if conditions.adapters is not None and not conditions.adapters.has_dropout:
        warnings.append(
            "Adapters are taken to have no dropout (lora_dropout of PEFT): it takes more memory, and "
            f"{conditions.adapters.rank}+dropout asks for it."
        )
    if conditions.adapters is not None and not conditions.adapters.targets and find_stacks(graph):
        warnings.append(
            "Experts that are stored as one tensor get no adapter: PEFT gives those of some models one each, which "
            "takes more time and memory."
        )
    if compiled.widened_mb:
        warnings.append(
            "Weights that are not quantised are taken to have 16 bits: prepare_model_for_kbit_training of PEFT makes "
            f"them float32, which takes {compiled.widened_mb:,.0f} MiB more. The memory interval holds that."
        )
    if compiled.uncached_mb >= _WORTH_A_WORD_MB:
        warnings.append(
            "Memory is that under torch.inference_mode, where autocast keeps no copies of weights since PyTorch 2.11: "
            f"under torch.no_grad it keeps them, which takes up to {compiled.uncached_mb:,.0f} MiB more. The memory "
            "interval holds that."
        )
    if compiled.untrained_mb >= _WORTH_A_WORD_MB:
        warnings.append(
            f"No gradient reaches {compiled.untrained_mb:,.0f} MiB of weights, '{compiled.untrained}' among them: they "
            "lead to no output that the loss is taken of, and their gradients and their part of the update are left "
            "out. If they are trained, let the model return what they compute; if not, freeze them."
        )
    if conditions.mode is Mode.TRAINING and conditions.adapters is None and OpKind.EMBEDDING in compiled.kinds:
        optimizer = conditions.optimizer or Optimizer.MOMENTUM
        warnings += warn_of_dense(graph, optimizer, accumulation=conditions.accumulation)
    if conditions.accumulation > 1 or conditions.is_checkpointed:
        warnings.append("Steps with accumulated gradients or computed-again activations were not measured.")
    if conditions.mode is Mode.TRAINING and conditions.optimizer not in _TIMED_OPTIMIZERS:
        warnings.append(f"No training step with {conditions.optimizer} was measured: its update is costed by bytes.")
    warnings.append("The memory interval rests on which batches of image models fitted 24 GB, in amp.")
    if (device.parent or device.name) not in power_devices:
        warnings.append(f"Energy comes from a power model fitted on runs of {len(power_devices)} other boards.")
        if is_always_limited(power, device):
            warnings.append(
                f"Energy takes {device.name} to draw its power limit in every kernel that fills it: no measurement "
                "confirms that."
            )
    return tuple(warnings)


def _packed_warning(graph: Graph, mode: Mode) -> list[str]:
    """What the time of products with quantised weights rests on, those in FP8 apart."""
    types = sorted(dtype.value for dtype in count_quantised(graph) if dtype is not DType.FLOAT8)
    if not types:
        return []
    stored = f"Weights are stored as {', '.join(types)}"
    if any(PACKED_BY in node.attributes for node in graph.nodes):
        told = [
            f"{stored}: what their library takes to launch and to unpack them rests on published runs of T4, A100 and "
            "H100. On a desktop's host they were up to 2.9 times faster."
        ]
        if any(tensor.role is TensorRole.CACHE for tensor in graph.tensors):
            told.append(
                "The memory is that of one token: token by token a cache grows into the memory that weights are "
                "unpacked to and leaves gaps there, so that a long text needs more than its last token says. "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is made against that."
            )
        return told
    what = "reads them so" if mode is Mode.INFERENCE else "has them unpacked before it"
    return [f"{stored}, and every product {what}: no time of that was measured."]


def warn_of_answer(
    graph: Graph,
    batch: int,
    device: DeviceSpec,
    *,
    runtime: Runtime,
    busy_share: float,
    copying_share: float,
    head_share: float,
    needed_mb: tuple[float, float],
) -> tuple[str, ...]:
    """What follows from one batch and its figures.

    Args:
        graph: The model.
        batch: Samples per call.
        device: The device.
        runtime: The runtime.
        busy_share: Share of the time for which the device is busy.
        copying_share: Share of the time that it takes to copy the cache of a decoder; see :func:`find_cache_copies`.
        head_share: Share of the time of convolutions that are taken to run as plain sums; see
            :func:`find_plain_heads`.
        needed_mb: Ends of the interval of the memory that is needed, MiB.
    """
    warnings = [*warn_of_batch(graph, batch)]
    if busy_share < _BUSY and runtime is Runtime.CUDA_GRAPH:
        warnings.append(f"The launch of the captured graph is {100 * (1 - busy_share):.0f} % of the time.")
    elif busy_share < _BUSY:
        warnings.append(
            f"The device waits for the host {100 * (1 - busy_share):.0f} % of the time: the latency depends on the CPU "
            "and on Python."
        )
    if copying_share >= _COPYING:
        warnings.append(
            f"{100 * copying_share:.0f} % of the time goes to copying the cache of keys and values, as DynamicCache of "
            "transformers does to make room for a token: servers with a cache in pages take that much less."
        )
    if head_share >= _HEADS:
        warnings.append(
            f"{100 * head_share:.0f} % of the time goes to a 7 x 7 convolution over nearly the whole image, which "
            "cuDNN is taken to run outside of tensor cores at this batch, as it did in 69 of 139 traces: it takes a "
            "fourth or less where it does not, as torch.backends.cudnn.benchmark may find."
        )
    least, most = needed_mb
    if most > device.capacity_mb:
        verb = "does not fit" if least > device.capacity_mb else "may not fit"
        warnings.append(f"It {verb}: {device.name} offers {device.capacity_mb:,.0f} MiB.")
    return tuple(warnings)


def find_cache_copies(prepared: PreparedGraphs) -> npt.NDArray[np.bool_]:
    """Nodes in which a decoder's step copies the cache of earlier tokens to let it grow, [n_nodes].

    Args:
        prepared: The graphs.
    """
    result = np.zeros(len(prepared.compiled.times), dtype=np.bool_)
    for compiled in prepared.compiled.members:
        if Purpose.CACHE not in compiled.timeline.purposes:
            continue
        tensors = compiled.graph.tensors
        result[compiled.nodes] = [
            node.kind is OpKind.CONCAT
            and node.inputs[0] >= 0
            and {tensors[node.inputs[0]].role, tensors[node.outputs[0]].role} == {TensorRole.CACHE}
            for node in compiled.graph.nodes
        ]
    return result


def find_plain_heads(prepared: PreparedGraphs, device: DeviceSpec, rates: Rates) -> npt.NDArray[np.bool_]:
    """Convolutions that are taken to run outside of tensor cores at each batch, though these have them, [B, n_nodes].

    Args:
        prepared: The graphs.
        device: The device.
        rates: Rates of the sum of kernel times.
    """
    plan = prepared.compiled.plan
    result = np.zeros((len(prepared.batches), len(plan.dispatch_us)), dtype=np.bool_)
    if plan.work.fusion is None and rates.on(device).head_cycles:
        layout = prepared.conditions.layout
        node, terms = plain_head_terms(plan, prepared.at, layout=layout, sm_count=device.sm_count)
        result[:, node] = terms > 0.0
    return result


def _what_becomes_of_fp8(graph: Graph) -> str:
    """What weights in FP8 become where nothing multiplies them: it is known of checkpoints of transformers alone."""
    # Only a model of a library keeps parts in FP32; others of them may load weights in FP8 by now.
    if graph.framework == "pytorch" and graph.keeps_fp32_parts:
        return "transformers, where it loads them, makes them bfloat16"
    return f"what runs the {'ONNX file' if graph.framework == 'onnx' else 'model'} may make them 16 bits wide"


def _attention_warning(compiled: CompiledGraph, precision: Precision) -> tuple[str, ...]:
    """What is said of attention that no fused kernel takes, where operands have 16 bits."""
    if not _has_16_bits(precision) or OpKind.MATMUL not in compiled.kinds:
        return ()
    count = count_raised_products(compiled.graph)
    if not count:
        return ()
    reason = "no fused kernel takes heads in other than four dimensions, or one head of keys for all"
    if compiled.is_halved:
        return (
            f"{count} products of attention are taken to run in {precision}, and PyTorch computes them in FP32 since "
            f"2.5, which takes longer: {reason}.",
        )
    return (
        f"{count} products of attention run in FP32 and write their scores to memory: {reason}, and PyTorch raises "
        "such products since 2.5.",
    )


def _has_16_bits(precision: Precision) -> bool:
    return precision.is_autocast or whole_model_type(precision) is not None


def _known_of_time(software: Software, conditions: Conditions, device: DeviceSpec) -> str:
    known = []
    if software.searches_convolutions:
        known.append("what looking for convolutions takes the host")
    is_driven = device.compute_capability < FED_WELL_FROM and "fp16_tensor" in device.peak_tflops
    if software.feeds_slowly and is_driven and _has_16_bits(conditions.precision):
        assumed = ", which is assumed" if software.cuda is None else ""
        known.append(f"how long tensor cores wait for operands of 16 bits with CUDA before 11.8{assumed}")
    return f"corrected is {', and '.join(known)}; no other factor is known" if known else "no factor between is known"


def _software_warning(software: Software, conditions: Conditions, device: DeviceSpec) -> tuple[str, ...]:
    """What is said of software that was asked for, and of today's where it does not drive the device."""
    build = driving_build(device, software)
    if build != software:
        return (f"CUDA 13 does not drive {device.name}: it holds for {build}.",)
    # Of today's release the labels say enough, whichever its CUDA.
    if software.torch == DEFAULT_SOFTWARE.torch:
        return ()
    if software.is_unknown:
        return (f"{software} is newer than any release known here: it is taken for {DEFAULT_SOFTWARE}.",)
    timed_with = _TIMED_WITH[conditions.mode]
    if software.torch == timed_with:
        return (f"It holds for {software}.",)
    measured = ".".join(map(str, timed_with))
    known = _known_of_time(software, conditions, device)
    return (f"It holds for {software}, but its time was measured with torch {measured}: {known}.",)
