from typing import Any

import numpy.typing as npt

from dippm.costs.edges import IndexArray

def number(content: npt.NDArray[Any], stops: IndexArray, numbers: IndexArray) -> None: ...
def number_around(colours: IndexArray, source: IndexArray, target: IndexArray, numbers: IndexArray) -> None: ...
