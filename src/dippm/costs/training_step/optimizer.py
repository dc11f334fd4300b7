"""The optimizer's update, kernel by kernel, as PyTorch runs it on CUDA: ``foreach`` over all parameters, or one by one.

Sources: ``torch/optim/{sgd,adam,adamw,rmsprop,_adafactor}.py``, PyTorch 2.13, with each class's defaults (weight decay
0.01 in AdamW, none elsewhere) and momentum 0.9 without Nesterov. Adam keeps two averages of each parameter, and while
it updates a third list as large as the parameters; fused, it reads and writes all in one kernel and needs no list. Step
counters lie on the host; those of the fused one, a number for each parameter on the device, are left out.

Adafactor keeps, of a parameter of two or more dimensions, the variances of the rows and of the columns of its last two.
Alone of these classes it goes parameter by parameter unless it is asked for ``foreach``, so that its temporary tensors
are those of one parameter; that they stay until the next has its own, and that the host waits for the norms, is left
out.

AdamW with averages of 8 bits is that of bitsandbytes (``bitsandbytes/optim/optimizer.py``, since release 0.44): one
kernel for each parameter, averages of a byte, a scale in FP32 for each block of them, and those of small parameters in
FP32. Scripts that keep the averages of embeddings in FP32, as the trainer of transformers does, take 6 bytes more for
each of their weights.

Complex parameters are pairs of real ones to all of these but three: fused kernels and Adafactor refuse them as soon as
they have a gradient, and bitsandbytes has kernels for real numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.step_builder import StepBuilder
from dippm.errors import UnsupportedError
from dippm.graph import Dim, DType, OpKind, Shape, TensorRole

__all__ = ["append_update"]

# Numbers that share a scale in averages of 8 bits, and the fewest of a parameter that has such.
_BLOCK = 256
_LEAST_IN_8_BITS = 4096
# Those that take no complex parameters.
_REAL_ALONE = frozenset({Optimizer.ADAMW_FUSED, Optimizer.ADAMW_8BIT, Optimizer.ADAFACTOR})
# Operators that PyTorch runs a function as.
_RUN_AS = {"norm": "linalg_vector_norm", "clamp_min": "clamp"}
# As many parameters as a message names.
_NAMED = 3


def append_update(
    builder: StepBuilder,
    optimizer: Optimizer,
    parameters: Sequence[int],
    gradients: Sequence[int],
    *,
    rows: Mapping[int, int] | None = None,
) -> None:
    """Append the update of all parameters.

    Args:
        builder: Where the nodes go.
        optimizer: Which one.
        parameters: The parameters.
        gradients: Their gradients, in their order.
        rows: For each parameter with a sparse gradient the tensor of the rows that this has; plain SGD alone takes
            such.

    Raises:
        UnsupportedError: ``optimizer.complex`` where parameters are complex and the optimizer takes none that are.
    """
    if optimizer in _REAL_ALONE:
        _refuse_complex(builder, optimizer, parameters)
    update = _Update(builder)
    match optimizer:
        case Optimizer.SGD if rows:
            update.run_by_rows(parameters, gradients, rows)
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
        case Optimizer.ADAMW_FUSED:
            means = update.make_state(parameters, "exp_avg")
            squares = update.make_state(parameters, "exp_avg_sq")
            update.run("adamw", updates=[parameters, means, squares], reads=[gradients], source_op="aten._fused_adamw")
        case Optimizer.ADAMW_8BIT:
            update.run_in_8_bits(parameters, gradients)
        case Optimizer.ADAFACTOR:
            update.run_adafactor(parameters, gradients)
        case Optimizer.RMSPROP:
            squares = update.make_state(parameters, "square_avg")
            update.run("mul", updates=[squares])
            update.run("addcmul", updates=[squares], reads=[gradients])
            roots = update.make_lists(squares)
            update.run("sqrt", reads=[squares], writes=roots)
            update.run("add", updates=[roots])
            update.run("addcdiv", updates=[parameters], reads=[gradients, roots])
        case Optimizer.NONE:
            pass


def _refuse_complex(builder: StepBuilder, optimizer: Optimizer, parameters: Sequence[int]) -> None:
    found = [index for index in parameters if builder.dtype(index).is_complex]
    if not found:
        return
    named = [f"'{builder.tensors[index].name}' ({builder.dtype(index).value})" for index in found[:_NAMED]]
    others = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    able = [known.value for known in Optimizer if known not in {*_REAL_ALONE, Optimizer.NONE}]
    raise UnsupportedError(
        f"{optimizer.value} trains no complex parameters. '{builder.graph.source}' has {', '.join([*named, *others])}.",
        code="optimizer.complex",
        cure=f"Use {', '.join(able[:-1])} or {able[-1]}.",
    )


class _Update:
    def __init__(self, builder: StepBuilder) -> None:
        self._builder = builder

    def run_by_rows(self, parameters: Sequence[int], gradients: Sequence[int], rows: Mapping[int, int]) -> None:
        """SGD where one gradient is sparse, which takes every parameter by itself."""
        builder = self._builder
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if parameter not in rows:
                self._run_alone("add", updates=[parameter], reads=[gradient])
                continue
            scaled = builder.new_like(gradient)
            self._run_alone("mul", reads=[gradient], writes=[scaled])
            table = builder.new_tensor(builder.shape(parameter), builder.dtype(parameter), alias_of=parameter)
            inputs = (parameter, rows[parameter], scaled)
            builder.run(OpKind.SCATTER, inputs, (table,), "aten.index_add", function="index_add")

    def run_in_8_bits(self, parameters: Sequence[int], gradients: Sequence[int]) -> None:
        """AdamW of bitsandbytes, parameter by parameter."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            shape = self._builder.shape(parameter)
            count = math.prod(dim.fixed for dim in shape)
            dtype, scales, kernel = DType.FLOAT32, [], "32bit"
            if count >= _LEAST_IN_8_BITS:
                dtype, kernel, blocks = DType.UINT8, "8bit_blockwise", (Dim(0, -(-count // _BLOCK)),)
                scales = [self._new_state(parameter, name, blocks, DType.FLOAT32) for name in ("absmax1", "absmax2")]
            averages = [self._new_state(parameter, name, shape, dtype) for name in ("state1", "state2")]
            self.run(
                "adamw",
                updates=[[parameter], averages, scales],
                reads=[[gradient]],
                source_op=f"bitsandbytes.optimizer_update_{kernel}",
            )

    def run_adafactor(self, parameters: Sequence[int], gradients: Sequence[int]) -> None:
        """Adafactor, parameter by parameter."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._norm(parameter)
            is_factored = len(self._builder.shape(parameter)) > 1
            estimate_of = self._estimate_from_factors if is_factored else self._estimate_whole
            update = estimate_of(parameter, gradient)
            self._run_alone("clamp_min", updates=[update])
            self._run_alone("rsqrt", updates=[update])
            self._run_alone("mul", updates=[update], reads=[gradient])
            self._norm(update)
            self._run_alone("add", updates=[parameter], reads=[update])

    def _estimate_from_factors(self, parameter: int, gradient: int) -> int:
        """Variance as the product of that of the rows and that of the columns."""
        shape, dtype = self._builder.shape(parameter), self._builder.dtype(parameter)
        factors = []
        for name, dim in (("row_var", -1), ("col_var", -2)):
            reduced = _reduced(shape, dim)
            kept, mean = self._new_state(parameter, name, reduced, dtype), self._new_temporary(parameter, reduced)
            self._run_alone("norm", reads=[gradient], writes=[mean])
            self._run_alone("mul", updates=[mean], source_op="aten.pow")
            self._run_alone("div", updates=[mean])
            self._run_alone("lerp", updates=[kept], reads=[mean])
            factors.append(kept)
        row, column = factors
        (estimate,) = self.make_lists([parameter])
        self._run_alone("matmul", reads=[row, column], writes=[estimate])
        row_mean = self._new_temporary(row, _reduced(self._builder.shape(row), -2))
        self._run_alone("mean", reads=[row], writes=[row_mean])
        self._run_alone("clamp_min", updates=[row_mean])
        self._run_alone("div", updates=[estimate], reads=[row_mean])
        return estimate

    def _estimate_whole(self, parameter: int, gradient: int) -> int:
        """Variance as it is kept, of each element."""
        variances = self.make_state([parameter], "variance")
        squares = self.make_lists([parameter])
        self._run_alone("mul", reads=[gradient], writes=squares)
        self._run_alone("lerp", updates=variances, reads=squares)
        estimates = self.make_lists([parameter])
        self._run_alone("clone", reads=variances, writes=estimates)
        return estimates[0]

    def _norm(self, tensor: int) -> None:
        self._run_alone("norm", reads=[tensor], writes=[self._new_temporary(tensor, ())])

    def make_state(self, parameters: Sequence[int], name: str) -> list[int]:
        """State of the size of each parameter, kept from the first step on."""
        builder = self._builder
        return [self._new_state(index, name, builder.shape(index), builder.dtype(index)) for index in parameters]

    def _new_state(self, parameter: int, name: str, shape: Shape, dtype: DType) -> int:
        return self._builder.new_tensor(
            shape,
            dtype,
            name=f"{self._builder.tensors[parameter].name}.{name}",
            role=TensorRole.OPTIMIZER_STATE,
        )

    def _new_temporary(self, like: int, shape: Shape) -> int:
        return self._builder.new_tensor(shape, self._builder.dtype(like), name="temporary")

    def make_lists(self, like: Sequence[int]) -> list[int]:
        """Temporary tensors of the same sizes."""
        return [self._new_temporary(index, self._builder.shape(index)) for index in like]

    def run(
        self,
        function: str,
        *,
        updates: Sequence[Sequence[int]] = (),
        reads: Sequence[Sequence[int]] = (),
        writes: Sequence[int] = (),
        source_op: str = "",
    ) -> None:
        """One operator over lists of tensors, of PyTorch's ``foreach`` unless it is named."""
        updated = [index for group in updates for index in group]
        read = [index for group in reads for index in group]
        self._builder.run(
            OpKind.OPTIMIZER,
            (*updated, *read),
            writes,
            source_op or f"aten._foreach_{function}",
            function=function,
            attributes={"updated": len(updated)},
        )

    def _run_alone(
        self,
        function: str,
        *,
        updates: Sequence[int] = (),
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        source_op: str = "",
    ) -> None:
        """One operator of a single parameter, by the name that PyTorch runs it by."""
        name = source_op or f"aten.{_RUN_AS.get(function, function)}"
        self.run(function, updates=[updates], reads=[reads], writes=writes, source_op=name)


def _reduced(shape: Shape, dim: int) -> Shape:
    """A shape with one dimension reduced to 1, counted from behind."""
    place = len(shape) + dim
    return (*shape[:place], Dim(0, 1), *shape[place + 1 :])
