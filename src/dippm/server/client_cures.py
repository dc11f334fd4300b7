"""What a client of the service can do about an error: it has no command line here, and no word of trust."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dippm.api import DippmError

__all__ = ["client_cure"]

_CURES: Mapping[str, str] = {
    "device.unknown": "GET /v1/devices lists all devices.",
    "extra.missing": "Whoever runs the service can install it; or ask dippm on your own machine.",
    "torch.pickle_refused": "Upload the model as TorchScript, a torch.export archive or ONNX.",
}
_NAMED_INPUT = re.compile(r"--input ([^\s=]+)=([\w,:]+)")
_OPTION = re.compile(r"--(input|layout) ([\w,:]+)")


def client_cure(error: DippmError) -> str | None:
    """The cure of an error as the body of a request says it; None where there is none."""
    if error.cure is None or error.code in _CURES:
        return _CURES.get(error.code)
    return _OPTION.sub(r'"\1": "\2"', _NAMED_INPUT.sub(r'"input": {"\1": "\2"}', error.cure))
