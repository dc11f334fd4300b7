"""What a forward pass that did not come to its end says to the caller."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from dippm.errors import DippmError, ModelReadError, UnsupportedError, UsageError
from dippm.frontends.torch.asked_values import DataDependentError, FloatIndicesError
from dippm.frontends.torch.higher_order import COND
from dippm.frontends.torch.script_traceback import is_script_error, script_message, script_place

__all__ = ["forward_error"]

# Operators that read one value for Python to decide by; of all others the size of the result depends on values.
_DECIDING = frozenset({"_local_scalar_dense", "equal", "is_nonzero"})
_NO_GPU = re.compile(r"not compiled with CUDA|No CUDA GPUs|no NVIDIA driver|NVIDIA driver on your system")
_NO_STORAGE = re.compile(r"SparseTensorImpl|SparseCsrTensorImpl|NestedTensorImpl|NestedIntNode")
_NO_HISTORY = re.compile(
    r"does not require grad and does not have a grad_fn|returned an invalid gradient at index"
    r"|Inference tensors cannot be saved for backward"
)
_NEVER_SCRIPTED = re.compile(r"not working with scripting")
_NO_SHAPE_RULE = re.compile(r"no fake impl registered")
# What PyTorch says where a tensor is asked for data that it lacks here, past the operators that a recording sees.
_WITHOUT_DATA = re.compile(
    r"can't convert (?P<numpy>meta) device|Not available for 'meta' device|out of meta tensor|on meta tensors"
)
_OWN_OPERATOR = re.compile(r"\baten[:.]")
# What Python raises for a mistake in code, whatever the sizes are.
_MISTAKES = (AttributeError, ImportError, KeyError, NameError, NotImplementedError, RecursionError, TypeError)
_HERE = Path(__file__).parent
_TORCH = Path(torch.__file__).parent


def forward_error(
    error: Exception, *, raised: Exception | None, source: str, shapes: str, buffers: Sequence[str] = ()
) -> Exception:
    """The error to raise for an exception of a forward pass.

    Args:
        error: What the forward pass raised.
        raised: What the last operator raised, if it did: TorchScript passes an error of its own on instead.
        source: Where the model came from.
        shapes: The inputs' shapes that it was called with.
        buffers: Names of buffers without values, where it decides by these alone.

    Returns:
        A :class:`~dippm.errors.DippmError`, or the
        :class:`~dippm.frontends.torch.asked_values.FloatIndicesError` that an operator of TorchScript raised.
    """
    if isinstance(raised, DippmError):
        return raised
    is_script = is_script_error(error)
    cause = raised if is_script and raised is not None else error
    if isinstance(cause, FloatIndicesError):
        return cause
    place = script_place(error) if is_script else _users_line(error)
    if isinstance(cause, DataDependentError):
        if buffers:
            return _without_values(buffers, place=place, source=source)
        return _data_dependent(str(cause), place=place, source=source, is_script=is_script)
    kind, text = script_message(error) if is_script and cause is error else (type(cause).__name__, _first_line(cause))
    text = text[:500].rstrip(".") + "."
    if _NO_STORAGE.search(text):
        return UnsupportedError(
            f"{source} has sparse or nested tensors at {place}; how much they hold depends on values, and what it "
            "costs cannot be known from shapes alone.",
            code="torch.sparse",
            cure="Give the model with dense tensors: a matrix, or sequences that are padded to one length.",
        )
    if _NO_HISTORY.search(text):
        return UnsupportedError(
            f"{source} differentiates in its forward pass, at {place}, which cannot be recorded.",
            code="torch.differentiates",
            cure="Give the model that it differentiates; a backward pass costs about twice what a forward pass does.",
        )
    no_data = _WITHOUT_DATA.search(text)
    if no_data is not None:
        asked = "Tensor.numpy" if no_data["numpy"] else "Tensor.untyped_storage" if "'meta'" in text else "Tensor.item"
        return _data_dependent(asked, place=place, source=source, is_script=is_script)
    if _is_mistake(error, raised=raised):
        return ModelReadError(
            f"The code of {source} failed at {place}: {kind}: {text}",
            code="torch.forward_failed",
            cure="Mend that line; where it is right, give the inputs as forward takes them, in number and kind.",
        )
    if isinstance(cause, NotImplementedError) or _NO_SHAPE_RULE.search(text):
        return UnsupportedError(
            f"{source} runs an operator whose output shape PyTorch cannot tell without data, at {place}: {text}",
            code="torch.no_shape_rule",
            cure="Give the model without that operator, as without a loss: PyTorch itself would have to know its shape."
            if _OWN_OPERATOR.search(text)
            else "Register a fake implementation for it with torch.library.register_fake.",
        )
    if _NO_GPU.search(text):
        return UnsupportedError(
            f"{source} asks for a GPU of this machine, which has none, at {place}: {kind}: {text}",
            code="torch.needs_gpu",
            cure="Leave that line out, or have it run only where torch.cuda.is_available(): the GPU of a prediction "
            "need not be here.",
        )
    if is_script and _NEVER_SCRIPTED.search(text):
        return UnsupportedError(
            f"{source} has parts that PyTorch saves scripted and never runs, at {place}: {kind}: {text}",
            code="torch.script_cannot_run",
            cure="Give the module itself, or script it again once its weights are plain ones "
            "(torch.nn.utils.parametrize.remove_parametrizations).",
        )
    return UsageError(
        f"{source} does not take inputs of shape {shapes} (batch first): {kind} at {place}: {text}",
        code="input.shape_wrong",
        cure="Give the shape of one sample, without the batch, as the model takes it; where it takes certain batches "
        "alone, ask for one of these.",
    )


def _without_values(buffers: Sequence[str], *, place: str, source: str) -> UnsupportedError:
    which, have = ("buffers", "they have") if len(buffers) > 1 else ("buffer", "it has")
    return UnsupportedError(
        f"{source} decides by the values of its {which} {', '.join(buffers)} at {place}, and {have} none here.",
        code="torch.data_dependent",
        cure="Give the module itself, built on the CPU and not without values (on the meta device).",
    )


def _data_dependent(asked: str, *, place: str, source: str, is_script: bool) -> UnsupportedError:
    if asked == COND:
        return UnsupportedError(
            f"{source} takes a branch of torch.cond by the values of its input, at {place}; its operators cannot be "
            "known from shapes alone.",
            code="torch.data_dependent",
            cure="Give the model with the branch that matters in place of torch.cond, or as ONNX: of a branch in such "
            "a file the larger side is taken.",
        )
    does_decide = asked.startswith("Tensor.") or asked.rpartition(".")[2] in _DECIDING
    if not does_decide:
        return UnsupportedError(
            f"{source} has tensors whose sizes depend on the values of its input, at {place} ({asked}); what it costs "
            "cannot be known from shapes alone.",
            code="torch.data_dependent",
            cure="Give the part of the model before that line, or have it take a fixed number there: topk, or "
            "a mask that is multiplied.",
        )
    # What is scripted already keeps all its cases, also when it is traced.
    module = "the module that was scripted" if is_script else "it"
    return UnsupportedError(
        f"{source} decides by the values of its input at {place} ({asked}); its operators cannot be known from shapes "
        "alone.",
        code="torch.data_dependent",
        cure=f"Fix the case that matters by an example of {module}, and give that file: "
        "torch.jit.trace(module, example).save('model.pt'), or "
        "torch.export.save(torch.export.draft_export(module, (example,)), 'model.pt2'), which PyTorch cannot save for "
        "every module.",
    )


def _is_mistake(error: Exception, *, raised: Exception | None) -> bool:
    """Whether an exception is of the model's own code: not an operator's, and not raised in code of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, _MISTAKES) or error is raised or not frames:
        return False
    if isinstance(error, TypeError):  # PyTorch's calls go through code of this package, and refuse arguments so
        return any(map(_is_users, frames))
    if isinstance(error, NotImplementedError):  # of PyTorch's code it is a limit, but for a forward that is not there
        return _is_users(frames[-1]) or frames[-1].name == "_forward_unimplemented"
    return _HERE not in Path(frames[-1].filename).parents


def _users_line(error: BaseException) -> str:
    """Where in the model's own code an error arose, as file:line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = list(filter(_is_users, frames))
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "a place that is not in any source file here"


def _is_users(frame: traceback.FrameSummary) -> bool:
    return not {_HERE, _TORCH} & set(Path(frame.filename).parents)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
