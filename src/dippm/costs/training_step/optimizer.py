"""The optimizer's update, kernel by kernel, as PyTorch runs it on CUDA: ``foreach`` over all parameters.

Sources: ``torch/optim/{sgd,adam,adamw}.py``, PyTorch 2.13, with each class's defaults (weight decay 0.01 in AdamW, none
elsewhere) and momentum 0.9 without Nesterov. Adam keeps two averages of each parameter, and while it updates a third
list as large as the parameters. Step counters lie on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.graph import OpKind, TensorRole

__all__ = ["append_update"]


def append_update(
    builder: StepBuilder, optimizer: Optimizer, parameters: Sequence[int], gradients: Sequence[int]
) -> None:
    """Append the update of all parameters.

    Args:
        builder: Where the nodes go.
        optimizer: Which one.
        parameters: The parameters.
        gradients: Their gradients, in their order.
    """
    update = _Update(builder)
    match optimizer:
        case Optimizer.SGD:
            update.run("add", updates=[parameters], reads=[gradients])
        case Optimizer.MOMENTUM:
            momenta = update.make_state(parameters, "momentum")
            update.run("mul", updates=[momenta])
            update.run("add", updates=[momenta], reads=[gradients])
            update.run("add", updates=[parameters], reads=[momenta])
        case Optimizer.ADAM | Optimizer.ADAMW:
            means = update.make_state(parameters, "exp_avg")
            squares = update.make_state(parameters, "exp_avg_sq")
            if optimizer is Optimizer.ADAMW:
                update.run("mul", updates=[parameters])
            update.run("lerp", updates=[means], reads=[gradients])
            update.run("mul", updates=[squares])
            update.run("addcmul", updates=[squares], reads=[gradients])
            roots = update.make_lists(squares)
            update.run("sqrt", reads=[squares], writes=roots)
            update.run("div", updates=[roots])
            update.run("add", updates=[roots])
            update.run("addcdiv", updates=[parameters], reads=[means, roots])
        case Optimizer.NONE:
            pass


class _Update:
    def __init__(self, builder: StepBuilder) -> None:
        self._builder = builder

    def make_state(self, parameters: Sequence[int], name: str) -> list[int]:
        """State of the size of each parameter, kept from the first step on."""
        tensors = self._builder.tensors
        return [
            self._builder.new_tensor(
                tensors[index].shape,
                tensors[index].dtype,
                name=f"{tensors[index].name}.{name}",
                role=TensorRole.OPTIMIZER_STATE,
            )
            for index in parameters
        ]

    def make_lists(self, like: Sequence[int]) -> list[int]:
        """Temporary tensors of the same sizes."""
        tensors = self._builder.tensors
        return [
            self._builder.new_tensor(tensors[index].shape, tensors[index].dtype, name="temporary") for index in like
        ]

    def run(
        self,
        function: str,
        *,
        updates: Sequence[Sequence[int]] = (),
        reads: Sequence[Sequence[int]] = (),
        writes: Sequence[int] = (),
    ) -> None:
        """One operator over lists of tensors."""
        updated = [index for group in updates for index in group]
        read = [index for group in reads for index in group]
        self._builder.run(
            OpKind.OPTIMIZER,
            (*updated, *read),
            writes,
            f"aten._foreach_{function}",
            function=function,
            attributes={"updated": len(updated)},
        )
