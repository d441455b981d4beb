"""Sizes and rates as people write them ("128 MiB", "20 Gbit/s"), parsed once at the edge.

Inside the package bytes are `int`, bandwidths are bytes per second as `float`, times are seconds.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Final, TypeGuard

from gemini_lab.errors import ConfigError, shown

KB: Final = 10**3
MB: Final = 10**6
GB: Final = 10**9
TB: Final = 10**12
KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TIB: Final = 2**40

LARGEST: Final = 2**53
"""No whole number from outside is larger: logs, browsers and tensors have each up to here exactly.

It is far from where the sum of two of them, or twice one, leaves 64 bits."""
LONGEST_S: Final = 1e9
"""No time from outside is longer: timers take it, and nobody waits for thirty years."""
MOST: Final[Mapping[str, float]] = {
    "nodes": 100_000,
    "standbys": 100_000,
    "ranks": 100_000,
    "workers_per_node": 1_024,
    "gpus_per_node": 1_024,
    "replicas": 100_000,
    "keep_in_memory": 1_000,
    "sub_buffers": 1_024,
    "profile_iterations": 100_000,
    "versions": 10_000,
    "trials": 10_000_000,
    "faults": 100_000,
    "repeats": 10_000,
    "load": 1_024,
    "tries": 10_000,
    "port": 65_535,
    "lease_s": 86_400,
    "bytes": 2**50,
    "s": LONGEST_S,
    "days": 1e6,
}
"""The most that a number from outside may be, by its name or by the unit that ends it.

So no number can be forgotten: what is not here is at most `LARGEST`."""
MOST_COPIES: Final = 1_000_000
"""Of all shards together: a placement names the holder of each."""

_SIZES: Final = {
    "": 1,
    "B": 1,
    "KB": KB,
    "MB": MB,
    "GB": GB,
    "TB": TB,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": TIB,
}
_BITS: Final = {"BIT": 1, "KBIT": KB, "MBIT": MB, "GBIT": GB, "TBIT": TB}
_UNCLEAR: Final = re.compile("[kKmMgGtT]?i?(b(/[sS])?|B[pP][sS])")
"""Units of a rate that some write for bits, and others for bytes."""
MOST_CHARACTERS: Final = 80
"""Of a quantity that a person writes."""
_QUANTITY: Final = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")


def most_of(name: str) -> float:
    """Return the most that a number of this name may be."""
    unit = "" if "_per_" in name else name.rpartition("_")[2]
    return MOST.get(name, MOST.get(unit, LARGEST))


def check_number(
    name: str,  # the argument's; `most_of` says by it how large it may be
    value: object,  # what was given
    *,
    least: float = 0.0,  # the smallest that it may be
    is_above: bool = False,  # whether it has to be more than that
    is_whole: bool = False,  # whether it has to be a whole number
) -> None:
    """Refuse an argument that is no finite number in its range.

    Raises:
        ConfigError: It is not.
    """
    most = most_of(name)
    number = value if is_number(value) and (isinstance(value, Integral) or not is_whole) else None
    if number is not None and least <= number <= most and not (is_above and number == least):
        return
    kind = "whole" if is_whole else "finite"
    wanted = f"above {least:g}" if is_above else f"from {least:g} on"
    if number is not None and number > most:
        wanted = (
            f"{wanted.removesuffix(' on')} {'and at most' if is_above else 'to'} {_plain(most)}"
        )
    wanted = wanted.replace("above 0", "above zero")
    raise ConfigError(f"`{name}` must be {wanted}: a {kind} number (got {shown(value)})")


def _plain(number: float) -> str:
    """Write a limit for people: `100,000`."""
    return f"{number:,.0f}"


def is_number(value: object) -> TypeGuard[float]:
    """Return whether this is a number; true and false are none here."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _quantity(text: object) -> re.Match[str] | None:
    """Return the number and the unit that a text is made of; None where it is not."""
    is_short = isinstance(text, str) and len(text) <= MOST_CHARACTERS
    return _QUANTITY.fullmatch(str(text)) if is_short else None


def parse_bytes(text: str | float) -> int:
    """Bytes meant by `text`, such as `"128 MiB"`, `"1.5GB"` or a plain number of bytes.

    Raises:
        ConfigError: The text is no size, or the size is negative.
    """
    if is_number(text):
        size = text
    else:
        match = _quantity(text)
        if not match or match[2].upper() not in _SIZES:
            raise ConfigError(
                f"cannot read {shown(text)} as a size; write it like '128 MiB' or '20 GB'"
            )
        size = float(match[1]) * _SIZES[match[2].upper()]
    if not 0 <= size <= LARGEST:
        raise ConfigError(
            f"a size is a number of bytes from 0 to {LARGEST:,} (got {shown(text)}); give bytes or "
            "'128 MiB'"
        )
    return int(size)


def parse_bandwidth(text: str | float) -> float:
    """Bytes per second meant by `text`, such as `"20 Gbit/s"`, `"2.5 GB/s"` or a plain number.

    Raises:
        ConfigError: The text is no bandwidth, may mean bits or bytes, or is not above zero.
    """
    if is_number(text):
        rate = text
    else:
        match = _quantity(text)
        if match and _UNCLEAR.fullmatch(match[2]):
            raise ConfigError(
                f"{shown(text)} may mean bits or bytes; write it like '20 Gbit/s' or '2.5 GB/s'"
            )
        unit = match[2].upper().removesuffix("/S") if match else ""
        unit = re.sub("BPS$", "BIT", unit)
        if match and unit in _BITS:
            rate = float(match[1]) * _BITS[unit] / 8
        elif match and unit in _SIZES:
            rate = float(match[1]) * _SIZES[unit]
        else:
            raise ConfigError(
                f"cannot read {shown(text)} as a bandwidth; write it like '20 Gbit/s' or '2.5 GB/s'"
            )
    if not 0 < rate <= LARGEST:
        raise ConfigError(
            f"a bandwidth must be above zero, finite, and at most {LARGEST:,} bytes a second (got "
            f"{shown(text)})"
        )
    return float(rate)


def format_bytes(size_bytes: float) -> str:
    """`size_bytes` for people, in binary units: `"90.0 MiB"`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_seconds(time_s: float) -> str:
    """`time_s` for people: `"12 ms"`, `"3.4 s"`, `"7 min 10 s"`, `"43 h 24 min"`, `"4 d 2 h"`."""
    if abs(time_s) < 0.9995:
        return f"{time_s * 1000:.0f} ms"
    if abs(time_s) < 120:
        return f"{time_s:.1f} s"
    minutes, seconds = divmod(round(time_s), 60)
    if abs(minutes) < 120:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if abs(hours) < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def to_microsecond(time_s: float) -> float:
    """Round a time to the microsecond, as logs have it. No more digits are measured."""
    return round(time_s, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerNode:
    """A number for all nodes, and others for some: as a person writes it in a setting."""

    usual: float | None  # for all that are not named; `None` where nothing is said of them
    named: Mapping[str, float] = field(default_factory=dict)  # for these

    def of(self, node: str) -> float:
        """Return the number of a node; 0 if none is given for it."""
        return self.named.get(node, self.usual or 0.0)

    @classmethod
    def parse(
        cls, name: str, said: str | float | None, *, read: Callable[[str], float] = float
    ) -> "PerNode":
        """Parse a setting such as `0.015`, `"0.015, node-3: 0.5"`, or `"node-3: 0.5"`.

        Args:
            name: The setting's.
            said: Its value.
            read: Reads one number.

        Raises:
            ConfigError: It cannot be read, or a number is below 0.
        """
        usual, named = None, dict[str, float]()
        for part in () if said is None else str(said).split(","):
            node, colon, value = part.rpartition(":")
            try:
                number = read(value.strip())
            except (ValueError, ConfigError):
                number = -1.0
            if not 0 <= number <= LARGEST or bool(colon) != bool(node.strip()):
                raise ConfigError(
                    f"{name}={shown(said)}: {shown(part.strip())} is no number of at least 0, for "
                    'all nodes or for one; write it like "0.015" or "0.015, node-3: 0.5"'
                )
            if colon:
                named[node.strip()] = number
            else:
                usual = number
        return cls(usual=usual, named=named)
