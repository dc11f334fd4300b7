"""``dippm serve``: the same questions over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dippm.errors import UsageError

__all__ = ["HELP", "serve"]

HELP = "Answer the same questions over HTTP."

_TOKEN_VARIABLE = "DIPPM_TOKEN"  # noqa: S105 - the name of the variable, not a token


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on; any but this machine's needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes a free one.")] = 8080,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"File with the token that clients must present; the variable {_TOKEN_VARIABLE} when left out.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", help="Processes that read models; one per processor when left out.", show_default=False
        ),
    ] = None,
    max_upload_mb: Annotated[int, typer.Option("--max-upload-mb", help="Largest upload, MiB.")] = 1024,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="Time for the work of one request, and for its wait before it, s.")
    ] = 60.0,
    memory_mb: Annotated[int, typer.Option("--memory-mb", help="Memory that a worker may allocate, MiB.")] = 4096,
    cache_mb: Annotated[int, typer.Option("--cache-mb", help="Memory for answers that are kept, MiB.")] = 64,
    max_requests: Annotated[int, typer.Option("--max-requests", help="Requests under way at once.")] = 256,
    rate_per_s: Annotated[
        float | None,
        typer.Option(
            "--rate-per-s",
            help="Requests of one client per second, 0 for any number; any on this machine and 50 elsewhere when "
            "left out.",
            show_default=False,
        ),
    ] = None,
    drain_s: Annotated[
        float, typer.Option("--drain-s", help="Time for which SIGTERM still lets new requests be answered, s.")
    ] = 1.0,
    grace_s: Annotated[float, typer.Option("--grace-s", help="Time for running requests to finish then, s.")] = 30.0,
) -> None:
    """Run ``dippm serve``."""
    from dippm.server.serve import serve as run
    from dippm.server.settings import Settings

    given = {} if workers is None else {"workers": workers}
    run(
        Settings(
            host=host,
            port=port,
            token=_read_token(token_file),
            max_upload_mb=max_upload_mb,
            timeout_s=timeout_s,
            memory_mb=memory_mb,
            cache_mb=cache_mb,
            max_requests=max_requests,
            rate_per_s=rate_per_s,
            drain_s=drain_s,
            grace_s=grace_s,
            **given,
        )
    )


def _read_token(file: str | None) -> str | None:
    """The token of the file, else of the environment.

    Raises:
        UsageError: ``service.token_file``.
    """
    if file is None:
        return os.environ.get(_TOKEN_VARIABLE) or None
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"The token cannot be read from '{file}': {exc}.", code="service.token_file") from exc
