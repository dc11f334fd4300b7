"""What an operator of the service decides."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

from dippm.api import UsageError
from dippm.processes.machine_share import usable_processors

__all__ = ["Settings"]

_SHORTEST_TOKEN = 16
_HIGHEST_PORT = 65535
_OPEN_RATE_PER_S = 50.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of the service, checked once.

    Args:
        host: Address to listen on, or a name of it.
        port: Port; 0 takes a free one.
        token: What clients must present; needed for any address that other machines reach.
        workers: Processes that read and predict models.
        max_upload_mb: Largest upload, MiB; a ``.zip`` may unpack to four times as much.
        timeout_s: Time for the work of one request, and for its wait until a worker is free, s.
        memory_mb: Memory that a worker may allocate, MiB. Linux holds to it; other systems may not.
        cache_mb: Memory for answers that are kept, MiB; 0 keeps none.
        max_requests: Requests under way at once, those that wait for a worker included.
        rate_per_s: Requests that one client may make per second, 0 for any number. Left out, it is any number on
            localhost and 50 elsewhere.
        drain_s: Time for which new requests are still answered once the service is told to stop, s.
        grace_s: Time for which running requests may then go on, s.

    Raises:
        UsageError: ``service.settings`` where one is out of range, ``service.token_missing`` where other machines
            reach the service without a token, ``service.token_weak``.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    workers: int = field(default_factory=usable_processors)
    max_upload_mb: int = 1024
    timeout_s: float = 60.0
    memory_mb: int = 4096
    cache_mb: int = 64
    max_requests: int = 256
    rate_per_s: float | None = None
    drain_s: float = 1.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("port", 0, _HIGHEST_PORT),
            ("workers", 1, 256),
            ("max_upload_mb", 1, 2**20),
            ("timeout_s", 0.1, 86400),
            ("memory_mb", 512, 2**24),
            ("cache_mb", 0, 2**20),
            ("max_requests", 1, 2**16),
            ("rate_per_s", 0, 1e6),
            ("drain_s", 0, 3600),
            ("grace_s", 0, 86400),
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise UsageError(
                    f"The setting {name} must be from {least:g} to {most:g}. Got {value!r} instead.",
                    code="service.settings",
                )
        self._check_token()

    def _check_token(self) -> None:
        if self.token is None:
            if not self.is_local:
                raise UsageError(
                    f"On the address '{self.host}' other machines reach the service, and no token was given.",
                    code="service.token_missing",
                    cure="Set DIPPM_TOKEN, give --token-file, or listen on 127.0.0.1.",
                )
        elif len(self.token) < _SHORTEST_TOKEN or not all("!" <= each <= "~" for each in self.token):
            raise UsageError(
                f"The token must be {_SHORTEST_TOKEN} or more letters, digits and signs of ASCII, without spaces. "
                f"Got one of {len(self.token)}.",
                code="service.token_weak",
                cure="Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            )

    @property
    def is_local(self) -> bool:
        """Whether this machine alone reaches the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def client_rate_per_s(self) -> float:
        """Requests that one client may make per second; 0 for any number."""
        if self.rate_per_s is not None:
            return self.rate_per_s
        return 0.0 if self.is_local else _OPEN_RATE_PER_S
