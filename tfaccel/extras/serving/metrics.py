"""The server's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, labelled by model name."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tfaccel_requests",
            "Requests answered, by method and HTTP status.",
            ("model", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tfaccel_request_seconds",
            "From a request's arrival to its answer.",
            ("model", "method"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._batch_rows = Histogram(
            "tfaccel_batch_rows",
            "Rows that were given to the model at once.",
            ("model",),
            buckets=_ROWS,
            registry=self.registry,
        )
        self._batch_seconds = Histogram(
            "tfaccel_batch_seconds",
            "What the model took for a batch.",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._gauges = {
            name: Gauge(f"tfaccel_{name}", text, ("model",), registry=self.registry)
            for name, text in (
                ("queue_requests", "Requests that wait for the model."),
                ("versions", "Versions that are served."),
            )
        }
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def watch(self, name: str, model: str, value: Callable[[], float]) -> None:
        """Adds a gauge, read when the metrics are scraped: `queue_requests` or `versions` of a model."""
        self._gauges[name].labels(model).set_function(value)

    def forget(self, model: str) -> None:
        """Removes the gauges of a model."""
        for gauge in self._gauges.values():
            gauge.remove(model)

    def answered(self, model: str, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        key = (model, method, status)
        known = self._known.get(key)
        if known is None:
            requests, durations = self._requests.labels(model, method, str(status)), self._seconds.labels(model, method)
            known = self._known[key] = (requests, durations)
        known[0].inc()
        known[1].observe(seconds)

    def batches(self, model: str) -> Callable[[int, float], None]:
        """A function that counts a model's batches: called with the rows of one, and the seconds that it took."""
        rows, durations = self._batch_rows.labels(model), self._batch_seconds.labels(model)

        def observe(num_rows: int, seconds: float) -> None:
            rows.observe(num_rows)
            durations.observe(seconds)

        return observe

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return bytes(generate_latest(self.registry))
