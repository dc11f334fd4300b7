"""Whether PyTorch's loader of ``torch.export`` archives would unpickle anything but plain tensors."""

from __future__ import annotations

import io
import json
import zipfile

from dippm.frontends.torch.archive import DAMAGES
from dippm.frontends.torch.pickle_scan import scan_pickles

__all__ = ["loading_runs_code"]

_CONFIG = "_config.json"
_SAMPLES = "/sample_inputs/"
_CUSTOM_OBJECT = "custom_obj"


def loading_runs_code(archive: zipfile.ZipFile) -> bool:
    """Whether loading an archive could run code that the archive chooses.

    Weights and constants are raw bytes unless their table says that they are pickled; sample inputs always are a
    pickle, of tensors alone in an ordinary archive. Anything that cannot be read is answered with yes.
    """
    names = archive.namelist()
    if not any(name.endswith(_CONFIG) for name in names):
        return True  # the format before these tables, pickled throughout
    try:
        return any(_is_unsafe(archive, name) for name in names)
    except (*DAMAGES, KeyError, TypeError, AttributeError):
        return True


def _is_unsafe(archive: zipfile.ZipFile, name: str) -> bool:
    if name.endswith(_CONFIG):
        return any(
            bool(entry["use_pickle"]) or str(entry["path_name"]).startswith(_CUSTOM_OBJECT)
            for entry in json.loads(archive.read(name))["config"].values()
        )
    if _SAMPLES in name:
        with zipfile.ZipFile(io.BytesIO(archive.read(name))) as samples:
            pickles = [scan_pickles(samples.read(entry)) for entry in samples.namelist() if entry.endswith(".pkl")]
        return any(scan.foreign or not scan.is_complete for scan in pickles)
    return False
