"""Machine parameters of `plan_chunks`, and the line fitted through measured messages."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from gemini_lab.errors import ConfigError
from gemini_lab.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFit:
    """The line f(s) = alpha + s / B (paper, section 5.3) through measured messages."""

    alpha_s: float  # start-up time of a message
    bandwidth_bytes_per_s: float  # what the wire carries after that (B)
    worst_error: float  # largest relative distance of a measurement from the line


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Machine parameters of `plan_chunks`, under its argument names."""

    alpha_s: float  # start-up time of a message; the same on every rank
    bandwidth_bytes_per_s: float  # the wire's rate (B); the same on every rank
    copy_bytes_per_s: float  # rate of a plain memory copy here; of the slowest bus, with a device
    hash_bytes_per_s: float  # rate of the checksum here
    worst_error: float  # see `WireFit`
    conditions: tuple[str, ...] = ()  # what made the machine unlike its bare self

    def __repr__(self) -> str:
        return (
            f"Calibration(alpha {self.alpha_s * 1e6:.0f} us, "
            f"B {format_bytes(self.bandwidth_bytes_per_s)}/s, "
            f"copy {format_bytes(self.copy_bytes_per_s)}/s, "
            f"checksum {format_bytes(self.hash_bytes_per_s)}/s, "
            f"worst error {self.worst_error:.0%})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the calibration that `to_json` gave as `record`."""
        return cls(**{**record, "conditions": tuple(record["conditions"])})


def fit_wire(samples: Sequence[tuple[int, float]]) -> WireFit:
    """Least squares of relative errors, so that small messages tell alpha and large ones B.

    Args:
        samples: Bytes and seconds of messages of at least two sizes.

    Raises:
        ConfigError: The samples have one size only, or do not grow with it.
    """
    sizes = np.array([size_bytes for size_bytes, _ in samples], float)
    times = np.array([time_s for _, time_s in samples], float)
    if len(set(sizes)) < 2 or times.min() <= 0:
        raise ConfigError(
            f"alpha and B need messages of two sizes and times above zero (got {len(samples)} "
            f"samples of {len(set(sizes))} sizes); measure again with others"
        )
    # With at least two sizes the columns are independent, so the solution is the only one.
    columns = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (alpha_s, per_byte_s), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    if alpha_s < 0:  # no message starts before it is asked for: the line through the origin
        alpha_s = 0.0
        shares = sizes / times
        per_byte_s = shares.sum() / (shares**2).sum()
    if per_byte_s <= 0:
        raise ConfigError(
            "larger messages took no longer than small ones, so there is no bandwidth to fit; "
            "measure larger messages, or on a quieter machine"
        )
    errors = np.abs((alpha_s + per_byte_s * sizes) / times - 1)
    return WireFit(
        alpha_s=float(alpha_s),
        bandwidth_bytes_per_s=float(1 / per_byte_s),
        worst_error=float(errors.max()),
    )
