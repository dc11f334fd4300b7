"""Measuring in this process, for a notebook or a test; a campaign has a :class:`~dippm.measuring.worker.Worker`."""

from __future__ import annotations

from dippm.measuring.configuration import Configuration
from dippm.measuring.device_names import describe_device
from dippm.measuring.measurement import Measurement
from dippm.measuring.model_source import ModelSource

__all__ = ["describe_device", "measure_once"]


def measure_once(source: ModelSource, configuration: Configuration, *, device: str = "cpu") -> Measurement:
    """Build and measure a model in this process, without any limit of time.

    On a GPU whose driver does not see this process (in a container), memory counts all that was added to the device
    since this call; what this process held there before is left out.

    Args:
        source: The model.
        configuration: How it is run.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:INDEX"``.

    Raises:
        UnsupportedError: ``device.unavailable``.
        MissingExtraError: where PyTorch is not installed.
    """
    from dippm.measuring.bench import Bench

    return next(Bench(device).measure(source, (configuration,)))
