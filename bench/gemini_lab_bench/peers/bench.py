"""The `peers` bench: one turn of every peer, then the next turn, and a table of all."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab.units import MIB, format_seconds, parse_bytes
from gemini_lab_bench.peers.catalog import CATALOG
from gemini_lab_bench.peers.environments import find_python, parse_environments
from gemini_lab_bench.peers.one_turn import Conditions, PeerTurn, run_turn
from gemini_lab_bench.peers.table import PeerRecord, rows_of, table
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row

__all__ = ["add_options", "bench", "require", "table", "take_turns"]

FLIPS: Final = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that this bench has beside those of all."""
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
    records = [PeerRecord(peer=peer) for peer in peers]
    pythons: dict[str, Path] = {}
    for record in records:
        try:
            pythons[record.peer] = find_python(record.peer, named, install)
        except LaunchError as error:
            record.why_not = str(error)

    def run(peer: str, share: int, seed: int) -> PeerTurn:
        began_s = time.monotonic()
        turn = run_turn(peer, pythons[peer], conditions, flips=share, seed=seed)
        took = format_seconds(time.monotonic() - began_s)
        say(f"turn {seed + 1} of {repeats}, {peer}: {turn.findings.error or 'done'}, {took}")
        return turn

    take_turns(records, run, repeats=repeats, flips=flips)
    return rows_of(records, conditions)


def take_turns(
    records: Sequence[PeerRecord],  # take what is found
    # Given a peer, how many bits to flip, and a seed, runs a turn.
    run: Callable[[str, int, int], PeerTurn],
    *,
    repeats: int,  # how many turns
    flips: int,  # how many bits in all turns of a peer together
) -> None:
    """Run a turn of every peer, then the next; a peer that fails twice gets no further ones."""
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
    entry = CATALOG[peer]
    if _is_missing(error) and entry.by_hand:
        return f"not installed ({error}): {entry.by_hand}; then --env {peer}=PYTHON"
    if _is_missing(error) and entry.requirements:
        return f"not installed ({error}); use --install DIR or --env {peer}=PYTHON"
    return error
