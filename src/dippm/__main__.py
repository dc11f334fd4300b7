"""``python -m dippm`` is the same as ``dippm``."""

from __future__ import annotations

from dippm.cli import main

raise SystemExit(main())
