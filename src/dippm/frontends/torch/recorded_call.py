"""One call of a part of a module on inputs without data, for the sizes of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.frontends.process_lock import PROCESS_LOCK
from dippm.frontends.torch.call_inputs import default_dtype, make_inputs
from dippm.frontends.torch.module_state import ModuleState
from dippm.frontends.torch.pretended_device import PretendedDevice
from dippm.frontends.torch.recorder import Recorder

__all__ = ["call_without_data"]


def call_without_data(
    module: nn.Module, function: Callable[..., Any], entries: Mapping[str, InputEntry], *, batch: int, **others: Any
) -> Any:
    """What a function of a module returns, its tensors without data; the module is left as it was.

    Args:
        module: In evaluation mode while the function runs.
        function: The module's forward, or another method of it.
        entries: Its tensors by name.
        batch: Batch size of those.
        others: Its other arguments.

    Raises:
        Exception: Whatever the function raises;
            :class:`~dippm.frontends.torch.asked_values.DataDependentError` where it decides by values.
    """
    recorder = Recorder(scope=str)
    with PROCESS_LOCK:
        state = ModuleState(module)
        try:
            state.evaluate()
            recorder.table.add_weights_of(module)
            _, named, _ = make_inputs(
                recorder,
                InputShapes(named=entries),
                batch=batch,
                default=default_dtype(module),
                integer_inputs=frozenset(),
            )
            with torch.inference_mode(), PretendedDevice(recorder), recorder, recorder.autocast.noted():
                return function(**named, **others)
        finally:
            state.restore()
            recorder.table.close()
