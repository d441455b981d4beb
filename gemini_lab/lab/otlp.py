"""A run's metrics by OTLP, for OpenTelemetry's collector and most vendors' backends.

The names are those of the OpenMetrics endpoint, with OpenTelemetry's units beside them, so that
boards and alerts do for both. Endpoint, headers, certificates and time-outs that are not given come
from the variables that OpenTelemetry defines (`OTEL_EXPORTER_OTLP_ENDPOINT` and so on).
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric

from gemini_lab.report.metrics import PREFIX, Snapshot

EVERY_S: Final = 15.0
PATH: Final = "/v1/metrics"
UNITS: Final = {"_seconds": "s", "_bytes": "By", "_ratio": "1"}
"""OpenTelemetry's unit (UCUM) for each ending of a metric's name."""
CUMULATIVE: Final = otel.AggregationTemporality.CUMULATIVE


class Otlp:
    """Sends a run's newest metrics every `EVERY_S`, and its last ones.

    Args:
        endpoint: The receiver's URL; `/v1/metrics` is added where it has no path. By default what
            the environment says, or a collector on this machine.
    """

    def __init__(self, run: str, endpoint: str = "") -> None:
        self._resource = Resource.create({"service.name": PREFIX, "service.instance.id": run})
        self._refusals = Refusals()
        self._exporter = OTLPMetricExporter(endpoint=full_url(endpoint) if endpoint else None)
        self._sent_s = 0.0
        self._refusal = ""  # of the newest that was sent

    def write(self, now: Snapshot) -> None:
        """Send what a snapshot tells, if it is the newest and its time has come.

        Raises:
            ConnectionError: The receiver could not be reached, or refused what was sent last.
        """
        is_due = now.is_over or now.at_s >= self._sent_s + EVERY_S
        if now.metrics and now.is_newest and is_due:
            self._sent_s = now.at_s
            with self._refusals:
                result = self._exporter.export(data_of(now, self._resource))
            is_taken = result is otel.MetricExportResult.SUCCESS
            self._refusal = "" if is_taken else self._refusals.said[0]
        if self._refusal:
            raise ConnectionError(self._refusal)

    def close(self) -> None:
        self._exporter.shutdown()


class Refusals(logging.Handler):
    """Keeps what the exporter says of a failure, which it does in its own logger alone."""

    def __init__(self) -> None:
        super().__init__()
        self.said = [""]  # in one block, oldest first: the reason, and that it was tried again
        self._logger = logging.getLogger(OTLPMetricExporter.__module__)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.insert(-1, record.getMessage())

    def __enter__(self) -> None:
        self.said = [""]
        self._was = self._logger.propagate
        self._logger.addHandler(self)
        self._logger.propagate = False

    def __exit__(self, *_: object) -> None:
        self._logger.propagate = self._was
        self._logger.removeHandler(self)


def full_url(endpoint: str) -> str:
    """Return the URL to which metrics are sent."""
    has_path = bool(urlsplit(endpoint).path.strip("/"))
    return endpoint if has_path else endpoint.rstrip("/") + PATH


def data_of(now: Snapshot, resource: Resource) -> otel.MetricsData:
    """Return a snapshot in OpenTelemetry's words."""
    metrics = [one for metric in now.metrics for one in metric_of(metric, now)]
    scope = otel.ScopeMetrics(
        scope=InstrumentationScope(PREFIX), metrics=metrics, schema_url=resource.schema_url
    )
    told = otel.ResourceMetrics(
        resource=resource, scope_metrics=[scope], schema_url=resource.schema_url
    )
    return otel.MetricsData(resource_metrics=[told])


def metric_of(metric: Metric, now: Snapshot) -> Iterator[otel.Metric]:
    """Yield a metric in OpenTelemetry's words; nothing of one that has no value yet.

    Counters are cumulative sums, histograms cumulative histograms, and all else is a gauge, as
    OpenTelemetry's rules for Prometheus have it.
    """
    if not metric.samples:
        return
    data: otel.Gauge | otel.Sum | otel.Histogram
    if metric.type == "histogram":
        data = otel.Histogram([histogram_point(metric, now)], CUMULATIVE)
    elif metric.type == "counter":
        data = otel.Sum(points_of(metric, now), CUMULATIVE, is_monotonic=True)
    else:
        data = otel.Gauge(points_of(metric, now))
    name = metric.name if metric.type == "histogram" else metric.samples[0].name
    unit = next((unit for end, unit in UNITS.items() if metric.name.endswith(end)), "")
    yield otel.Metric(name, metric.documentation, unit, data)


def points_of(metric: Metric, now: Snapshot) -> Sequence[otel.NumberDataPoint]:
    """Return a point for each sample."""
    start, at = nanoseconds(now.started_s), nanoseconds(now.at_s)
    return [
        otel.NumberDataPoint(dict(one.labels), start, at, float(one.value))
        for one in metric.samples
    ]


def histogram_point(metric: Metric, now: Snapshot) -> otel.HistogramDataPoint:
    """Return a histogram's only point; smallest and largest value are not known, and left out."""
    buckets = [one for one in metric.samples if one.name.endswith("_bucket")]
    values = {one.name.removeprefix(metric.name): one.value for one in metric.samples}
    up_to = [0, *(int(one.value) for one in buckets)]
    return otel.HistogramDataPoint(
        attributes={},
        start_time_unix_nano=nanoseconds(now.started_s),
        time_unix_nano=nanoseconds(now.at_s),
        count=int(values["_count"]),
        sum=values["_sum"],
        bucket_counts=[after - before for before, after in pairwise(up_to)],
        explicit_bounds=[float(one.labels["le"]) for one in buckets[:-1]],
        min=None,  # type: ignore[arg-type]  # what the encoder takes for unknown
        max=None,  # type: ignore[arg-type]
    )


def nanoseconds(at_s: float) -> int:
    """Return a moment in OpenTelemetry's unit."""
    return round(at_s * 1e9)
