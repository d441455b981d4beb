"""Module state that `state_dict` leaves out: metrics, and buffers that are not persistent.

By default torchmetrics says nothing of what a metric has added up.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from gemini_lab.errors import ConfigError, UnsupportedError

Unsaid = dict[str, dict[str, Any]]
"""For each part of a module that has something, by its name: attributes and their values."""

_OF_METRICS: Final = ("_computed", "_forward_cache", "_cache")
"""What a metric works out again from what it keeps."""


def read_unsaid(module: nn.Module) -> Unsaid:
    """Return the state of a module's parts beside their `state_dict`.

    Raises:
        UnsupportedError: A metric makes others on the way, which no later start has.
    """
    share_states(module)
    found = {
        name: read_metric(part) if is_metric(part) else _tensors(part)
        for name, part in module.named_modules()
    }
    return {name: kept for name, kept in found.items() if kept}


def put_unsaid(module: nn.Module, unsaid: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what `read_unsaid` gave.

    Raises:
        ConfigError: The module is another one.
    """
    parts = dict(module.named_modules())
    if missing := unsaid.keys() - parts.keys():
        raise ConfigError(
            f"the version has something of {sorted(missing)} in a {type(module).__name__} of "
            "`also`, which has no such part now; make it as it was"
        )
    for name, kept in unsaid.items():
        put_attributes(parts[name], kept)


class Numbers:
    """Plain numbers in a module's parts that change, such as a count; no `state_dict` says them.

    Those that stay as they were found are of one process, such as a rank, and belong to it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._first = read_numbers(module)

    @property
    def is_empty(self) -> bool:
        """Whether there are none that could change."""
        return not self._first

    def changed(self) -> Unsaid:
        """Return those that have changed since this was made."""
        first, now = self._first, read_numbers(self._module)
        found = {
            name: {key: one for key, one in held.items() if first.get(name, {}).get(key) != one}
            for name, held in now.items()
        }
        return {name: numbers for name, numbers in found.items() if numbers}

    def put(self, changed: Unsaid) -> None:
        """Put back what `changed` gave, and all others as they were at first."""
        parts = dict(self._module.named_modules())
        for numbers in (self._first, changed):
            for name in numbers.keys() & parts.keys():
                parts[name].__dict__.update(numbers[name])


def read_numbers(module: nn.Module) -> Unsaid:
    """Plain numbers in the attributes of a module's parts that torch itself has not written."""
    found = {
        name: {key: one for key, one in vars(part).items() if type(one) in (int, float)}
        for name, part in module.named_modules()
        if not type(part).__module__.startswith("torch.")
    }
    return {name: numbers for name, numbers in found.items() if numbers}


def share_states(module: nn.Module) -> None:
    """Give each metric of a collection the sums of those that update for all.

    Raises:
        UnsupportedError: A metric makes others on the way.
    """
    for part in module.modules():
        if isinstance(part, _kinds("MetricTracker")):
            raise UnsupportedError(
                "a MetricTracker makes a metric at each increment(), which a start after a failure "
                "would not have; keep the metrics themselves, and what they came to in a dict"
            )
        if isinstance(part, _kinds("MetricCollection")):
            collection: Any = part
            collection.items(copy_state=False)


def is_metric(part: nn.Module) -> bool:
    """Whether it is one of torchmetrics, which is asked only where the script has imported it."""
    return isinstance(part, _kinds("Metric"))


def read_metric(metric: Any) -> dict[str, Any]:
    """Return a metric's sums and counts."""
    # torchmetrics lists a metric's states only in `_defaults`.
    states = {name: getattr(metric, name) for name in metric._defaults}  # noqa: SLF001
    counts = {
        name: value
        for name, value in vars(metric).items()
        if name.startswith("_") and type(value) is int
    }
    tensors = {name: t for name, t in _tensors(metric).items() if name not in _OF_METRICS}
    return {**tensors, **states, **counts}


def put_attributes(part: Any, kept: Mapping[str, Any]) -> None:
    """Put these attributes back; of a metric what was worked out of others goes."""
    for name, value in kept.items():
        before = getattr(part, name, None)
        if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
            value = value.to(before.device)  # noqa: PLW2901
        setattr(part, name, value)
    if is_metric(part):
        part._computed = None  # noqa: SLF001 - torchmetrics' own way to say so


def _tensors(part: nn.Module) -> dict[str, torch.Tensor]:
    """Its buffers that are not persistent, and tensors in its attributes that nothing trains."""
    hidden = part._non_persistent_buffers_set  # noqa: SLF001 - torch asks it so too
    buffers = {n: b for n, b in part.named_buffers(recurse=False) if n in hidden}
    loose = {
        name: value
        for name, value in vars(part).items()
        if type(value) is torch.Tensor and not value.requires_grad
    }
    return {**buffers, **loose}


def _kinds(name: str) -> tuple[type, ...]:
    """A class of torchmetrics, if it is there."""
    package: Any = sys.modules.get("torchmetrics")
    kind = getattr(package, name, None)
    return () if kind is None else (kind,)
