"""Where the service stands between its start and its end."""

from __future__ import annotations

__all__ = ["ServiceState"]


class ServiceState:
    """Shared by everything that has to know that the service is about to stop."""

    def __init__(self) -> None:
        self.is_draining = False
