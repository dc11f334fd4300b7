"""Lightning, imported so that it works and does not warn the users of dippm.

Its metrics import torchvision, which has to find its operators, whatever torch it was built for. Its logs go through
TensorBoard, which would import TensorFlow where that is installed: seconds, and a screen of messages.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

import_torchvision_ops()
# TensorBoard's own sign that it is to do without.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import lightning.pytorch as pl

__all__ = ["pl"]
