"""What the service counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters and gauges of one service, apart from those of any other in the same process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        # Otherwise every counter has a second line that says when it was first counted.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        self._registry = registry
        ProcessCollector(registry=registry)
        self.requests = Counter("dippm_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "dippm_request_seconds", "Time from a request to its answer.", ["path"], registry=registry, buckets=_SECONDS
        )
        self.under_way = Gauge("dippm_requests_under_way", "Requests that are being answered.", registry=registry)
        self.waiting = Gauge("dippm_jobs_waiting", "Jobs that wait for a worker.", registry=registry)
        self.working = Gauge("dippm_jobs_working", "Jobs on a worker.", registry=registry)
        self.lost_workers = Counter(
            "dippm_workers_lost", "Workers that had to be replaced.", ["reason"], registry=registry
        )
        self.cache = Counter("dippm_cache", "How answers were come by.", ["result"], registry=registry)
        self.upload_bytes = Counter("dippm_upload_bytes", "Bytes of uploaded files.", registry=registry)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a figure that is read when it is asked for.

        Args:
            name: Its name.
            text: What it is.
            read: Reads it.
        """
        Gauge(name, text, registry=self._registry).set_function(read)

    def render(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self._registry)
