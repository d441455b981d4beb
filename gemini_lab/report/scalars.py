"""A run's metrics as single numbers by iteration: for loggers that draw a curve a name."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from gemini_lab.report.metrics import PREFIX

WORDS: Final = ("info", "stateset")
"""Kinds of metrics whose values are words; no curve has those."""


class Scalars:
    """Makes numbers of one snapshot after the other.

    A name is the metric's, with slashes where loggers group: `gemini_lab_time_seconds{part="redo"}`
    is `gemini_lab/time_seconds/redo`. Of a histogram it is the mean of what came since the snapshot
    before, under the histogram's name: where each iteration has a snapshot, its own value.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}  # count and sum so far

    def of(self, metrics: Iterable[Metric]) -> dict[str, float]:
        """The numbers of the next snapshot, by name."""
        found: dict[str, float] = {}
        for metric in metrics:
            if metric.type == "histogram":
                found.update(self._mean(metric))
            elif metric.type not in WORDS:
                found.update((scalar_name(one), one.value) for one in metric.samples)
        return found

    def _mean(self, metric: Metric) -> Iterator[tuple[str, float]]:
        told = {one.name.removeprefix(metric.name): one.value for one in metric.samples}
        count, total = told["_count"], told["_sum"]
        count_before, total_before = self._sums.get(metric.name, (0.0, 0.0))
        self._sums[metric.name] = count, total
        if count > count_before:
            mean = (total - total_before) / (count - count_before)
            yield scalar_name(Sample(metric.name, {}, mean)), mean


def scalar_name(sample: Sample) -> str:
    """A sample's name and labels as a path; `kind` says no more than the label beside it."""
    labels = [text for name, text in sample.labels.items() if name != "kind"]
    return "/".join([PREFIX, sample.name.removeprefix(f"{PREFIX}_"), *labels])
