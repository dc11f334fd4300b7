"""A training step in PyTorch as one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from dippm.costs.conditions import Optimizer, Runtime
from dippm.costs.precision import Precision
from dippm.errors import UnsupportedError
from dippm.frontends.torch.own_loss import is_scored_in_fp32
from dippm.measuring.arithmetic import autocast
from dippm.measuring.configuration import Configuration
from dippm.measuring.inference import converted
from dippm.measuring.outputs import find_logits, floating_tensors
from dippm.measuring.sample_inputs import Inputs
from dippm.measuring.trained_outputs import find_trained_outputs

__all__ = ["Loss", "training_call"]

# So small that tens of steps on noise leave the weights where they were; the kernels are the same.
_LEARNING_RATE = 1e-6
_MOMENTUM = 0.9
# Small enough for no step to be skipped for an overflow, in which case the optimizer would not run.
_FIRST_LOSS_SCALE = 2.0**8


@contextmanager
def training_call(
    module: nn.Module, inputs: Inputs, configuration: Configuration, *, device: str
) -> Iterator[Callable[[], object]]:
    """One step: forward, loss, backward, optimizer if there is one, gradients released.

    With ``amp`` on CUDA the loss is scaled by a ``GradScaler``, whose check for overflow waits for the device once
    a step. The optimizer has its state after the first step.

    Args:
        module: The model on the device; converted as in inference, put in training mode and back at the end.
        inputs: Its inputs.
        configuration: How it is trained.
        device: The device.

    Yields:
        The call, which returns the loss.

    Raises:
        UnsupportedError: ``runtime.unsupported`` for CUDA graphs; ``training.nothing_to_train`` for a model without
            weights.
    """
    configuration.check_torch(device)
    conditions = configuration.conditions
    module, inputs = converted(module, inputs, configuration)
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not weights:
        raise UnsupportedError("The model has no weights to train.", code="training.nothing_to_train")
    optimizer = _make_optimizer(conditions.optimizer, weights)
    is_scaled = conditions.precision is Precision.AMP and torch.device(device).type == "cuda"
    scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=_FIRST_LOSS_SCALE, enabled=is_scaled)
    loss_of = Loss(is_in_fp32=is_scored_in_fp32(module))
    forward = torch.compile(module) if conditions.runtime is Runtime.COMPILE else module
    args, kwargs = inputs.arguments

    def step() -> object:
        with autocast(conditions.precision, device):
            loss = loss_of(forward(*args, **kwargs))
        # Without scaling these are the loss's own backward and the optimizer's own step.
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if conditions.optimizer is not Optimizer.NONE:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    module.train()
    try:
        yield step
    finally:
        module.eval()
        optimizer.zero_grad(set_to_none=True)
        if conditions.runtime is Runtime.COMPILE:
            torch.compiler.reset()


class Loss:
    """Cross entropy over the last dimension of logits, against classes drawn once; for anything else, the mean of the
    squares of every floating output, added up.

    Of outputs beside logits those count that lead to weights where these do not, each by its own shape; which these
    are, the first output tells.

    Args:
        is_in_fp32: Whether logits are made FP32 first, as the model's own loss does.
    """  # noqa: D205 - one sentence

    def __init__(self, *, is_in_fp32: bool = False) -> None:
        self._is_in_fp32 = is_in_fp32
        self._classes: dict[int, torch.Tensor] = {}
        self._heads: list[int] | None = None

    def __call__(self, output: object) -> torch.Tensor:
        """The loss of an output.

        Raises:
            UnsupportedError: ``training.no_loss`` where no output has a gradient.
        """
        logits = find_logits(output)
        if logits is not None and logits.requires_grad:
            loss = self._cross_entropy(logits, 0)
            others = [] if output is logits else [other for other in floating_tensors(output) if other is not logits]
            if self._heads is None:
                self._heads = find_trained_outputs(logits, others)
            for place in self._heads:
                head = others[place]
                has_scores = find_logits(head) is not None
                loss = loss + (self._cross_entropy(head, place + 1) if has_scores else head.square().mean())
            return loss
        terms = [tensor.square().mean() for tensor in floating_tensors(output) if tensor.requires_grad]
        if not terms:
            raise UnsupportedError("No output of the model depends on its weights.", code="training.no_loss")
        return torch.stack([term.float() for term in terms]).sum()

    def _cross_entropy(self, logits: torch.Tensor, place: int) -> torch.Tensor:
        scores = logits.reshape(-1, logits.shape[-1])
        if self._is_in_fp32 and place == 0:
            scores = scores.float()
        classes = self._classes.get(place)
        if classes is None or classes.shape[0] != scores.shape[0]:
            classes = torch.randint(scores.shape[1], (scores.shape[0],), device=scores.device)
            self._classes[place] = classes
        return functional.cross_entropy(scores, classes)


def _make_optimizer(optimizer: Optimizer | None, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    match optimizer:
        case Optimizer.MOMENTUM:
            return torch.optim.SGD(weights, lr=_LEARNING_RATE, momentum=_MOMENTUM)
        case Optimizer.ADAM:
            return torch.optim.Adam(weights, lr=_LEARNING_RATE)
        case Optimizer.ADAMW:
            return torch.optim.AdamW(weights, lr=_LEARNING_RATE)
        case Optimizer.ADAMW_FUSED:
            return torch.optim.AdamW(weights, lr=_LEARNING_RATE, fused=True)
        case Optimizer.ADAFACTOR:
            return torch.optim.Adafactor(weights, lr=_LEARNING_RATE)
        case Optimizer.RMSPROP:
            return torch.optim.RMSprop(weights, lr=_LEARNING_RATE)
        case Optimizer.ADAMW_8BIT:
            return _make_adamw_8bit(weights)
        case _:
            return torch.optim.SGD(weights, lr=_LEARNING_RATE)


def _make_adamw_8bit(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as exc:
        raise UnsupportedError(
            "AdamW with averages of 8 bits is measured with bitsandbytes, which is not installed.",
            code="optimizer.not_installed",
            cure="Install bitsandbytes, or measure another optimizer.",
        ) from exc
    result: torch.optim.Optimizer = AdamW8bit(weights, lr=_LEARNING_RATE)
    return result
