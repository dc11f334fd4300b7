"""The lock under which models are built and read, because both turn switches of the whole process."""

from __future__ import annotations

import threading

__all__ = ["PROCESS_LOCK"]

# Warning filters, module hooks, the attention fast path and TorchScript's optimisation belong to the process. Reading
# a file takes the lock and reads a module inside it, so it must be re-entrant.
PROCESS_LOCK = threading.RLock()
