"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256)


class Metrics:
    """The counts of one server.

    Arguments:
        model: the model's name, a label of every count.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._requests = Counter(
            "tfaccel_requests", "Requests answered, by method and HTTP status.", ("model", "method", "status"),
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "tfaccel_request_seconds", "From a request's arrival to its answer.", ("model", "method"), buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._batch_rows = Histogram(
            "tfaccel_batch_rows", "Rows that were given to the model at once.", ("model",), buckets=_ROWS,
            registry=self.registry,
        ).labels(model)  # fmt: skip
        self._batch_seconds = Histogram(
            "tfaccel_batch_seconds", "What the model took for a batch.", ("model",), buckets=_SECONDS,
            registry=self.registry,
        ).labels(model)  # fmt: skip
        self._known: dict[tuple[str, int], Counter] = {}
        self._known_seconds: dict[str, Histogram] = {}

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Adds a number that is asked for when it is shown."""
        gauge = Gauge(f"tfaccel_{name}", text, ("model",), registry=self.registry)
        gauge.labels(self._model).set_function(value)

    def answered(self, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        key = (method, status)
        if key not in self._known:
            self._known[key] = self._requests.labels(self._model, method, str(status))
            self._known_seconds.setdefault(method, self._seconds.labels(self._model, method))
        self._known[key].inc()
        self._known_seconds[method].observe(seconds)

    def batch(self, num_rows: int, seconds: float) -> None:
        """Counts a batch."""
        self._batch_rows.observe(num_rows)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All counts in Prometheus's text format."""
        return bytes(generate_latest(self.registry))
