import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

FloatArray = npt.NDArray[np.float32]

def multiply(values: FloatArray, weights: FloatArray, bias: FloatArray, result: FloatArray, /) -> None: ...
def begin(
    values: FloatArray,
    weights: FloatArray,
    bias: FloatArray,
    known: FloatArray,
    number: IndexArray,
    result: FloatArray,
    /,
) -> None: ...
def listen(
    values: FloatArray,
    producers_start: IndexArray,
    producers_source: IndexArray,
    producers_weight: FloatArray,
    consumers_start: IndexArray,
    consumers_source: IndexArray,
    consumers_weight: FloatArray,
    weights: FloatArray,
    bias: FloatArray,
    result: FloatArray,
    /,
) -> None: ...
def use(width: int, /) -> None: ...
