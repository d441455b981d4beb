"""The `control` bench: what a lab of N agents costs its store, its root and its log.

Agents, their connections, etcd and the root agent are real, on one box. Workers are stand-ins that
talk as training does (`control_agents`). The root agent has a process of its own, and so has each
agent that is to be killed; the others share a few processes.

What cannot be measured on the machine at hand is said, with what was waited for: a box that plays
a thousand machines may starve them of its processors, until leases run out of nodes that live.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.job import Job
from gemini_lab_bench.benches.control_lab import Answered, Owner, Use, open_lab
from gemini_lab_bench.rows import Row, growth, single

PACE: Final = 500.0  # iterations a second of all ranks together, at most: one process hears them
TOP_PACE: Final = 10.0  # of each rank
MINUTE_ITERATIONS: Final = 600  # at ten a second
OPERATIONS: Final = "store operations an agent and second"
ANSWERS: Final = "store's answers and notices an agent"
UNASKED: Final = "nodes found lost that nobody had killed"
LOG: Final = "log a rank and minute, at 10 iterations/s"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of agents, and how long they are watched."""
    parser.add_argument("--agents", default="10,100", help="sizes, such as 10,100,1000")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each look at an idle lab")
    parser.add_argument("--lease-s", type=float, default=2.0, help="as a lab's; 2 is its default")
    parser.add_argument("--limit-s", type=float, default=240.0, help="for each number of agents")


def bench(
    repeats: int, *, agents: str, seconds: float, lease_s: float, limit_s: float
) -> list[Row]:
    """Return rows for each number of agents; then how each quantity grows.

    Raises:
        ConfigError: A number of agents is none, or too small for the failures.
    """
    sizes = [_size(text, repeats) for text in agents.split(",")]
    plan = ControlPlan(repeats=repeats, seconds=seconds, lease_s=lease_s, limit_s=limit_s)
    found = [[*measured] for measured in zip(*(measure(size, plan) for size in sizes), strict=True)]
    return [row for rows in found for row in (*rows, *_growth(rows))]


def _size(text: str, repeats: int) -> int:
    if not text.strip().isdigit() or int(text) < repeats + 2:
        raise ConfigError(
            f"--agents {text!r}: {repeats} repeats kill {repeats} agents other than the root; give "
            f"numbers from {repeats + 2} on, with commas between them, or lower --repeats"
        )
    return int(text)


def _growth(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the power of the number of agents with which a quantity grows, if two sizes tell it."""
    measured = [row for row in rows if row.values and row.median > 0]
    if len(measured) > 1:
        sizes = [row.settings["agents"] for row in measured]
        power = growth(sizes, [row.median for row in measured])
        yield single(f"{rows[0].name}: grows with the agents to the power", power)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlan:
    """What is measured of a lab: so many looks and failures, of so many seconds, by a limit."""

    repeats: int
    seconds: float
    lease_s: float
    limit_s: float


@dataclass(slots=True)
class ControlFindings:
    """What was measured of one lab so far, value by value."""

    up_s: list[float] = field(default_factory=list)
    idle: list[Use] = field(default_factory=list)
    working: list[float] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)


def measure(size: int, plan: ControlPlan) -> list[Row]:
    """Measure a lab of `size` agents and a standby a failure: idle, at work, and losing agents.

    What cannot be measured by the limit has no values, and says what was waited for.
    """
    pace = min(TOP_PACE, PACE / size)
    found, owner, why_not = ControlFindings(), Owner(), ""

    async def by_the_limit() -> None:
        async with asyncio.timeout(plan.limit_s):
            await _measure(size, plan, 1 / pace, found, owner)

    try:
        asyncio.run(by_the_limit())
    except TimeoutError:
        why_not = f"{plan.limit_s:g} s were over while it waited for {owner.waited_for}"
        why_not += f"; the run waits: {owner.reason}" if owner.reason else ""
    except GeminiError as error:
        why_not = str(error)
    settings = {"agents": size, "lease_s": plan.lease_s, "iterations_per_s": pace}

    def row(name: str, values: Sequence[float], unit: str) -> Row:
        why = "" if values else why_not or "not reached"
        return Row(name, tuple(values), unit=unit, settings=settings, why_not=why)

    told = found.answered
    all_s = [(use, use.s * (size + plan.repeats)) for use in found.idle]
    per_mb = MINUTE_ITERATIONS / owner.iterations / 1e6 if owner.iterations else 0.0
    line_bytes = owner.collective_bytes + owner.other_bytes
    return [
        row("all agents up and connected", found.up_s, "s"),
        row(OPERATIONS, [use.store.operations / s for use, s in all_s], "1/s"),
        row(ANSWERS, [use.store.sent_bytes / s for use, s in all_s], "B/s"),
        row("etcd, lab idle", [use.etcd_s / use.s for use in found.idle], "cores"),
        row("root agent, lab idle", [use.root_s / use.s for use in found.idle], "cores"),
        row("another agent, lab idle", [use.agents_s / s for use, s in all_s], "cores"),
        row("root agent, a rank and iteration", found.working, "s"),
        row("agent killed, until there is a plan", [one.planned_s for one in told], "s"),
        row("agent killed, until all have their part", [one.reached_s for one in told], "s"),
        row("... processor time of the root agent in that", [one.root_s for one in told], "s"),
        row("... of all other agents, on this machine", [one.agents_s for one in told], "s"),
        row(LOG, [line_bytes * per_mb] if per_mb else [], "MB"),
        row("... with log_collectives false", [owner.other_bytes * per_mb] if per_mb else [], "MB"),
        row(UNASKED, [float(len(owner.lost - found.killed))] if found.up_s else [], ""),
    ]


async def _measure(
    size: int, plan: ControlPlan, period_s: float, found: ControlFindings, owner: Owner
) -> None:
    began_s = time.monotonic()
    async with open_lab(
        size, plan.repeats, period_s=period_s, lease_s=plan.lease_s, owner=owner
    ) as lab:
        found.up_s.append(time.monotonic() - began_s)
        for _ in range(plan.repeats):
            found.idle.append(await lab.look(plan.seconds))
        lab.submit(Job(script="stand-in"))
        found.working.append(await lab.work())
        for name, victim in lab.victims.items():
            found.killed.add(name)
            found.answered.append(await lab.kill(victim))
            found.working.append(await lab.work())
