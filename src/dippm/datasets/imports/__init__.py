"""Published measurements as labels, each source with what its figures mean."""

from dippm.datasets.imports.timm import import_timm_tables
from dippm.datasets.imports.whole_models import import_whole_models

__all__ = ["import_timm_tables", "import_whole_models"]
