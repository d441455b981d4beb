"""What the peers' turns come to: rows of values, and two tables of them for people."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from gemini_lab.simulator.interval import mean_interval
from gemini_lab.units import MIB, format_bytes
from gemini_lab_bench.peers.catalog import CATALOG, FLOOR, OURS
from gemini_lab_bench.peers.contract import TENSORS, Findings
from gemini_lab_bench.peers.one_turn import Conditions, PeerTurn
from gemini_lab_bench.rows import Row

TIMES: Final[dict[str, Callable[[Findings], float | None]]] = {
    "held up": lambda found: found.held_up_s,
    "peer copy whole": lambda found: found.peer_copy_s,
    "back to back": lambda found: found.back_to_back_s,
    "restore": lambda found: found.restore_s,
    "lost rank's state": lambda found: found.take_over_s,
}
COUNTS: Final = ("silent loads", "torn, guarded", "torn, at once", "killed peer", "peak memory")
GLOO: Final = "bare Gloo"
_DASH: Final = "-"


@dataclass(slots=True, kw_only=True)
class PeerRecord:
    """All turns of one peer."""

    peer: str
    turns: list[PeerTurn] = field(default_factory=list)  # those that were finished
    # Why turns failed that went well when they were tried again.
    repeated: list[str] = field(default_factory=list)
    why_not: str = ""  # why a turn could not be finished; there are no further ones then


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRow(Row):
    """Values of one peer, which spread by factors: their mean is the geometric one."""

    @property
    def mean(self) -> float:
        """The geometric mean; the plain one where a value is zero."""
        if not self._has_factors:
            return fmean(self.values)
        return math.exp(fmean(map(math.log, self.values)))

    @property
    def interval(self) -> tuple[float, float]:
        """The mean's 95 % interval: Student-t of the logarithms; one value says nothing."""
        if not self._has_factors:
            found = mean_interval(self.values)
            return found.low, found.high
        found = mean_interval([math.log(value) for value in self.values])
        return math.exp(found.low), math.exp(found.high)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain JSON values; an interval without bounds is left out."""
        found = Row(
            self.name, self.values, unit=self.unit, settings=self.settings, why_not=self.why_not
        ).to_json()
        for key in ("median", "value", "low_95", "high_95"):
            found.pop(key, None)
        if self.values:
            found["mean"] = self.mean
        if len(self.values) > 1:
            found["low_95"], found["high_95"] = self.interval
        return found

    @property
    def _has_factors(self) -> bool:
        return all(value > 0 for value in self.values)


def rows_of(records: Sequence[PeerRecord], conditions: Conditions) -> list[Row]:
    """Return what was measured of all peers, and how each one compares with ours and the floor."""
    ours = next((record.turns for record in records if record.peer == OURS), [])
    floor = next((record.turns for record in records if record.peer == FLOOR), [])
    rows: list[Row] = []
    for record in records:
        settings = _settings(record, conditions)
        rows += _measured(record, settings)
        if record.peer == OURS:
            rows += _of_floor(ours, floor, settings)
        elif record.peer != FLOOR:
            rows += _beside_ours(record, ours, settings)
        if record.why_not:
            rows.append(Row(record.peer, (), settings=settings, why_not=record.why_not))
    return rows


def _settings(record: PeerRecord, conditions: Conditions) -> dict[str, Any]:
    return {
        "peer": record.peer,
        "size": format_bytes(conditions.size_bytes),
        "ranks": conditions.ranks,
        "idle_cpu_s": conditions.iteration_s,
        "how": CATALOG[record.peer].how,
        "versions": record.turns[0].findings.versions if record.turns else "",
        "repeated": record.repeated,
    }


def _row(
    name: str, values: Sequence[float], settings: dict[str, Any], *, unit: str = "s", **more: object
) -> Row:
    return PeerRow(
        name=f"{settings['peer']}, {name}",
        values=tuple(values),
        unit=unit,
        settings={**settings, "measure": name, **more},
    )


def _measured(record: PeerRecord, settings: dict[str, Any]) -> list[Row]:
    found = [turn.findings for turn in record.turns]
    if not found:
        return []
    rows = []
    for name, read in TIMES.items():
        values = [value for one in found if (value := read(one)) is not None]
        if values and not (record.peer == FLOOR and name in {"held up", "back to back"}):
            rows.append(_row(name, values, settings))
    rows += [
        _row(name, [one.details[name] for one in found], settings) for name in found[0].details
    ]
    peaks = [turn.peak_bytes / MIB for turn in record.turns]
    rows.append(_row("peak memory", peaks, settings, unit="MiB"))
    return [*rows, *_counted(found, settings)] if record.peer != FLOOR else rows


def _counted(found: Sequence[Findings], settings: dict[str, Any]) -> list[Row]:
    """Count flips of all turns; torn tensors and lost saves of the worst."""
    rows = []
    outcomes: dict[str, int] = {}
    for one in found:
        for outcome, count in one.flips.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    if outcomes:
        silent, flips = outcomes["silent"], sum(outcomes.values())
        rows.append(_row("silent loads", [silent], settings, unit="", flips=flips, **outcomes))
    for name, counts in (
        ("torn, guarded", [one.guarded_torn for one in found]),
        ("torn, at once", [one.torn for one in found]),
        ("killed peer", [one.lost_saves for one in found]),
    ):
        known = [count for count in counts if count is not None]
        if known:
            rows.append(_row(name, [max(known)], settings, unit=""))
    if any(one.refuses_torn for one in found):
        rows.append(_row("torn, at once", [0], settings, unit="", refuses=True))
    return rows


def _of_floor(
    ours: Sequence[PeerTurn], floor: Sequence[PeerTurn], settings: dict[str, Any]
) -> list[Row]:
    """Return what share of the plain steps' speed a version has, turn by turn."""
    pairs = [
        (one.findings.peer_copy_s, other.findings)
        for one, other in zip(ours, floor, strict=False)
        if one.findings.peer_copy_s and other.findings.peer_copy_s
    ]
    if not pairs:
        return []
    gloo = [found.details.get(GLOO, 0.0) / whole_s for whole_s, found in pairs]
    steps = [(found.peer_copy_s or 0.0) / whole_s for whole_s, found in pairs]
    return [
        _row("a version's speed / bare Gloo's", gloo, settings, unit=""),
        _row("a version's speed / that of memcpy, checksum, bare Gloo", steps, settings, unit=""),
    ]


def _beside_ours(
    record: PeerRecord, ours: Sequence[PeerTurn], settings: dict[str, Any]
) -> list[Row]:
    """Return how many times as long as ours the peer takes, turn by turn."""
    rows = []
    for name, read in TIMES.items():
        pairs = [
            (read(one.findings), read(other.findings))
            for one, other in zip(record.turns, ours, strict=False)
        ]
        ratios = [theirs / mine for theirs, mine in pairs if theirs and mine]
        if ratios:
            rows.append(_row(f"{name} / {OURS}'s", ratios, settings, unit=""))
    return rows


# -- for people ----------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return peers by times and by what may go wrong; what each is, and what was not measured."""
    lines = [*_grid(rows, tuple(TIMES)), "", *_grid(rows, COUNTS), "", *_legend(rows[0])]
    for peer in dict.fromkeys(row.settings["peer"] for row in rows):
        own = [row for row in rows if row.settings["peer"] == peer]
        lines += ["", f"{peer}: {own[0].settings['how']} [{own[0].settings['versions']}]"]
        lines += [f"  {text}" for text in _remarks(own)]
    return "\n".join(lines)


def _grid(rows: Sequence[Row], measures: Sequence[str]) -> list[str]:
    peers = list(dict.fromkeys(row.settings["peer"] for row in rows))
    cells = {(r.settings["peer"], r.settings.get("measure")): _cell(r) for r in rows if r.values}
    for peer in _verifying(rows):
        cells[peer, "restore"] += " *"
    grid = [["peer", *measures]]
    grid += [[peer, *(cells.get((peer, name), _DASH) for name in measures)] for peer in peers]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in grid]


def _verifying(rows: Sequence[Row]) -> list[str]:
    """Return the peers that were seen to refuse flipped bits, and never to load one."""
    return [
        row.settings["peer"]
        for row in rows
        if row.settings.get("refused") and not row.settings["silent"]
    ]


def _cell(row: Row) -> str:
    measure = row.settings.get("measure", "")
    value = row.values[0]
    if measure == "silent loads":
        return f"{value:.0f} of {row.settings['flips']}"
    if measure.startswith("torn"):
        return "refused" if row.settings.get("refuses") else f"{value:.0f} of {TENSORS}"
    if measure == "killed peer":
        return "nothing lost" if value == 0 else f"{value:.0f} save behind"
    assert isinstance(row, PeerRow)
    return _spread(row)


def _spread(row: PeerRow) -> str:
    scale, unit = {"s": (1000, " ms"), "MiB": (1, " MiB")}.get(row.unit, (1, ""))
    mean, low, high = (_digits(scale * one) for one in (row.mean, *row.interval))
    return f"{mean}{unit}" + (f" ({low} to {high})" if len(row.values) > 1 else "")


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _legend(row: Row) -> list[str]:
    settings = row.settings
    return [
        "geometric mean (95 % interval, Student-t) of the slowest rank; -: it offers no such thing",
        "*: its restore refused every flipped bit that mattered; without: it does not look",
        "torn: tensors of the saved state with later values, where the update came after the",
        "peer's own guard, or as soon as its call had returned; killed peer: during a save",
        f"{settings['size']} fp32 on each of {settings['ranks']} ranks, files in memory;",
        f"CPU idle for {settings['idle_cpu_s']:g} s between saves, back to back not at all;",
        "memory: proportional set size of ranks and helpers, and the files",
    ]


def _remarks(rows: Sequence[Row]) -> list[str]:
    found = [
        f"{row.settings['measure']}: {_cell(row)}"
        for row in rows
        if row.values and row.settings["measure"] not in {*TIMES, *COUNTS}
    ]
    found += [
        f"{row.settings['refused']} loads refused, {row.settings['harmless']} bits harmless"
        for row in rows
        if "refused" in row.settings
    ]
    found += [f"a turn failed and was repeated: {why}" for why in rows[0].settings["repeated"]]
    return [*found, *(f"not measured: {row.why_not}" for row in rows if row.why_not)]
