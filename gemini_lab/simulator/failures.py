"""What breaks in a simulated cluster, and when: drawn, listed, or read from a trace."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gemini_lab.errors import ConfigError

Kind = Literal["software", "gpu", "hardware", "rack"]
KINDS: Final[dict[str, Kind]] = {
    "software": "software",
    "gpu": "gpu",
    "hardware": "hardware",
    "rack": "rack",
}
DAY_S: Final = 86400.0


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
    """

    at_s: float
    kind: Kind
    positions: tuple[int, ...]
    cause: str = ""
    iteration: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """How often what fails, with its source.

    Attributes:
        per_node_per_day: Failures of all kinds.
        software_share: The share of them that leaves the machine and its memory alone.
        causes: What fails how often, as counts; their shares name the cause of each failure.
        source: Where the numbers come from.
    """

    per_node_per_day: float
    software_share: float = 0.0
    causes: tuple[tuple[str, int, Kind], ...] = ()
    source: str = "given"

    def __post_init__(self) -> None:
        if self.per_node_per_day < 0 or not 0 <= self.software_share <= 1:
            raise ConfigError(
                f"a rate starts at 0 and a share lies between 0 and 1 (got per_node_per_day="
                f"{self.per_node_per_day}, software_share={self.software_share})"
            )


LLAMA_3_COUNTS: Final[tuple[tuple[str, int, Kind], ...]] = (
    ("GPU", 148, "hardware"),
    ("HBM3", 72, "hardware"),
    ("software", 54, "software"),
    ("switch or cable", 35, "hardware"),
    ("host maintenance", 32, "hardware"),
    ("SRAM", 19, "hardware"),
    ("GPU system processor", 17, "hardware"),
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
"""


def opt_175b() -> FailureRate:
    """OPT-175B's: about 110 failures in two months on 992 A100 (124 machines), 1.48 % a day.

    The paper's section 2.1 counts them; it takes 1.5 % of the machines a day from them.
    """
    return FailureRate(
        per_node_per_day=110 / 60 / 124,
        source="OPT-175B: 110 failures, 60 days, 124 machines (GEMINI, section 2.1)",
    )


def llama_3() -> FailureRate:
    """Llama 3 405B's, by component: 419 in 54 days on 2,048 machines of 8 GPUs."""
    total = sum(count for _, count, _ in LLAMA_3_COUNTS)
    software = sum(count for _, count, kind in LLAMA_3_COUNTS if kind == "software")
    return FailureRate(
        per_node_per_day=total / 54 / (16_384 / 8),
        software_share=software / total,
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
    """Independent failures at constant rates, nodes and racks each by themselves.

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
    if nodes < 1 or days < 0 or rack_per_day < 0:
        raise ConfigError(
            f"nodes start at 1, days and rates at 0 (got nodes={nodes}, days={days}, "
            f"rack_per_day={rack_per_day})"
        )
    if rack_per_day and (racks is None or len(racks) != nodes):
        raise ConfigError(f"racks that fail need `racks` with one entry a node ({nodes})")
    draw = random.Random(seed)
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
    times: list[float] = []
    while per_day > 0:
        last_s = times[-1] if times else 0.0
        at_s = last_s + draw.expovariate(per_day) * DAY_S
        if at_s >= days * DAY_S:
            break
        times.append(at_s)
    return times


def _draw_outage(at_s: float, position: int, rate: FailureRate, draw: random.Random) -> Outage:
    if rate.causes:
        [(cause, _, kind)] = draw.choices(rate.causes, [count for _, count, _ in rate.causes])
    else:
        kind = "software" if draw.random() < rate.software_share else "hardware"
        cause = kind
    return Outage(at_s=at_s, kind=kind, positions=(position,), cause=cause)


def read_trace(path: Path, *, nodes: int, racks: Sequence[str] | None = None) -> tuple[Outage, ...]:
    """The failures in a CSV file with the columns time (in s), node (a position) and kind.

    Kind is software, hardware or rack; a `cause` column is optional. A rack's failure names any
    node of the rack.

    Raises:
        ConfigError: A column is missing, or a line cannot be; the message names it.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = {"time", "node", "kind"} - set(reader.fieldnames or ())
        if missing:
            raise ConfigError(
                f"{path} lacks the column(s) {sorted(missing)}; its first line has to be "
                "'time,node,kind'"
            )
        outages = [
            _parse(row, where=f"{path}, line {reader.line_num}", nodes=nodes, racks=racks)
            for row in reader
        ]
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _parse(row: dict[str, str], *, where: str, nodes: int, racks: Sequence[str] | None) -> Outage:
    try:
        at_s, position = float(row["time"]), int(row["node"])
    except ValueError as error:
        raise ConfigError(f"{where}: time and node have to be numbers ({error})") from None
    kind = KINDS.get(row["kind"].strip())
    if not 0 <= position < nodes or not at_s >= 0 or kind is None:
        raise ConfigError(
            f"{where}: time {at_s}, node {position}, kind {row['kind']!r}; a time starts at 0, "
            f"nodes are 0 to {nodes - 1}, kinds are {', '.join(KINDS)}"
        )
    positions: tuple[int, ...] = (position,)
    if kind == "rack":
        if racks is None:
            raise ConfigError(f"{where}: a rack fails, but `racks` is not given")
        positions = tuple(i for i, rack in enumerate(racks) if rack == racks[position])
    return Outage(
        at_s=at_s,
        kind=kind,
        positions=positions,
        cause=(row.get("cause") or kind).strip(),
    )
