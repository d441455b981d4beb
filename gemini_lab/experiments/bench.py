"""`gemini-lab bench`: measurements with repeats and spread, on the machine at hand.

A bench is a function that takes the number of repeats and gives rows. It is listed in `BENCHES` by
name, as `module:function`, so that only the benches that run import what they need. Its module may
have `add_options`, which adds options to the parser that the function takes by name, and a `table`
of its own.
"""

import argparse
import importlib
import json
import math
import os
import platform
import random
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from gemini_lab.errors import ConfigError
from gemini_lab.experiments.versions import made_with
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.report.columns import columns
from gemini_lab.simulator.interval import mean_interval
from gemini_lab.units import format_bytes, format_seconds

ENDED: Final = "interrupted, so nothing is told or written; what it started has ended"
BENCHES: Final[dict[str, tuple[str, str]]] = {
    "planner": (
        "gemini_lab.experiments.benches.planner:bench",
        "placing N nodes, and their exact recovery probability",
    ),
    "simulator": (
        "gemini_lab.experiments.benches.simulator:bench",
        "30 days of N machines, policy by policy",
    ),
    "restart": (
        "gemini_lab.experiments.benches.restart:bench",
        "failure to the next finished iteration, warm, kept and cold in turn; beside NVRx",
    ),
    "imports": (
        "gemini_lab.experiments.benches.imports:bench",
        "recoveries of a Trainer's job, its imports learned and not, in turn",
    ),
    "wasted": (
        "gemini_lab.experiments.benches.wasted:bench",
        "workers killed at any time: does Eq. (1) hold?",
    ),
    "losses": (
        "gemini_lab.experiments.benches.losses:bench",
        "every pair of nodes lost at once: does memory suffice as placement says?",
    ),
    "baselines": (
        "gemini_lab.experiments.benches.baselines:bench",
        "Strawman and HighFreq on a throttled store, killed at any time, beside this system",
    ),
    "goodput": (
        "gemini_lab.experiments.benches.goodput:bench",
        "the share of the time that counts where all three are killed at the same moments",
    ),
    "reduction": (
        "gemini_lab.experiments.benches.reduction:bench",
        "a version's time to peers beside that to a throttled store, on 2 to 4 nodes",
    ),
    "drain": (
        "gemini_lab.experiments.benches.drain:bench",
        "nodes whose ranks move to a standby, one after the other",
    ),
    "resize": (
        "gemini_lab.experiments.benches.resize:bench",
        "from four nodes to three and back: seconds, bytes, losses",
    ),
    "rewind": (
        "gemini_lab.experiments.benches.rewind:bench",
        "from a loss of NaN to the next good iteration, and what the guard costs",
    ),
    "verify": (
        "gemini_lab.experiments.benches.verify:bench",
        "what verifying sums costs, and who is named when bits turn",
    ),
    "profiler": (
        "gemini_lab.experiments.benches.profiler:bench",
        "what watching costs each collective",
    ),
    "links": (
        "gemini_lab.experiments.benches.links:bench",
        "a job on a paced link, beside one that the kernel shapes (root)",
    ),
    "copy": (
        "gemini_lab.experiments.benches.copy:bench_copy",
        "into the slab and over the wire, beside memcpy and bare Gloo",
    ),
    "overhead": (
        "gemini_lab.experiments.benches.overhead:bench",
        "checkpoints every iteration beside the same script under plain torchrun",
    ),
    "schemes": (
        "gemini_lab.experiments.benches.schemes:bench",
        "the five schemes of the paper's Fig. 16 on one paced link",
    ),
    "differential": (
        "gemini_lab.experiments.benches.differential:bench",
        "gradients to peers in place of shards: bytes, processor time, and when they are felt",
    ),
    "contention": (
        "gemini_lab.experiments.benches.contention:bench",
        "less and less idle time, until checkpoints no longer fit",
    ),
    "gpu": (
        "gemini_lab.experiments.benches.gpu:bench",
        "12 bytes a parameter to pinned memory every iteration (needs a GPU)",
    ),
    "peers": (
        "gemini_lab.experiments.peers.bench:bench",
        "checkpoints of other systems on the same tensors, beside ours",
    ),
    "control": (
        "gemini_lab.experiments.benches.control:bench",
        "what N agents cost the store, the root agent and the log (--agents 10,100,1000)",
    ),
    "log": (
        "gemini_lab.experiments.benches.long_log:bench",
        "opening a long log, the first time and again, and one place of it (--lines, --calls)",
    ),
    "dashboard": (
        "gemini_lab.lab.pages:bench",
        "the traffic timeline in a headless browser: draw time and lag, up to a million bars",
    ),
}
"""Name: (`module:function` taking the repeats and returning rows, help)."""

PACKAGES: Final = ("torch", "deepspeed", "numpy")
"""Whose versions a measurement depends on."""
DRAWN: Final = ("wasted", "losses", "baselines", "goodput")
"""Benches that draw moments or an order at random; their seed is the number of repeats."""

RESAMPLES: Final = 1000
"""How many samples the interval of a median is made of."""
FEW: Final = 10
"""Fewer values are told by their mean: a bootstrap of the median covers 75 % at 3 values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity that was measured some times.

    Attributes:
        name: What was measured.
        values: Every measurement.
        unit: Of the values.
        settings: What it was measured with: sizes, rates, conditions.
        why_not: Why there are no values.
        bounds: Its 95 % interval where the values are not what spreads, as with a ratio of means.
    """

    name: str
    values: tuple[float, ...]
    unit: str = "s"
    settings: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""
    bounds: tuple[float, float] | None = None

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def value(self) -> float:
        """What `interval` is of: the median, or the mean of few values."""
        return statistics.fmean(self.values) if len(self.values) < FEW else self.median

    @property
    def interval(self) -> tuple[float, float]:
        """95 %: of the median by bootstrap, of the mean of few by Student-t; endless for one."""
        if self.bounds is not None:
            return self.bounds
        if len(self.values) >= FEW:
            return bootstrap_interval(self.values)
        mean = mean_interval(self.values)
        return mean.low, mean.high

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON values; an interval without ends is left out."""
        found = asdict(self)
        if not self.values:
            return found
        found |= {"median": self.median, "value": self.value}
        if math.isfinite(sum(self.interval)):
            found["low_95"], found["high_95"] = self.interval
        return found


def value_of(row: Mapping[str, Any]) -> float:
    """What the interval of a row in a bench's file is of; in old files always the median."""
    return float(row.get("value", row["median"]))


def spread_of(row: Mapping[str, Any], digits: str) -> str:
    """A row's value with its interval, if it has one."""
    value = f"{value_of(row):{digits}}"
    if "low_95" not in row:
        return value
    return f"{value} ({row['low_95']:{digits}} to {row['high_95']:{digits}})"


def timed(work: Callable[[], object], *, repeats: int, warm_ups: int = 1) -> tuple[float, ...]:
    """Seconds that each of `repeats` calls took, after `warm_ups` calls that do not count."""
    values = []
    for number in range(-warm_ups, repeats):
        start = time.perf_counter()
        work()
        if number >= 0:
            values.append(time.perf_counter() - start)
    return tuple(values)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median: medians of samples drawn anew from `values`, always the same."""
    if not values:
        raise ConfigError("there is nothing to measure in 0 values; use at least 1 repeat")
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def growth(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent with which values grow with sizes: slope of the line through their logarithms.

    1 is linear, 2 is quadratic.
    """
    import numpy as np  # noqa: PLC0415 - only growth needs it

    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def machine() -> dict[str, Any]:
    """What the measurements were made on, and how busy it was."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1_min": os.getloadavg()[0],
    }


def table(rows: Sequence[Row]) -> str:
    """The rows for people, in lines of at most 100 characters.

    What a row was measured with stands below it, as far as the row above had it otherwise.
    """
    lines = [f"{'measured':<52}{'value':>12}  {'95 % interval':<27}{'repeats':>7}"]
    above: dict[str, Any] = {}
    for row in rows:
        if row.values:
            lines.append(
                f"{row.name:<52}{_digits(row.value):>12}  {_within(row):<27}"
                f"{len(row.values):>7}".rstrip()
            )
        else:
            lines += _below(f"{row.name}: no value: {row.why_not}", indent=0)
        other = [_setting(k, v) for k, v in row.settings.items() if above.get(k) != v]
        if other:
            lines += _below(f"with {', '.join(other)}", indent=4)
        above = row.settings or above
    if any(0 < len(row.values) < FEW for row in rows):
        lines.append(f"value: median (bootstrap); of fewer than {FEW} values the mean (Student-t)")
    return "\n".join(lines)


def _within(row: Row) -> str:
    """A row's interval and unit; one value alone has no interval."""
    low, high = row.interval
    return f"{_digits(low)} to {_digits(high)} {row.unit}" if math.isfinite(high) else row.unit


def _digits(value: float) -> str:
    """Four digits, and more only before the point: 0.9503, 23.01, 23003."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _below(text: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4)
    )


def _setting(name: str, value: Any) -> str:
    """One setting for people: `link 38.1 MiB/s` for `link_bytes_per_s=4e7`."""
    unit = _unit(name, value)
    return f"{name.removesuffix(unit)} {with_unit(name, value)}"


def with_unit(name: str, value: Any) -> str:
    """A setting's value for people, in the unit that its name ends in: `38.1 MiB/s`."""
    match _unit(name, value):
        case "_bytes_per_s":
            return f"{format_bytes(value)}/s"
        case "_bytes":
            return format_bytes(value)
        case "_s":
            return format_seconds(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _unit(name: str, value: Any) -> str:
    units = ("_bytes_per_s", "_bytes", "_s") if isinstance(value, (int, float)) else ()
    return next((unit for unit in units if name.endswith(unit)), "")


def _parser(name: str | None, benches: Mapping[str, tuple[str, str]]) -> argparse.ArgumentParser:
    """Of one bench, or of all while none is named."""
    if name is None:
        listed = columns({each: text for each, (_, text) in benches.items()})
        parser = argparse.ArgumentParser(
            prog="gemini-lab bench",
            usage="%(prog)s NAME [--repeats N] [--json FILE] [options of that bench]",
            description=f"Measure something on this machine, some times.\n\n{listed}",
            epilog="gemini-lab bench NAME --help tells the options of one.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("name", metavar="NAME", choices=benches, help="which bench")
    else:
        text = benches[name][1]
        parser = argparse.ArgumentParser(
            prog=f"gemini-lab bench {name}", description=f"{text[0].upper()}{text[1:]}"
        )
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="how often (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the values here")
    return parser


def command(arguments: list[str], benches: Mapping[str, tuple[str, str]] = BENCHES) -> int:
    """Run one of `benches`, or list them."""
    name = next((argument for argument in arguments if argument in benches), None)
    parser = _parser(name, benches)
    if name is None:
        parser.parse_args(arguments)  # there is no way past it without a name
        return 2
    home, _, function = benches[name][0].partition(":")
    module = importlib.import_module(home)
    getattr(module, "add_options", lambda _: None)(parser)
    at = arguments.index(name)
    options = parser.parse_args([*arguments[:at], *arguments[at + 1 :]])
    if options.repeats < 1:
        raise ConfigError(f"a bench needs at least 1 repeat (got {options.repeats})")
    own = {k: v for k, v in vars(options).items() if k not in {"repeats", "json"}}
    before, began = machine(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with interrupt_says(lambda: ENDED):
        rows: list[Row] = getattr(module, function)(options.repeats, **own)
    after = machine()
    print(getattr(module, "table", table)(rows))  # noqa: T201
    print(  # noqa: T201
        f"\non {before['system']}, {before['cores']} cores, load {before['load_1_min']:.1f} before "
        f"and {after['load_1_min']:.1f} after (a busy machine spoils times)"
    )
    if options.json:
        record = {
            "bench": name,
            "machine": before,
            "load_1_min_after": after["load_1_min"],
            "at": began,
            "made_with": made_with(PACKAGES),
            "repeats": options.repeats,
            "seed": options.repeats if name in DRAWN else None,
            "rows": [row.to_json() for row in rows],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"written to {options.json}")  # noqa: T201
    return 0
