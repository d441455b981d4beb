"""The `control` bench: the cost of N agents to their root agent, their store and their log.

Agents, the root agent and their messages are the real ones, in a simulated world: one process, a
virtual clock. So a small machine measures a thousand agents as well as four, and no lease runs out
because it is busy. Processor time is real, and is told apart by the simulated process whose code
took it. Only what etcd itself costs is not seen here: the number of requests is.
"""

import argparse
import asyncio
import gc
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil

from gemini_lab.errors import ConfigError
from gemini_lab.limits import whole
from gemini_lab.log import events
from gemini_lab.log.entry import encode_entry
from gemini_lab.recovery.messages import EventSaid, decode, name_in
from gemini_lab.recovery.root_state import Phase
from gemini_lab.wire.tcp import LENGTH_BYTES
from gemini_lab_bench.rows import Row, growth, single
from gemini_lab_bench.world.virtual_loop import VirtualProcess
from gemini_lab_bench.world.virtual_machine import VirtualMachine
from gemini_lab_bench.world.world import VirtualWorld, WorldShape

ITERATIONS: Final = 4  # that are looked at while training goes on
LOOK_S: Final = 0.05
LIMIT_S: Final = 600.0  # of the virtual clock, for any one step
STANDBYS: Final = 2
EVENT: Final = "event_said"
OF_ITERATIONS: Final = (
    events.IterationBegun,
    events.Iteration,
    events.Transfer,
    events.VersionComplete,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the numbers of agents, and of workers on each."""
    parser.add_argument("--agents", default="4,32,128", help="sizes, such as 4,32,128,1000")
    parser.add_argument(
        "--workers-per-node", type=whole("workers_per_node", least=1), default=1, metavar="N"
    )
    parser.add_argument(
        "--parts", action="store_true", help="also tell the largest size's bytes by message"
    )


def bench(repeats: int, *, agents: str, workers_per_node: int, parts: bool) -> list[Row]:
    """Return rows for each number of agents; then how each quantity grows.

    Raises:
        ConfigError: A number of agents is none, or too small for the failures.
    """
    sizes = [_size(text) for text in agents.split(",")]
    shapes = [
        WorldShape(nodes=size, standbys=STANDBYS, workers=workers_per_node, has_tier=False)
        for size in sizes
    ]
    costs = [[measure(seed, shape) for seed in range(repeats)] for shape in shapes]
    found = [_rows(shape, some) for shape, some in zip(shapes, costs, strict=True)]
    rows = [row for same in zip(*found, strict=True) for row in (*same, *_growth(same))]
    return [*rows, *(_parts(shapes[-1], costs[-1]) if parts else ())]


def _size(text: str) -> int:
    if not text.strip().isdigit() or not 3 <= int(text) <= 10_000:
        raise ConfigError(
            f"--agents {text!r}: one agent and then the root agent are killed; give numbers from 3 "
            "to 10000, with commas between them"
        )
    return int(text)


def _growth(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the power of the number of agents with which a quantity grows, if two sizes tell it."""
    measured = [row for row in rows if row.values and row.median > 0]
    if len(measured) > 1:
        sizes = [row.settings["agents"] for row in measured]
        power = growth(sizes, [row.median for row in measured])
        yield single(f"{rows[0].name}: grows with the agents to the power", power)


@dataclass(slots=True)
class Use:
    """What was used in a while."""

    virtual_s: float = 0.0
    root_s: float = 0.0  # processor time of the root agent
    agents_s: float = 0.0  # of all other agents
    to_root: Counter[str] = field(default_factory=Counter)  # bytes by message
    from_root: Counter[str] = field(default_factory=Counter)
    messages: Counter[bool] = field(default_factory=Counter)  # by whether they go to the root
    lines: int = 0  # of the log, on iterations
    log_bytes: int = 0  # of those
    asked: int = 0  # requests to the store


@dataclass(frozen=True, slots=True)
class Cost:
    """What one world of agents costs."""

    start: Use
    iterations: Use
    node_lost: Use
    root_lost: Use
    memory_bytes: int  # of this process, for each agent and what simulates its workers
    state_bytes: int  # that the root agent stores with each phase


@dataclass(slots=True)
class _Told:
    """What one process has told another."""

    messages: int = 0
    bytes_of: Counter[str] = field(default_factory=Counter)  # by message


class Meter:
    """Counts what the agents of a world use."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._use = Use()
        self._began: dict[VirtualProcess, float] = {}
        self._told: defaultdict[tuple[VirtualProcess, VirtualProcess], _Told] = defaultdict(_Told)
        self._to_log: list[bytes] = []
        world.loop.is_metered = True
        world.network.on_write = self._note

    def begin(self) -> None:
        """Count from now on."""
        self._use = Use(virtual_s=self._world.loop.time())
        self._told.clear()
        self._to_log.clear()
        self._use.asked = -self._world.store.asked.total()
        self._began = {one.process: one.process.cpu_s for one in self._world.machines}

    def end(self, root: VirtualMachine) -> Use:
        """Return what was used since; `root` is the root agent's machine by now."""
        use, self._use = self._use, Use()
        use.virtual_s = self._world.loop.time() - use.virtual_s
        use.asked += self._world.store.asked.total()
        spent = {
            one: one.process.cpu_s - self._began.get(one.process, 0.0)
            for one in self._world.machines
        }
        use.root_s = spent.pop(root)
        use.agents_s = sum(spent.values())
        for (sender, receiver), told in self._told.items():
            if root.process in {sender, receiver}:
                is_to_root = receiver is root.process
                use.messages[is_to_root] += told.messages
                side = use.to_root if is_to_root else use.from_root
                side.update(told.bytes_of)
        for frame in self._to_log:
            said = decode(frame[LENGTH_BYTES:])
            if isinstance(said, EventSaid) and isinstance(said.entry.event, OF_ITERATIONS):
                use.lines += 1
                use.log_bytes += len(encode_entry(said.entry)) + 1
        return use

    def _note(self, sender: VirtualProcess, receiver: VirtualProcess, frame: bytes) -> None:
        name = name_in(frame[LENGTH_BYTES:])
        if receiver is self._world.owner.process and name == EVENT:
            self._to_log.append(frame)
        elif self._world.owner.process not in {sender, receiver}:
            told = self._told[sender, receiver]
            told.messages += 1
            told.bytes_of[name] += len(frame)


def measure(seed: int, shape: WorldShape) -> Cost:
    """Return what it costs to start, to train, and to lose a node and the root agent's."""
    before = psutil.Process().memory_info().rss
    world = VirtualWorld(seed, shape)
    meter = Meter(world)
    try:
        return world.loop.run_until_complete(_live(world, meter, before))
    finally:
        world.is_closing = True
        world.end()


async def _live(world: VirtualWorld, meter: Meter, before: int) -> Cost:
    judge, rng = world.judge, random.Random(world.seed)

    async def until(phase: Phase, *, beyond: int = -1) -> VirtualMachine:
        """Wait for a phase, and an iteration beyond one; return the root agent's machine."""
        give_up_s = world.loop.time() + LIMIT_S
        while world.loop.time() < give_up_s and not (judge.failed or judge.wrong):
            for machine, state in judge.root_states():
                if state.phase == phase and state.reached.iteration > beyond:
                    return machine
            await asyncio.sleep(LOOK_S)
        said = judge.failed or (judge.wrong or ["it takes too long"])[0]
        raise ConfigError(f"{world.shape.nodes} agents do not get to {phase!r}: {said}")

    def reached() -> int:
        return next(state.reached.iteration for _, state in judge.root_states())

    meter.begin()
    root = await until("running")
    start = meter.end(root)
    memory_bytes = (psutil.Process().memory_info().rss - before) // len(world.machines)
    gc.collect()
    gc.freeze()  # else what simulates the others makes the root agent's collections longer
    first = reached()
    root = await until("running", beyond=first)
    meter.begin()
    root = await until("running", beyond=first + ITERATIONS)
    iterations = meter.end(root)
    state_bytes = len(world.value("state") or "")
    lost: list[Use] = []
    for is_root in (False, True):
        others = [one for one in world.machines if one is not root and one.has_workers]
        victim = root if is_root else rng.choice(others)
        epoch = next(state.epoch for _, state in judge.root_states())
        meter.begin()
        victim.kill(has_power=True)
        while all(state.epoch == epoch for _, state in judge.root_states()):
            await asyncio.sleep(LOOK_S)
        root = await until("running")
        lost.append(meter.end(root))
    gc.unfreeze()
    node_lost, root_lost = lost
    return Cost(start, iterations, node_lost, root_lost, memory_bytes, state_bytes)


def _rows(shape: WorldShape, costs: Sequence[Cost]) -> list[Row]:
    settings = {"agents": shape.nodes, "workers_per_node": shape.workers}

    def row(name: str, values: Sequence[float], unit: str) -> Row:
        return Row(name, tuple(values), unit=unit, settings=settings)

    each = ITERATIONS * shape.nodes
    its = [cost.iterations for cost in costs]
    rows = [
        row("root agent, a node and iteration", [one.root_s / each for one in its], "s"),
        row("messages to it", [one.messages[True] / each for one in its], ""),
        row("bytes to it", [one.to_root.total() / each for one in its], "B"),
        row("another agent, a second", [o.agents_s / o.virtual_s / shape.nodes for o in its], "s"),
        row("lines of log, a node and iteration", [one.lines / each for one in its], ""),
        row("bytes of log, a node and iteration", [one.log_bytes / each for one in its], "B"),
        row("requests to the store, all agents", [one.asked / one.virtual_s for one in its], "1/s"),
    ]
    for name, uses in (
        ("start", [cost.start for cost in costs]),
        ("node lost", [cost.node_lost for cost in costs]),
        ("root agent lost", [cost.root_lost for cost in costs]),
    ):
        rows += [
            row(f"{name}: root agent", [one.root_s for one in uses], "s"),
            row(f"{name}: all others", [one.agents_s for one in uses], "s"),
            row(f"{name}: messages to root", [one.messages[True] for one in uses], ""),
            row(f"{name}: bytes to root", [one.to_root.total() for one in uses], "B"),
            row(f"{name}: bytes from root", [one.from_root.total() for one in uses], "B"),
            row(f"{name}: on the virtual clock", [one.virtual_s for one in uses], "s"),
        ]
    return [
        *rows,
        row("the root agent's state in the store", [cost.state_bytes for cost in costs], "B"),
        row("memory of this bench, an agent", [cost.memory_bytes for cost in costs], "B"),
    ]


def _parts(shape: WorldShape, costs: Sequence[Cost]) -> Iterator[Row]:
    """Yield the bytes of each message of a size, in each direction."""
    settings = {"agents": shape.nodes, "workers_per_node": shape.workers}
    for phase in ("start", "iterations", "node_lost", "root_lost"):
        uses = [getattr(cost, phase) for cost in costs]
        for way, sides in (
            ("to root", [one.to_root for one in uses]),
            ("from root", [one.from_root for one in uses]),
        ):
            for name in sorted({name for side in sides for name in side}):
                values = tuple(float(side[name]) for side in sides)
                yield Row(
                    f"{phase.replace('_', ' ')}: {name} {way}", values, unit="B", settings=settings
                )
