"""Lightning, imported so that it works and does not warn the users of dippm.

Its metrics import torchvision, which has to find its operators, whatever torch it was built for.
"""

from __future__ import annotations

import warnings

from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

import_torchvision_ops()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import lightning.pytorch as pl

__all__ = ["pl"]
