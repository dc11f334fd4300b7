"""Devices: what the data sheets say of each, found by forgiving names, and MIG slices as devices of their own."""

from dippm.devices.catalog import DEVICE_FILE_REQUIRED, find_device, load_catalog, load_device_file, slice_device
from dippm.devices.comparison import is_better
from dippm.devices.spec import ARCHITECTURES, PEAK_RATES, DeviceSpec, MigProfile, latest_figure

__all__ = [
    "ARCHITECTURES",
    "DEVICE_FILE_REQUIRED",
    "PEAK_RATES",
    "DeviceSpec",
    "MigProfile",
    "find_device",
    "is_better",
    "latest_figure",
    "load_catalog",
    "load_device_file",
    "slice_device",
]
