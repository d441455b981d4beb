"""Where the copies of many nodes stand in the replica map: plain numbers, no Bokeh.

Each shard is a column of its copies, the owner's on top. Shards that belong together, a replica
group or a rack, are a unit; units flow like words, and a line is as wide as the map.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemini_lab.report.tables import CopyRow, ReplicaTable

Order = Literal["place", "worst", "rack"]
ORDERS: Final[dict[Order, str]] = {
    "place": "by position",
    "worst": "worst first",
    "rack": "by rack",
}
GAP: Final = 0.5
"""Between two units, in columns."""
LEADING: Final = 0.55
"""Between two lines, in rows."""
LABEL: Final = 0.95
"""Above a line whose units have labels, in rows."""
MOST_CELLS: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Shards that stand side by side, with what is written above them."""

    shards: tuple[int, ...]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What is drawn behind a unit, or behind its part on one line."""

    left: float
    right: float
    top: float
    bottom: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The map of many nodes.

    Attributes:
        copies: Those that are drawn.
        x: The middle of each, in columns from the left.
        y: The middle of each, in rows from the top.
        bands: Behind the units.
        rows: In all.
    """

    copies: tuple[CopyRow, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    bands: tuple[Band, ...]
    rows: float


def chosen(table: ReplicaTable) -> tuple[dict[int, list[CopyRow]], int]:
    """The copies of each shard that is drawn, harmed ones first, and how many shards are not."""
    by_shard: dict[int, list[CopyRow]] = {}
    for copy in table.copies:
        by_shard.setdefault(copy.shard, []).append(copy)
    most = max(map(len, by_shard.values()), default=1)
    by_harm = sorted(by_shard, key=lambda shard: left(by_shard[shard]) >= 0)
    drawn = sorted(by_harm[: max(1, MOST_CELLS // most)])
    return {shard: by_shard[shard] for shard in drawn}, len(by_shard) - len(drawn)


def left(copies: Iterable[CopyRow]) -> int:
    """How well off a shard is: 0 with every copy whole, below it how many are not."""
    return -sum(copy.state != "whole" for copy in copies)


def units(table: ReplicaTable, by_shard: dict[int, list[CopyRow]], order: Order) -> list[Unit]:
    """The shards that are drawn, as they stand in this order."""
    if order == "rack":
        racks: dict[str, list[int]] = {}
        for shard in by_shard:
            racks.setdefault(table.nodes[shard].rack, []).append(shard)
        found = sorted(racks.items(), key=lambda rack: _natural(rack[0]))
        return [Unit(shards=tuple(shards), label=rack or "no rack") for rack, shards in found]
    grouped = [[shard for shard in group if shard in by_shard] for group in table.groups]
    seen = {shard for group in grouped for shard in group}
    grouped += [[shard] for shard in by_shard if shard not in seen]
    whole = [Unit(shards=tuple(group)) for group in grouped if group]
    if order == "worst":
        return sorted(whole, key=lambda unit: min(left(by_shard[s]) for s in unit.shards))
    return whole


def _natural(name: str) -> tuple[int, str]:
    """So that rack 2 comes before rack 10."""
    return len(name), name


def flow(by_shard: dict[int, list[CopyRow]], in_order: Sequence[Unit], *, columns: int) -> Crowd:
    """Place units in lines of so many columns; one that is longer goes on in the next line."""
    most = max(map(len, by_shard.values()), default=1)
    label = LABEL if any(unit.label for unit in in_order) else 0.0
    copies: list[CopyRow] = []
    xs: list[float] = []
    ys: list[float] = []
    bands: list[Band] = []
    at, top = 0.0, label
    for unit in in_order:
        if at and at + len(unit.shards) > columns:
            at, top = 0.0, top + most + LEADING + label
        rest = list(unit.shards)
        while rest:
            part, rest = rest[: max(1, int(columns - at))], rest[max(1, int(columns - at)) :]
            for number, shard in enumerate(part):
                for row, copy in enumerate(by_shard[shard]):
                    copies.append(copy)
                    xs.append(at + number + 0.5)
                    ys.append(top + row + 0.5)
            bands.append(
                Band(left=at, right=at + len(part), top=top, bottom=top + most, label=unit.label)
            )
            at += len(part) + GAP
            if rest:
                at, top = 0.0, top + most + LEADING + label
    return Crowd(
        copies=tuple(copies), x=tuple(xs), y=tuple(ys), bands=tuple(bands), rows=top + most
    )
