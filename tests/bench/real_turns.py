"""What follows what in the log of a run, for each rank and for the root agent.

The same schedules of failures befall real labs and simulated ones; `explain` compares their logs.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gemini_lab_bench.world.schedule import RUNNING, STARTING, BefallenWorld, Happening
from gemini_lab_bench.world.seeds import run_world
from gemini_lab_bench.world.world import WorldShape

Turn = tuple[str, str]
"""Two kinds of events, of which the second follows the first."""
REAL = Path(__file__).parent / "golden" / "four_kills.jsonl"
"""Of a real run of four ranks in which a worker was killed four times, what is compared here."""
OF_RANKS = {"protected", "shard_restored", "iteration_begun", "iteration", "version_complete"}
OF_ROOT = {
    *("recovery_started", "recovery_step", "recovery_planned", "recovery_finished"),
    *("worker_exited", "node_lost", "run_finished"),
}


SHAPE = WorldShape(nodes=4, standbys=1, has_tier=False, iterations=12)
KILLS: tuple[Happening, ...] = (
    *((2.5, "kill_rank", 0), (0.0, "at", STARTING), (1.5, "kill_rank", 1), (0.0, "at", RUNNING)),
    *((1.2, "kill_rank", 2), (0.0, "at", STARTING), (1.9, "kill_rank", 3)),
)


def simulated(seed: int, shape: WorldShape, happenings: Iterable[Happening]) -> list[Any]:
    """Return all events of a simulated lab."""
    said: list[dict[str, Any]] = []
    one = BefallenWorld(seed, shape, [*happenings])
    one.world.judge.on_event = lambda _, event, __: said.append(msgspec.to_builtins(event))
    run_world(one)
    return said


def turns(log: Iterable[dict[str, Any]], *, without: frozenset[str] = frozenset()) -> set[Turn]:
    """Return each pair of events that follow one another, of a rank in an epoch or of the root.

    Args:
        log: Events as they are in a log's lines.
        without: Kinds that are passed over.
    """
    found, last, told = set(), {}, {}
    for event in log:
        kind = event["kind"]
        if kind in without or event.get("restored"):
            continue
        if kind in OF_RANKS:
            who = event["rank"], event["epoch"]
            done = kind, event.get("iteration")
            if kind == "iteration" and told.get(who) == done:
                continue  # a script may log more of an iteration after it has ended
            told[who] = done
        elif kind in OF_ROOT:
            who, kind = "root", " ".join([kind, event.get("step", "")])
        else:
            continue
        found.add((last.get(who, "its start"), kind))
        last[who] = kind
    return found


def real_turns() -> set[Turn]:
    """Return what follows what in the real log."""
    return turns(map(json.loads, REAL.read_text().splitlines()))


def simulated_turns(seed: int) -> set[Turn]:
    """Return what follows what with such kills; a rank need not say that it begins an iteration."""
    said = simulated(seed, SHAPE, KILLS)
    return turns(said) | turns(said, without=frozenset({"iteration_begun"}))


Recovery = tuple[str, ...]
"""What a root agent said of a recovery, in order."""
MOST_SEEDS = 40
LASTS = replace(SHAPE, iterations=40)


def recoveries(log: Iterable[dict[str, Any]]) -> list[Recovery]:
    """Return what was said of each recovery: its cause, its steps, whence it loads, its end."""
    found: dict[int, list[str]] = {}
    for event in log:
        if event["kind"].startswith("recovery_") and event["kind"] != "recovery_waiting":
            about = (event.get(name, "") for name in ("cause", "step", "tier"))
            found.setdefault(event["recovery"], []).append(" ".join([event["kind"], *about]))
    return [tuple(said) for number, said in sorted(found.items()) if number]


def explain(
    log: Path, *happenings: Happening, shape: WorldShape = LASTS, seeds: int = MOST_SEEDS
) -> None:
    """Fail unless simulated labs say the same of each recovery, event by event.

    Args:
        log: Of a real run.
        happenings: What befell it.
        shape: Of the simulated labs; by default that of the real ones.
        seeds: As many of them are tried.
    """
    real = {*recoveries(map(json.loads, log.read_text().splitlines()))}
    told: set[Recovery] = set()
    for seed in range(seeds):
        told |= {*recoveries(simulated(seed, shape, [*happenings, (90.0, "tier_up")]))}
        if told >= real and (told or seed > 2):
            break
    assert real <= told
    assert bool(real) == bool(told)
