"""Labels kept: one store for all measurements, in SQLite or PostgreSQL, and Parquet files of it."""

from dippm.datasets.store.label import Label
from dippm.datasets.store.label_store import LabelStore
from dippm.datasets.store.parquet import export_parquet, read_parquet

__all__ = ["Label", "LabelStore", "export_parquet", "read_parquet"]
