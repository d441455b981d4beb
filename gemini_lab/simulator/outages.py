"""Failures of a simulated cluster: drawn at constant rates, or read from a file."""

import csv
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TextIO, get_args

from gemini_lab.errors import ConfigError
from gemini_lab.units import check_number

Kind = Literal["software", "gpu", "hardware", "rack"]
KINDS: Final[dict[str, Kind]] = {kind: kind for kind in get_args(Kind)}
DAY_S: Final = 86400.0
MOST_FAILURES: Final = 1_000_000
"""Of a history: each is a value of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One failure in a simulated cluster.

    Attributes:
        at_s: When, since the start.
        kind: `"software"`: processes die, memory stays; `"gpu"`: an accelerator fails, so that the
            machine is replaced, but its CPU memory can be read; `"hardware"`: the machine and its
            memory are gone; `"rack"`: so are all machines of its rack.
        positions: The positions that fail, one or more.
        cause: For people.
        iteration: It strikes when training has first done so many, the running one as a fraction,
            whatever `at_s` says.
        failure: The injector's name for it, such as `"node_loss"`, where it comes from there.

    Raises:
        ConfigError: There is no such kind, moment or position.
    """

    at_s: float
    kind: Kind
    positions: tuple[int, ...]
    cause: str = ""
    iteration: float | None = None
    failure: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.positions:
            raise ConfigError(
                f"a failure is of a kind, {', '.join(KINDS)}, and has positions (got a "
                f"{self.kind!r} with positions {self.positions})"
            )
        check_number("at_s", self.at_s)
        if self.iteration is not None:
            check_number("iteration", self.iteration)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Rate of a kind of failure, with its source.

    Attributes:
        per_node_per_day: Failures of all kinds.
        software_share: The share of them that leaves the machine and its memory alone.
        gpu_share: The share that takes the machine out, but leaves its CPU memory readable.
        causes: What fails how often, as counts; their shares name the cause of each failure.
        source: Where the numbers come from.
    """

    per_node_per_day: float
    software_share: float = 0.0
    gpu_share: float = 0.0
    causes: tuple[tuple[str, int, Kind], ...] = ()
    source: str = "given"

    def __post_init__(self) -> None:
        shares = self.software_share, self.gpu_share
        check_number("per_node_per_day", self.per_node_per_day)
        if not (min(shares) >= 0 and sum(shares) <= 1 + 1e-9):
            raise ConfigError(
                f"shares start at 0 and are 1 together at most (got software_share="
                f"{self.software_share}, gpu_share={self.gpu_share})"
            )


LLAMA_3_COUNTS: Final[tuple[tuple[str, int, Kind], ...]] = (
    ("GPU", 148, "gpu"),
    ("HBM3", 72, "gpu"),
    ("software", 54, "software"),
    ("switch or cable", 35, "hardware"),
    ("host maintenance", 32, "hardware"),
    ("SRAM", 19, "gpu"),
    ("GPU system processor", 17, "gpu"),
    ("NIC", 7, "hardware"),
    ("NCCL watchdog", 7, "software"),
    ("silent corruption", 6, "hardware"),
    ("thermal", 6, "hardware"),
    ("SSD", 3, "hardware"),
    ("power supply", 3, "hardware"),
    ("chassis", 2, "hardware"),
    ("IO board", 2, "hardware"),
    ("dependency", 2, "software"),
    ("CPU", 2, "hardware"),
    ("memory", 2, "hardware"),
)
"""Unexpected interruptions of Llama 3 405B's training in 54 days on 16,384 GPUs: 419 in all.

Which kinds leave the machine's memory alone is our reading: software, NCCL watchdog, dependency.
The 256 faults of GPUs and their memory take the machine out, but its CPU memory can be read.
"""


def opt_175b() -> FailureRate:
    """Return OPT-175B's: 110 failures in two months on 992 A100 (124 machines), 1.48 % a day.

    The paper's section 2.1 counts them; it takes 1.5 % of the machines a day from them.
    """
    return FailureRate(
        per_node_per_day=110 / 60 / 124,
        source="OPT-175B: 110 failures, 60 days, 124 machines (GEMINI, section 2.1)",
    )


def llama_3() -> FailureRate:
    """Return Llama 3 405B's, by component: 419 in 54 days on 2,048 machines of 8 GPUs."""
    total = sum(count for _, count, _ in LLAMA_3_COUNTS)
    software = sum(count for _, count, kind in LLAMA_3_COUNTS if kind == "software")
    gpu = sum(count for _, count, kind in LLAMA_3_COUNTS if kind == "gpu")
    return FailureRate(
        per_node_per_day=total / 54 / (16_384 / 8),
        software_share=software / total,
        gpu_share=gpu / total,
        causes=LLAMA_3_COUNTS,
        source="Llama 3 405B: 419 unexpected interruptions, 54 days, 16,384 GPUs (The Llama 3 Herd "
        "of Models, section 3.3.4)",
    )


def poisson_failures(
    *,
    nodes: int,
    days: float,
    rate: FailureRate,
    seed: int = 0,
    racks: Sequence[str] | None = None,
    rack_per_day: float = 0.0,
) -> tuple[Outage, ...]:
    """Draw independent failures at constant rates, of nodes and of racks.

    Args:
        nodes: N.
        days: Length of the history.
        rate: Of each node.
        seed: The same seed gives the same history.
        racks: Rack of each position; needed when racks can fail.
        rack_per_day: Failures of each rack a day.

    Raises:
        ConfigError: A number is out of range, or racks are to fail without being given.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    check_number("days", days)
    check_number("rack_per_day", rack_per_day)
    draw = random.Random(seed)
    if rack_per_day and (racks is None or len(racks) != nodes):
        raise ConfigError(f"racks that fail need `racks` with one entry a node ({nodes})")
    outages = [
        _draw_outage(at_s, draw.randrange(nodes), rate, draw)
        for at_s in _arrivals(nodes * rate.per_node_per_day, days, draw)
    ]
    names = sorted(set(racks or ())) if rack_per_day else []
    for at_s in _arrivals(len(names) * rack_per_day, days, draw):
        gone = draw.choice(names)
        positions = tuple(i for i, rack in enumerate(racks or ()) if rack == gone)
        outages.append(Outage(at_s=at_s, kind="rack", positions=positions, cause=f"rack {gone}"))
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _arrivals(per_day: float, days: float, draw: random.Random) -> list[float]:
    if per_day * days > MOST_FAILURES:
        raise ConfigError(
            f"{per_day:g} failures a day in {days:g} days are {per_day * days:g}, and a history "
            f"has {MOST_FAILURES:,} at most; lower the rate, or the days"
        )
    times: list[float] = []
    while per_day > 0:
        last_s = times[-1] if times else 0.0
        at_s = last_s + draw.expovariate(per_day) * DAY_S
        if at_s >= days * DAY_S:
            break
        times.append(at_s)
    return times


def _draw_outage(at_s: float, position: int, rate: FailureRate, draw: random.Random) -> Outage:
    """Return one failure of a node, its kind and cause drawn by their shares."""
    kind: Kind
    if rate.causes:
        [(cause, _, kind)] = draw.choices(rate.causes, [count for _, count, _ in rate.causes])
    else:
        share = draw.random()
        kind = "software" if share < rate.software_share else "hardware"
        if rate.software_share <= share < rate.software_share + rate.gpu_share:
            kind = "gpu"
        cause = kind
    return Outage(at_s=at_s, kind=kind, positions=(position,), cause=cause)


def read_trace(
    path: Path | str, *, nodes: int, racks: Sequence[str] | None = None
) -> tuple[Outage, ...]:
    """Read the failures in a CSV file with columns time (in s), node (a position) and kind.

    Kind is one of `KINDS`; a column cause is optional. A rack's failure names any node of the rack.

    Raises:
        ConfigError: A column is missing, or a line cannot be; the message names it.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    if racks is not None and len(racks) != nodes:
        raise ConfigError(f"`racks` needs one entry a node: {nodes} (got {len(racks)})")
    needed = {"time", "node", "kind"}
    with _opened(path) as file:
        lines = _rows(file, path, needed)
        outages = [_parse(row, where=where, nodes=nodes, racks=racks) for where, row in lines]
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _rows(file: TextIO, path: Path | str, needed: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each line's place, for people, and its columns by their names.

    Raises:
        ConfigError: A column is missing, or a line ends before the last one.
    """
    names = next(csv.reader(file), [])
    if missing := sorted(needed - set(names)):
        raise ConfigError(
            f"{path} lacks the column(s) {missing}; its first line has to be 'time,node,kind'"
        )
    reader = csv.DictReader(file, names)
    for row in reader:
        where = f"{path}, line {reader.line_num + 1}"
        if None in row.values():
            raise ConfigError(f"{where} has fewer columns than the first line")
        yield where, row


def _parse(row: dict[str, str], *, where: str, nodes: int, racks: Sequence[str] | None) -> Outage:
    try:
        at_s, position = float(row["time"]), int(row["node"])
    except ValueError as error:
        raise ConfigError(f"{where}: time and node have to be numbers ({error})") from None
    kind = KINDS.get(row["kind"].strip())
    if not 0 <= position < nodes or not 0 <= at_s < math.inf or kind is None:
        raise ConfigError(
            f"{where}: time {at_s}, node {position}, kind {row['kind']!r}; a time starts at 0, "
            f"nodes are 0 to {nodes - 1}, kinds are {', '.join(KINDS)}"
        )
    positions: tuple[int, ...] = (position,)
    if kind == "rack":
        if racks is None:
            raise ConfigError(f"{where}: a rack fails, but `racks` is not given")
        positions = tuple(i for i, rack in enumerate(racks) if rack == racks[position])
    cause = (row.get("cause") or kind).strip()
    return Outage(at_s=at_s, kind=kind, positions=positions, cause=cause)


@contextmanager
def _opened(path: Path | str) -> Iterator[TextIO]:
    """Read the text of a trace's file.

    Raises:
        ConfigError: There is none, or it cannot be read, now or further on.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"cannot read a trace from {path} ({error.strerror}); name its file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error}); save it as such") from None
    except csv.Error as error:
        raise ConfigError(f"{path} is no CSV ({error}); save it as such") from None
