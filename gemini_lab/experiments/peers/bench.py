"""The `peers` bench: one turn of every peer, then the next turn, and a table of all."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab.experiments.bench import Row
from gemini_lab.experiments.peers.catalog import CATALOG, FLOOR
from gemini_lab.experiments.peers.environments import find_python, parse_environments
from gemini_lab.experiments.peers.one_turn import Conditions, Turn, run_turn
from gemini_lab.units import MIB, format_bytes, parse_bytes

MEASURES: Final = ("held up", "peer copy whole", "restore", "peak memory", "silent loads")
FLIPS: Final = 100
_DASH: Final = "-"


@dataclass(slots=True, kw_only=True)
class Record:
    """All turns of one peer.

    Attributes:
        turns: Those that were finished.
        repeated: Why turns failed that went well when they were tried again.
        why_not: Why a turn could not be finished; there are no further ones then.
    """

    peer: str
    turns: list[Turn] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    why_not: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that this bench has beside those of all."""
    parser.add_argument(
        "--size",
        default="256 MiB",
        type=parse_bytes,
        dest="size_bytes",
        help="fp32 state of each rank (256 MiB)",
    )
    parser.add_argument("--ranks", default=2, type=int, help="how many; even (2)")
    parser.add_argument(
        "--iteration-s",
        default=1.0,
        type=float,
        help="time that an iteration computes elsewhere than on the CPU (1 s)",
    )
    parser.add_argument("--flips", default=FLIPS, type=int, help=f"bits to flip ({FLIPS})")
    parser.add_argument(
        "--peers",
        default=list(CATALOG),
        type=lambda text: text.split(","),
        help=f"which, with commas: {','.join(CATALOG)}",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="PEER=PYTHON",
        dest="environments",
        help="a Python that has this peer and torch; may be given several times",
    )
    parser.add_argument(
        "--install",
        type=Path,
        metavar="DIR",
        help="make environments for the peers that need packages here, or use those made before",
    )


def bench(
    repeats: int,
    *,
    size_bytes: int = 256 * MIB,
    ranks: int = 2,
    iteration_s: float = 1.0,
    flips: int = FLIPS,
    peers: Sequence[str] = tuple(CATALOG),
    environments: Sequence[str] = (),
    install: Path | None = None,
) -> list[Row]:
    """Measure every peer `repeats` times, in turn.

    Raises:
        ConfigError: A peer is unknown, or the number of ranks is odd.
    """
    require(peers, ranks)
    conditions = Conditions(size_bytes=size_bytes, ranks=ranks, iteration_s=iteration_s)
    named = parse_environments(environments)
    records = [Record(peer=peer) for peer in peers]
    pythons: dict[str, Path] = {}
    for record in records:
        try:
            pythons[record.peer] = find_python(record.peer, named, install)
        except LaunchError as error:
            record.why_not = str(error)

    def run(peer: str, share: int, seed: int) -> Turn:
        return run_turn(peer, pythons[peer], conditions, flips=share, seed=seed)

    take_turns(records, run, repeats=repeats, flips=flips)
    return [row for record in records for row in rows_of(record, conditions)]


def take_turns(
    records: Sequence[Record], run: Callable[[str, int, int], Turn], *, repeats: int, flips: int
) -> None:
    """One turn of every peer, then the next; a peer that fails twice gets no further ones.

    Args:
        records: Take what is found.
        run: Given a peer, how many bits to flip, and a seed, runs a turn.
        repeats: How many turns.
        flips: How many bits in all turns of a peer together.
    """
    for number in range(repeats):
        share = flips * (number + 1) // repeats - flips * number // repeats
        for record in records:
            if record.why_not:
                continue
            turn = run(record.peer, share, number)
            if (error := turn.findings.error) and not _is_missing(error):
                turn = run(record.peer, share, number)
                record.repeated += [error] if not turn.findings.error else []
            record.why_not = _reason(record.peer, turn.findings.error)
            if not record.why_not:
                record.turns.append(turn)


def require(peers: Sequence[str], ranks: int) -> None:
    """Refuse peers that cannot be measured on this many ranks."""
    unknown = [peer for peer in peers if peer not in CATALOG]
    if unknown:
        raise ConfigError(f"there is no peer {unknown[0]!r}; choose from {', '.join(CATALOG)}")
    if ranks < 2 or ranks % 2:
        raise ConfigError(f"the peers swap states in pairs; {ranks} ranks make none (use 2, 4, ..)")


def _is_missing(error: str) -> bool:
    return error.startswith("ModuleNotFoundError")


def _reason(peer: str, error: str) -> str:
    if _is_missing(error) and CATALOG[peer].requirements:
        return f"not installed ({error}); use --install DIR or --env {peer}=PYTHON"
    return error


def rows_of(record: Record, conditions: Conditions) -> list[Row]:
    """What was measured of a peer; a row without values says why there are none."""
    found = [turn.findings for turn in record.turns]
    settings: dict[str, Any] = {
        "peer": record.peer,
        "size": format_bytes(conditions.size_bytes),
        "ranks": conditions.ranks,
        "idle_cpu_s": conditions.iteration_s,
        "how": CATALOG[record.peer].how,
        "versions": found[0].versions if found else "",
        "repeated": record.repeated,
    }
    times: dict[str, list[float | None]] = {
        "held up": [one.held_up_s for one in found] if record.peer != FLOOR else [],
        "peer copy whole": [one.peer_copy_s for one in found],
        "restore": [one.restore_s for one in found],
    }
    for name in found[0].details if found else ():
        times[name] = [one.details[name] for one in found]
    rows = [
        Row(name=f"{record.peer}, {name}", values=values, settings={**settings, "measure": name})
        for name, given in times.items()
        if (values := tuple(one for one in given if one is not None))
    ]
    if found:
        rows += _counted_rows(record, settings)
    if record.why_not:
        rows.append(Row(name=record.peer, values=(), settings=settings, why_not=record.why_not))
    return rows


def _counted_rows(record: Record, settings: dict[str, Any]) -> list[Row]:
    peaks = tuple(turn.peak_bytes / MIB for turn in record.turns)
    rows = [
        Row(
            name=f"{record.peer}, peak memory",
            values=peaks,
            unit="MiB",
            settings={**settings, "measure": "peak memory"},
        )
    ]
    outcomes: dict[str, int] = {}
    for turn in record.turns:
        for outcome, count in turn.findings.flips.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    if outcomes:
        flipped = {
            **settings,
            "measure": "silent loads",
            "flips": sum(outcomes.values()),
            **outcomes,
        }
        silent = (float(outcomes["silent"]),)
        rows.append(
            Row(name=f"{record.peer}, silent loads", values=silent, unit="", settings=flipped)
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """Peers by measures, for people; then what each of them is, and what could not be measured."""
    peers = list(dict.fromkeys(row.settings["peer"] for row in rows))
    cells = {(r.settings["peer"], r.settings.get("measure")): _cell(r) for r in rows if r.values}
    grid = [["peer", *MEASURES]]
    grid += [[peer, *(cells.get((peer, name), _DASH) for name in MEASURES)] for peer in peers]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in grid]
    lines += ["", "median (95 % interval) of the slowest rank; -: it offers no such thing"]
    lines.append(f"measured with {_conditions(rows[0])}")
    for peer in peers:
        own = [row for row in rows if row.settings["peer"] == peer]
        lines += ["", f"{peer}: {own[0].settings['how']} [{own[0].settings['versions']}]"]
        lines += [f"  {text}" for text in _remarks(own)]
    return "\n".join(lines)


def _cell(row: Row) -> str:
    low, high = row.interval
    if row.unit == "s":
        return f"{1000 * row.median:.1f} ms ({1000 * low:.1f} to {1000 * high:.1f})"
    if row.unit == "MiB":
        return f"{row.median:.0f} MiB ({low:.0f} to {high:.0f})"
    return f"{row.values[0]:.0f} of {row.settings['flips']}"


def _conditions(row: Row) -> str:
    settings = row.settings
    return (
        f"{settings['size']} fp32 on each of {settings['ranks']} ranks, files in memory, "
        f"iterations that leave the CPU idle for {settings['idle_cpu_s']:g} s; memory: "
        "proportional set size of ranks and helpers, and the files"
    )


def _remarks(rows: Sequence[Row]) -> list[str]:
    found = [
        f"{row.settings['measure']}: {_cell(row)}"
        for row in rows
        if row.values and row.settings["measure"] not in MEASURES
    ]
    found += [
        f"{row.settings['refused']} loads refused, {row.settings['harmless']} bits harmless"
        for row in rows
        if "refused" in row.settings
    ]
    found += [f"a turn failed and was repeated: {why}" for why in rows[0].settings["repeated"]]
    return [*found, *(f"not measured: {row.why_not}" for row in rows if row.why_not)]
