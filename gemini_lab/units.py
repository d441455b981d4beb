"""Sizes and rates as people write them ("128 MiB", "20 Gbit/s"), parsed once at the edge.

Inside the package bytes are `int`, bandwidths are bytes per second as `float`, times are seconds.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Final

from gemini_lab.errors import ConfigError

KB: Final = 10**3
MB: Final = 10**6
GB: Final = 10**9
TB: Final = 10**12
KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
TIB: Final = 2**40

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
_QUANTITY: Final = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")


def check_number(
    name: str,
    value: object,
    *,
    least: float = 0.0,
    is_above: bool = False,
    is_whole: bool = False,
) -> None:
    """Refuse an argument that is no finite number in its range.

    Args:
        name: The argument's.
        value: What was given.
        least: The smallest that it may be.
        is_above: Whether it has to be more than that.
        is_whole: Whether it has to be a whole number.

    Raises:
        ConfigError: It is not.
    """
    if isinstance(value, Integral if is_whole else Real) and (
        least < float(value) < math.inf or (value == least and not is_above)
    ):
        return
    kind = "whole" if is_whole else "finite"
    wanted = f"above {least:g}" if is_above else f"from {least:g} on"
    wanted = wanted.replace("above 0", "above zero")
    raise ConfigError(f"`{name}` must be {wanted}: a {kind} number (got {value!r})")


def parse_bytes(text: str | float) -> int:
    """Bytes meant by `text`, such as `"128 MiB"`, `"1.5GB"` or a plain number of bytes.

    Raises:
        ConfigError: The text is no size, or the size is negative.
    """
    if isinstance(text, (int, float)):
        if not 0 <= text < math.inf:
            raise ConfigError(
                f"a size is a number of bytes from 0 on (got {text}); give bytes or '128 MiB'"
            )
        return int(text)
    match = _QUANTITY.fullmatch(text)
    if not match or match[2].upper() not in _SIZES:
        raise ConfigError(f"cannot read {text!r} as a size; write it like '128 MiB' or '20 GB'")
    return int(float(match[1]) * _SIZES[match[2].upper()])


def parse_bandwidth(text: str | float) -> float:
    """Bytes per second meant by `text`, such as `"20 Gbit/s"`, `"2.5 GB/s"` or a plain number.

    Raises:
        ConfigError: The text is no bandwidth, may mean bits or bytes, or is not above zero.
    """
    if isinstance(text, (int, float)):
        rate = float(text)
    else:
        match = _QUANTITY.fullmatch(text)
        if match and _UNCLEAR.fullmatch(match[2]):
            raise ConfigError(
                f"{text!r} may mean bits or bytes; write it like '20 Gbit/s' or '2.5 GB/s'"
            )
        unit = match[2].upper().removesuffix("/S") if match else ""
        unit = re.sub("BPS$", "BIT", unit)
        if match and unit in _BITS:
            rate = float(match[1]) * _BITS[unit] / 8
        elif match and unit in _SIZES:
            rate = float(match[1]) * _SIZES[unit]
        else:
            raise ConfigError(
                f"cannot read {text!r} as a bandwidth; write it like '20 Gbit/s' or '2.5 GB/s'"
            )
    if not 0 < rate < math.inf:
        raise ConfigError(f"a bandwidth must be above zero, and finite (got {text!r})")
    return rate


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
    """A time as logs have it: in seconds, to the microsecond. Nobody measures more of them here."""
    return round(time_s, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerNode:
    """A number for all nodes, and others for some: as a person writes it in a setting.

    Attributes:
        usual: For all that are not named; `None` where nothing is said of them.
        named: For these.
    """

    usual: float | None
    named: Mapping[str, float] = field(default_factory=dict)

    def of(self, node: str) -> float:
        """The number of a node; 0 where nothing is said of it."""
        return self.named.get(node, self.usual or 0.0)

    @classmethod
    def parse(
        cls, name: str, said: str | float | None, *, read: Callable[[str], float] = float
    ) -> "PerNode":
        """What a setting says: `0.015`, `"0.015, node-3: 0.5"`, or `"node-3: 0.5"`.

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
            if not number >= 0 or bool(colon) != bool(node.strip()):
                raise ConfigError(
                    f"{name}={said!r}: {part.strip()!r} is no number of at least 0, for all nodes "
                    'or for one; write it like "0.015" or "0.015, node-3: 0.5"'
                )
            if colon:
                named[node.strip()] = number
            else:
                usual = number
        return cls(usual=usual, named=named)
