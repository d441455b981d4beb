"""Schedules: what befalls a simulated world, drawn from a seed."""

import asyncio
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from gemini_lab.node.bulk_process import answer_to
from gemini_lab.recovery.ailments import RULES
from gemini_lab.recovery.messages import ListVersions, VersionsListed
from gemini_lab.recovery.requests import (
    DrainNode,
    GiveUpProgress,
    ResizeRun,
    RewindRun,
    SaveVersion,
    StopRun,
)
from gemini_lab.units import LARGEST, most_of
from gemini_lab_bench.world.virtual_machine import VirtualMachine
from gemini_lab_bench.world.virtual_network import RESETS
from gemini_lab_bench.world.world import MOST_MACHINES, VirtualWorld, WorldShape

Happening = tuple[float, str, *tuple[int, ...]]
"""After so many seconds more, what befalls the world, and whole numbers about it."""
SETTLES_S: Final = 900.0
"""In which a run has to end once machines enough are well, whatever the others are."""
ENDS_S: Final = 120.0
AILS_S: Final = 30.0
"""For what others do that are not well, before training ends."""
DECIDES_S: Final = 60.0
"""For so long a person watches a root agent that waits."""
LONG_EVERY: Final = 20
"""One of so many seeds lasts for `LONG_S`; the others end after a minute or some."""
LONG_S: Final = 2400.0
PEACE_S: Final = (60, 400)
"""For so long all is well between two times of trouble in a long world."""
AFTERMATH_S: Final = 20.0
"""For what trouble leads to, before all is well again."""
ROOT: Final = 99
"""In the place of a machine's number: the one that is root then."""

SHAPES: Final = (
    WorldShape(),
    WorldShape(nodes=2, standbys=1),
    WorldShape(nodes=2, standbys=2, has_tier=False, store_members=3),
    WorldShape(nodes=3, standbys=1, persist_every=1, notice_s=8.0),
    WorldShape(nodes=4, standbys=1, has_tier=False, store_members=3),
    WorldShape(nodes=3, standbys=1, shrinks=True),
    WorldShape(nodes=2, standbys=1, workers=2),
    WorldShape(nodes=4, standbys=1, follows=True),
    WorldShape(nodes=2, standbys=1, is_refilled=False),
    WorldShape(nodes=3, standbys=2, has_tier=False, is_refilled=False),
    WorldShape(nodes=6, standbys=2, persist_every=8, notice_s=8.0),
    WorldShape(nodes=10, standbys=2, has_tier=False),
    WorldShape(nodes=3, standbys=1, persist_every=2, store_members=3),
    WorldShape(nodes=3, standbys=2, keeps=True, preloads=True, notice_s=8.0),
    WorldShape(nodes=2, standbys=1, workers=2, has_tier=False, keeps=True),
)
KINDS: Final[dict[str, tuple[int, ...]]] = {
    "kill": (8, 2),
    "freeze": (8,),
    "thaw": (8,),
    "part": (8, 2),
    "cut": (8, 8),
    "reset": (8, 8, 4),
    "refuse": (8,),
    "flap": (8, 6),
    "cut_store": (8, 3),
    "mend": (8,),
    "store_down": (),
    "store_up": (2,),
    "member_down": (3,),
    "member_up": (3,),
    "member_cut": (3,),
    "watch_late": (5,),
    "answers_lost": (3,),
    "slow": (4,),
    "tier_down": (),
    "tier_hangs": (),
    "tier_full": (),
    "tier_mute": (),
    "tier_lies": (),
    "tier_stale": (),
    "tier_apart": (8,),
    "tier_rots": (64,),
    "tier_up": (),
    "lease_late": (6,),
    "compact": (),
    "store_full": (),
    "rewind": (3,),
    "ask_rewind": (3,),
    "add": (),
    "kill_rank": (8,),
    "stop_rank": (8,),
    "flip": (8, 64),
    "clock": (8, 5),
    "ail": (8, 3),
    "compute_wrong": (8,),
    "not_finite": (2,),
    "slow_rank": (8,),
    "none_come": (),
    "end": (),
    "ends_early": (8, 3),
    "edit": (),
    "person": (6, 5, 2),
    "kill_group": (8,),
    "freeze_group": (8,),
    "thaw_all": (),
    "mend_all": (),
    "sever": (8,),
    "lack": (8, 3),
    "regain": (8,),
    "drain": (8,),
    "term": (8,),
    "give_up": (),
    "resize": (5,),
    "at": (7,),
    "fuse": (6, 4),
}
"""What may befall a world, and below what its numbers are. In a long world there is `peace` too:
all is well for so many seconds."""
PHASES: Final = (
    "fencing",
    "inventory",
    "waiting",
    "starting",
    "running",
    "finishing",
    "halfway",
)
"""Of a run; the last one: some ranks, and not all, have a version whole of this start."""
FLAP_S: Final = 1.5
FOLLOW_S: Final = 10.0
"""For a phase to come."""
TOGETHER: Final = (
    ("freeze_group", "give_up", "thaw_all", "kill_group", "at"),
    ("kill_group", "tier_down", "tier_up", "tier_hangs", "at"),
    ("fuse", "kill", "freeze", "thaw", "reset", "at"),
    ("part", "mend_all", "cut", "fuse", "store_down", "store_up"),
    ("freeze", "thaw_all", "freeze_group", "kill", "at", "reset"),
    ("lack", "regain", "kill_rank", "sever", "drain"),
    ("resize", "at", "fuse", "kill", "freeze", "thaw_all"),
    ("rewind", "ask_rewind", "kill_rank", "kill", "freeze", "thaw_all", "at"),
    ("rewind", "kill_group", "tier_stale", "tier_mute", "tier_up", "at"),
    ("tier_apart", "kill_group", "tier_rots", "tier_up", "freeze"),
    ("person", "drain", "resize", "ask_rewind", "term", "kill", "at"),
    ("ail", "term", "none_come", "add", "slow_rank", "lack", "compute_wrong", "at"),
    ("member_down", "member_up", "member_cut", "kill", "answers_lost", "reset", "at"),
    ("ends_early", "edit", "kill_rank", "sever", "stop_rank", "freeze"),
    ("drain", "kill_rank", "sever", "kill", "term", "at"),
    ("lease_late", "compact", "store_full", "store_up", "freeze", "kill", "answers_lost"),
)
"""What makes trouble when it comes together."""
EARLY: Final = ("data", "loop", "process")
"""What is over on one rank while the others train on."""
FENCING, INVENTORY, WAITING, STARTING, RUNNING, FINISHING, HALFWAY = range(len(PHASES))
Step = tuple[float, str, *tuple[int, ...]]
"""After about so many seconds, what befalls the world, and the first of its numbers."""
DRAWN: Final = -1
"""In the place of a number that is drawn."""
IN_ORDER: Final[tuple[tuple[Step, ...], ...]] = (
    # What a user gave up comes back, and what displaced it is lost.
    (
        *((6.0, "freeze_group"), (0.0, "at", WAITING), (1.0, "give_up"), (1.0, "at", RUNNING)),
        *((3.0, "thaw_all"), (4.0, "sever"), (3.0, "kill_group")),
    ),
    ((5.0, "tier_down"), (3.0, "kill_group"), (12.0, "tier_up")),
    ((5.0, "freeze"), (4.0, "thaw_all"), (0.0, "at", HALFWAY), (0.0, "freeze_group")),
    ((4.0, "drain"), (0.0, "at"), (0.0, "fuse"), (0.0, "kill")),
    (
        *((0.0, "at", HALFWAY), (0.0, "freeze"), (0.0, "kill_rank"), (0.0, "at", HALFWAY)),
        *((0.0, "thaw_all"), (0.0, "kill_rank"), (0.0, "kill")),
    ),
    # A rewind that no root agent hears of; then memory is lost, and the tier has what it left.
    (
        (6.0, "tier_full"),
        (2.0, "kill", ROOT, 1),
        (0.3, "rewind"),
        (9.0, "kill_group"),
        (1.0, "tier_up"),
    ),
    (
        (4.0, "rewind"),
        (2.0, "kill_rank"),
        (0.0, "tier_stale"),
        (3.0, "kill_group"),
        (9.0, "tier_up"),
    ),
    # A machine that was excluded is the last one.
    ((4.0, "lack", 1, 0), (0.0, "kill_rank", 1), (9.0, "regain", 1), (4.0, "kill", 0, 1)),
    # Nodes that stood by have an old version, and those with a newer one fall silent.
    (
        *((3.0, "drain", 0), (7.0, "drain", 1), (14.0, "at", RUNNING)),
        *((9.0, "freeze_group"), (0.0, "kill", ROOT), (15.0, "thaw_all")),
    ),
    # Silent nodes return to a run that has waited for long.
    ((5.0, "freeze_group"), (50.0, "thaw_all")),
    ((5.0, "store_down"), (14.0, "store_up", 0), (6.0, "store_down"), (9.0, "store_up")),
    ((5.0, "part", ROOT, 1), (60.0, "mend_all")),
    ((5.0, "cut_store"), (12.0, "mend_all"), (0.0, "kill_rank")),
    ((5.0, "part"), (9.0, "mend_all"), (2.0, "kill")),
    ((4.0, "fuse", DRAWN, 0), (0.0, "kill_rank"), (8.0, "tier_up")),
    ((4.0, "fuse", DRAWN, 0), (0.0, "kill"), (8.0, "tier_up")),
    ((6.0, "end"), (0.0, "at", FINISHING)),
    (
        (6.0, "tier_hangs"),
        (0.0, "end"),
        (0.0, "at", FINISHING),
        (2.0, "kill", ROOT),
        (9.0, "tier_up"),
    ),
    ((4.0, "resize"), (0.5, "fuse"), (3.0, "kill")),
    ((4.0, "ask_rewind"), (0.1, "fuse"), (3.0, "kill_rank")),
    ((5.0, "not_finite"), (9.0, "not_finite", 0), (3.0, "kill")),
    ((0.0, "slow_rank"), (20.0, "kill")),
    # A user asks something in each phase; a machine is to go, or comes.
    ((5.0, "kill_rank"), (0.0, "at"), (0.0, "person")),
    ((5.0, "kill"), (0.0, "at"), (0.0, "term"), (0.0, "at"), (0.0, "person")),
    ((5.0, "freeze_group"), (0.0, "at", WAITING), (0.0, "person"), (1.0, "ail"), (1.0, "term")),
    ((6.0, "tier_hangs"), (0.0, "end"), (0.0, "at", FINISHING), (0.0, "person"), (0.5, "add")),
    ((6.0, "tier_down"), (0.0, "end"), (0.0, "at", FINISHING), (0.0, "sever"), (0.0, "reset")),
)
"""What must come one after the other."""
HOLDS_UP: Final = ("tier_hangs", "tier_down", "tier_full")
"""What makes a run's last save take its time."""
STRIKES: Final = (0.0, 0.0, 0.003, 0.02, 0.1, 0.5)
"""Seconds after a phase has begun."""


def is_long(seed: int) -> bool:
    """Return whether a seed's world trains for 40 minutes."""
    return seed % LONG_EVERY == LONG_EVERY - 1


def draw(seed: int) -> tuple[WorldShape, tuple[Happening, ...]]:
    """Return a world and what befalls it."""
    rng = random.Random(f"schedule {seed}")
    shape = rng.choice(SHAPES)
    if not is_long(seed):
        return shape, tuple(_trouble(rng))
    shape = replace(
        shape,
        nodes=rng.randint(4, 12),
        is_refilled=True,
        pace=rng.uniform(5.0, 25.0),
        lease_s=rng.choice((2.0, 5.0)),
    )
    return shape, tuple(_long_life(rng))


def _long_life(rng: random.Random) -> Iterator[Happening]:
    """Yield trouble and peace by turns, for `LONG_S`; nothing ends the run before."""
    passed_s = 0.0
    while passed_s < LONG_S:
        trouble = [one for one in _trouble(rng) if not _ends_run(*one)]
        peace_s = rng.randint(*PEACE_S)
        passed_s += sum(one[0] for one in trouble) + peace_s
        yield from trouble
        yield AFTERMATH_S, "peace", peace_s


def _ends_run(_: float, kind: str, *numbers: int) -> bool:
    return kind in {"end", "ends_early"} or (kind == "person" and numbers[0] == 0)


def _trouble(rng: random.Random) -> list[Happening]:
    """Return what befalls a world within a minute or some."""
    kinds = list(rng.choice(TOGETHER))
    if rng.random() < 0.5:
        kinds = rng.sample([*KINDS], rng.randint(2, 8))
    happenings: list[Happening] = []
    if rng.random() < 0.35:
        happenings += _in_order(rng, rng.choice(IN_ORDER))
    elif rng.random() < 0.15:
        happenings += _in_order(rng, ((6.0, rng.choice(HOLDS_UP)), (0.0, "end")))
        happenings += _in_order(rng, ((0.0, "at", FINISHING),))
    for _ in range(rng.randint(1, 9)):
        kind = rng.choice(kinds)
        wait_s = rng.choice((0.0, 0.01, 0.1, 0.5, 2.0, 5.0, 12.0)) * rng.uniform(0.5, 1.5)
        if kind != "at" and rng.random() < 0.2:
            happenings.append((round(wait_s, 3), "at", *_drawn(rng, "at")))
            wait_s = rng.choice(STRIKES)
        happenings.append((round(wait_s, 3), kind, *_drawn(rng, kind)))
    first_s = round(rng.uniform(1.0, 9.0), 3)
    happenings[0] = (max(first_s, happenings[0][0]), *happenings[0][1:])
    return happenings


def _in_order(rng: random.Random, steps: Sequence[Step]) -> Iterator[Happening]:
    """Yield these steps, with the numbers that are to be drawn."""
    for wait_s, kind, *first in steps:
        numbers = [n if n != DRAWN else _drawn(rng, kind)[i] for i, n in enumerate(first)]
        numbers += _drawn(rng, kind)[len(first) :]
        yield (round(wait_s * rng.uniform(0.8, 1.2), 3), kind, *numbers)


def _drawn(rng: random.Random, kind: str) -> list[int]:
    """Return numbers for what befalls a world; often it befalls the root agent's machine."""
    numbers = [rng.randrange(most) for most in KINDS[kind]]
    if numbers and KINDS[kind][0] == 8 and rng.random() < 0.35:
        numbers[0] = ROOT
    return numbers


class BefallenWorld:
    """One world, and a schedule that befalls it.

    Attributes:
        settles_s: In which a run has to end once machines enough are well.
        decides_s: For so long a person watches a root agent that waits.
        heals_all: Whether all machines are well in the end, and not only as many as train.
    """

    settles_s, decides_s, heals_all = SETTLES_S, DECIDES_S, False

    def __init__(self, seed: int, shape: WorldShape, schedule: Sequence[Happening]) -> None:
        self.schedule = tuple(schedule)
        self._is_long = any(kind == "peace" for _, kind, *_ in schedule)
        self._chosen: tuple[int, ...] = ()
        self._halfway = 0  # the epoch in which a version was halfway last
        self._is_settled = False
        self.world = VirtualWorld(seed, shape)
        self.world.strike_root = self._strike_root

    async def live(self) -> None:
        """Have everything happen, and see that the run ends."""
        world, judge = self.world, self.world.judge
        for wait_s, kind, *numbers in self.schedule:
            await asyncio.sleep(wait_s)
            if judge.is_done or judge.failed or judge.wrong:
                break
            judge.note(f"happens: {kind} {numbers}")
            judge.coverage.strike(kind, judge.phase)
            if kind == "at":
                await self._follow(PHASES[numbers[0]])
            elif kind == "peace":
                await self._rest(*numbers)
            else:
                self.befall(kind, *numbers)
        self._settle()
        await self._until(lambda: judge.is_done or bool(judge.failed), self.settles_s)
        if not (judge.is_done or judge.failed or judge.wrong):
            judge.broken(f"the run does not end: {self._stuck()}")
        world.is_closing = True
        world.owner.close()
        await self._until(lambda: all(one.is_dead for one in world.core), ENDS_S)
        left = [one.name for one in world.core if not one.is_dead]
        if left and not judge.wrong:
            judge.broken(f"agents do not end with their lab: {left}")
        judge.wrong += [f"no code caught: {text}" for text in world.loop.failures]

    def befall(self, kind: str, *numbers: int) -> None:
        """Have something happen."""
        act: Callable[..., None] = getattr(self, f"_{kind}")
        act(*numbers)

    async def _follow(self, phase: str) -> None:
        """Wait until the root agent is in a phase."""
        give_up_s = self.world.loop.time() + FOLLOW_S
        while self.world.loop.time() < give_up_s:
            if phase == "halfway":
                job = max(self.world.jobs.values(), key=lambda one: one.start.epoch, default=None)
                if job is not None and job.start.epoch > self._halfway and job.is_halfway:
                    self._halfway = job.start.epoch
                    return
            elif any(state.phase == phase for _, state in self.world.judge.root_states()):
                return
            await asyncio.sleep(0.02)

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        give_up_s = self.world.loop.time() + limit_s
        waits_since_s = None
        while not is_so() and self.world.loop.time() < give_up_s and not self.world.judge.wrong:
            await asyncio.sleep(0.5)
            now_s = self.world.loop.time()
            for _, state in self.world.judge.root_states():  # while there is none, it waits on
                waits_since_s = (waits_since_s or now_s) if state.phase == "waiting" else None
            if waits_since_s is not None and now_s > waits_since_s + self.decides_s:
                waits_since_s = now_s
                self.world.judge.check_wait()
                self.world.judge.has_given_up = True
                self.world.judge.note("the user gives up progress")
                self.world.owner.ask(GiveUpProgress())

    async def _rest(self, seconds: int) -> None:
        """Have all be well for some time, in which a user watches; then excuses count no more."""
        judge = self.world.judge
        self._mend_around()
        alive = [one for one in self.world.machines if not one.is_dead]
        self._be_well([one for one in alive if one not in self.world.drained])
        await self._until(lambda: judge.is_done or bool(judge.failed), seconds)
        self.world.core, self._is_settled = [], False
        if judge.phase == "running":
            judge.forget_excuses()
            self.world.has_lacked, self.world.is_finite = False, True

    def _mend_around(self) -> None:
        """Have the store, the tier and the ways be well."""
        world = self.world
        self._store_up(1)
        self._tier_up()
        world.network.slow_s = world.store.watch_delay_s = world.store.loses_answers = 0.0
        world.store.late_s = 0.0
        world.fuse = None
        self._is_settled = True

    def _settle(self) -> None:
        """Have as many machines well as are to train; others are not, or not quite, for ever."""
        world = self.world
        rng = random.Random(f"core {world.seed}")
        self._mend_around()
        alive = [one for one in world.machines if not (one.is_dead or one in world.drained)]
        well = [one for one in alive if one.process.runs]
        rest = [one for one in alive if one not in well]
        rng.shuffle(well)  # the root agent may be outside
        core = [world.machines[number] for number in self._chosen] or (well + rest)[: self._nodes]
        if self.heals_all:
            core = alive
        others = [one for one in world.machines if not (one in core or one.is_dead)]
        self._fill(core)
        numbers = [world.machines.index(one) for one in core]
        for machine in () if self._chosen else others:
            self._weaken(rng, world.machines.index(machine), numbers)
        self._be_well(core)
        world.loop.after(rng.choice((0.0, 0.0, AILS_S)), self._end)

    @property
    def _nodes(self) -> int:
        """The most machines that are to train."""
        return max(self.world.shape.nodes, min(self.world.nodes_asked, MOST_MACHINES), 2)

    def _fill(self, core: list[VirtualMachine]) -> None:
        """Bring machines until all are there that are to train."""
        wanted = max(self._nodes, self.world.most_machines) if self.heals_all else self._nodes
        while len(core) < wanted:
            core.append(self.world.bring())

    def _be_well(self, core: list[VirtualMachine]) -> None:
        """Have machines be well, and reach each other."""
        world = self.world
        self._fill(core)
        for machine in core:
            machine.thaw()
            machine.recover()
            for rank in machine.ranks:
                rank.process.go_on("stopped")
        names = {one.name for one in core} | {"lab", *self._store}
        for one in core:
            world.network.mend_among(one.name, names)
        world.core = core
        world.judge.note(f"core: {[one.name for one in core]}")

    def _end(self) -> None:
        """Have the script end after this iteration."""
        self.world.is_ending = True

    def _weaken(self, rng: random.Random, number: int, core: Sequence[int]) -> None:
        """Have a machine be unwell for ever: frozen, cut off, or unheard by some of the core."""
        match rng.randrange(5):
            case 0:
                self._freeze(number)
            case 1:
                self._part(number, rng.randrange(2))
            case 2:
                for other in rng.sample(core, rng.randint(1, len(core))):
                    self._cut(number, other)
            case 3:
                for other in rng.sample(core, rng.randint(1, len(core))):
                    self._cut(other, number)

    def _stuck(self) -> str:
        lines = [f"root {self.world.value('root')}"]
        for machine, state in self.world.judge.root_states():
            lines.append(f"{machine.name}: {state.phase} epoch {state.epoch} {state.members}")
        ranks = [rank for machine in self.world.machines for rank in machine.ranks]
        living = [rank for rank in ranks if not rank.process.is_gone]
        lines += [f"{one.process.name} epoch {one.start.epoch} {one.version}" for one in living]
        return "; ".join(lines)

    def _machine(self, number: int) -> VirtualMachine:
        root = self.world.root() if number == ROOT else None
        crowd = self.world.machines
        if self._is_long:  # most machines that there ever were are gone
            crowd = [one for one in crowd if not one.is_dead] or crowd
        return root or crowd[number % len(crowd)]

    # -- what may happen -------------------------------------------------------------------------

    def _core(self, *numbers: int) -> None:
        """Choose the machines that are well in the end; all others stay as they are then."""
        self._chosen = numbers

    def _kill(self, number: int, power: int) -> None:
        if sum(not one.is_dead for one in self.world.machines) > 1:
            self._machine(number).kill(has_power=bool(power))

    def _freeze(self, number: int) -> None:
        self._machine(number).freeze()

    def _thaw(self, number: int) -> None:
        self._machine(number).thaw()

    def _part(self, number: int, sees_store: int) -> None:
        """Cut a machine off from all others, and maybe from the store."""
        name = self._machine(number).name
        others = [one.name for one in self.world.machines if one.name != name]
        for other in [*others, "lab", *([] if sees_store else self._store)]:
            self.world.network.cut(name, other)
            self.world.network.cut(other, name)

    def _cut(self, sender: int, receiver: int) -> None:
        """Lose all that goes from one machine to another, in this direction alone."""
        self.world.network.cut(self._machine(sender).name, self._machine(receiver).name)

    def _cut_store(self, number: int, direction: int) -> None:
        """Cut a machine off from the store alone, in one direction or both."""
        name = self._machine(number).name
        for member in self._store:
            if direction != 1:
                self.world.network.cut(name, member)
            if direction != 2:
                self.world.network.cut(member, name)

    def _reset(self, first: int, second: int, how: int = 0) -> None:
        names = self._machine(first).name, self._machine(second).name
        self.world.network.reset(*names, RESETS[how])
        self.world.judge.waits.touch(*names)

    def _refuse(self, number: int) -> None:
        """Have a firewall refuse new connections to a machine."""
        self._machine(number).net.refuses = True

    def _flap(self, number: int, times: int) -> None:
        """Cut a machine off and back again, some times in turn."""
        if self._is_settled:
            return
        machine = self._machine(number)
        self._part(self.world.machines.index(machine), 1)
        self.world.loop.after(FLAP_S, self._flap_back, machine, times)

    def _flap_back(self, machine: VirtualMachine, times: int) -> None:
        if not self._is_settled:
            self.world.network.mend(machine.name)
            if times:
                number = self.world.machines.index(machine)
                self.world.loop.after(FLAP_S, self._flap, number, times - 1)

    def _mend(self, number: int) -> None:
        self._machine(number).net.refuses = False
        self.world.network.mend(self._machine(number).name)

    def _store_down(self) -> None:
        self.world.store.is_up = False

    def _store_up(self, keeps_leases: int) -> None:
        self.world.store.is_full = False
        self.world.store.recover()
        self.world.store.come_back(keeps_leases=bool(keeps_leases))

    @property
    def _store(self) -> list[str]:
        """The machines of the store's members."""
        return [host.name for host in self.world.store.hosts]

    def _member_down(self, number: int) -> None:
        """End a member of the store, as a rule its leader."""
        self.world.store.down.add(number % len(self._store))

    def _member_up(self, number: int) -> None:
        self.world.store.down.discard(number % len(self._store))

    def _member_cut(self, number: int) -> None:
        """Cut a member off from the others; machines still reach it."""
        names = self._store
        name = names.pop(number % len(names))
        for other in names:
            self.world.network.cut(name, other)
            self.world.network.cut(other, name)

    def _watch_late(self, seconds: int) -> None:
        self.world.store.watch_delay_s = float(seconds)

    def _answers_lost(self, tenths: int) -> None:
        self.world.store.loses_answers = tenths / 10

    def _slow(self, tenths: int) -> None:
        self.world.network.slow_s = tenths / 10

    def _tier_down(self) -> None:
        self.world.tier.is_up = False

    def _tier_hangs(self) -> None:
        self.world.tier.hangs = True

    def _tier_full(self) -> None:
        self.world.tier.is_full = True

    def _tier_up(self) -> None:
        self.world.tier.recover()

    def _tier_mute(self) -> None:
        self.world.tier.is_mute = True

    def _tier_lies(self) -> None:
        self.world.tier.lies = True

    def _tier_stale(self) -> None:
        """Have the tier list what it has now, as a cached folder does."""
        listed, _ = answer_to(ListVersions(url=self.world.tier.url), [])
        assert isinstance(listed, VersionsListed)
        self.world.tier.listed = listed

    def _tier_apart(self, number: int) -> None:
        """Have one machine alone reach the tier."""
        self.world.tier.only = self._machine(number)

    def _tier_rots(self, bit: int) -> None:
        self.world.judge.flips += self.world.tier.rot(bit)

    def _lease_late(self, seconds: int) -> None:
        self.world.store.late_s = float(seconds)

    def _compact(self) -> None:
        self.world.store.compact()

    def _store_full(self) -> None:
        self.world.store.is_full = True

    def _rewind(self, further: int) -> None:
        """Have the script go back after the next update, once in each start."""
        if self.world.jobs:
            job = max(self.world.jobs.values(), key=lambda one: one.start.epoch)
            newest = max((rank.version for rank in job.ranks.values()), default=0)
            job.wish = job.wish or (newest + 1, further)

    def _ends_early(self, rank: int, how: int) -> None:
        """Have the script of one rank come to an end while the others train on."""
        if self.world.jobs and not self.world.is_ending:
            job = max(self.world.jobs.values(), key=lambda one: one.start.epoch)
            self.world.judge.has_ended_early = True
            job.ends_early = rank % job.size, EARLY[how]

    def _edit(self) -> None:
        """Change the script."""
        self.world.code += "+"

    def _ask_rewind(self, steps: int) -> None:
        self.world.owner.ask(RewindRun(steps=1 + steps))

    def _add(self) -> None:
        """Bring a machine, as an operator does."""
        self.world.want(sum(not one.is_dead for one in self.world.machines) + 1)

    def _kill_rank(self, number: int) -> None:
        self._signal(number, 9)

    def _stop_rank(self, number: int) -> None:
        self._signal(number, 19)

    def _signal(self, number: int, signal_number: int) -> None:
        machine = self._machine(number)
        if machine.runs and machine.agent is not None:
            host = machine.agent.supervisor.host
            for rank in list(host.workers):
                self.world.judge.worker_kills += 1
                host.signal(rank, signal_number)

    def _flip(self, number: int, bit: int) -> None:
        machine = self._machine(number)
        slabs = [] if machine.agent is None or machine.is_dead else self.world.judge.slabs(machine)
        copies = [(slab, copy) for _, slab in slabs for copy in slab.copies()]
        if copies:
            slab, copy = copies[bit % len(copies)]
            self.world.judge.flips += 1
            slab.read(copy.shard, copy.version, copy.lineage).data[bit % 24] ^= 1

    def _holders(self, shard: int) -> list[VirtualMachine]:
        """Return the machines that keep a shard."""
        seats = max(self.world.jobs.values(), key=lambda job: job.start.epoch, default=None)
        if seats is None or not seats.ranks:
            return [self._machine(shard)]
        some = next(iter(seats.ranks.values())).seats
        if some.placement is None:
            return [self._machine(shard)]
        positions = some.holders.holders[shard % some.nodes]
        names = [seats.start.seats.members[position] for position in positions]
        return [self.world.named(name) for name in names if name is not None]

    def _kill_group(self, shard: int) -> None:
        for machine in self._holders(shard):
            if sum(not one.is_dead for one in self.world.machines) > 1:
                machine.kill(has_power=True)

    def _freeze_group(self, shard: int) -> None:
        for machine in self._holders(shard):
            machine.freeze()

    def _thaw_all(self) -> None:
        for machine in self.world.machines:
            machine.thaw()

    def _mend_all(self) -> None:
        self.world.network.mend()

    def _sever(self, number: int) -> None:
        """Break the connections of a machine's ranks to others; all live."""
        for rank in self._machine(number).ranks:
            if rank.process.runs:
                rank.sever()

    def _lack(self, number: int, what: int = 0) -> None:
        """Have a machine lack processes, descriptors or memory."""
        machine = self._machine(number)
        self.world.has_lacked = True
        if what == 0:
            machine.lacks = True
        elif what == 1:
            machine.net.opens = False
        else:
            machine.has_memory = False

    def _regain(self, number: int) -> None:
        self._machine(number).recover()

    def _ail(self, number: int, fault: int) -> None:
        """Have a machine tell of a fault; after most it is to be left."""
        machine = self._machine(number)
        machine.ailing = ("machine_memory", "gpu_failed", "clock")[fault]
        if RULES[machine.ailing].drains:
            self.world.drained.append(machine)

    def _compute_wrong(self, number: int) -> None:
        machine = self._machine(number)
        machine.is_wrong = True
        self.world.drained.append(machine)

    def _not_finite(self, lasts: int) -> None:
        """Have the loss be no number, for good or until this comes again."""
        self.world.is_finite = not (lasts or self.world.is_finite)

    def _slow_rank(self, number: int) -> None:
        """Have the workers of a machine take three times as long."""
        self._machine(number).slowness = 3.0

    def _none_come(self) -> None:
        """Have the provider say that no machine comes."""
        self.world.owner.say_none_come()

    def _person(self, verb: int, size: int, again: int) -> None:
        """Have a user ask something, with a number of any size, once or twice."""
        steps, nodes = (1, 2, 7, 1000, LARGEST)[size], (1, 2, 5, 1000, int(most_of("nodes")))[size]
        request = (
            StopRun(),
            SaveVersion(),
            GiveUpProgress(),
            RewindRun(steps=steps, skip=bool(again)),
            ResizeRun(nodes=nodes),
            DrainNode(node=("node-99", "x" * 200)[again]),
        )[verb]
        judge = self.world.judge
        judge.has_stopped |= isinstance(request, StopRun)
        judge.has_given_up |= isinstance(request, GiveUpProgress)
        if isinstance(request, ResizeRun):
            self.world.nodes_asked = max(self.world.nodes_asked, nodes)
        for _ in range(1 + again):
            self.world.owner.ask(request)

    def _drain(self, number: int) -> None:
        machine = self._machine(number)
        self.world.drained.append(machine)
        self.world.owner.ask(DrainNode(node=machine.name))

    def _term(self, number: int) -> None:
        """Tell an agent to end, as a batch system does."""
        machine = self._machine(number)
        if machine.runs:
            self.world.drained.append(machine)
            self.world.judge.note_dead(machine)
            self.world.loop.soon(machine.process, *machine.process.handlers[signal.SIGTERM])

    def _resize(self, nodes: int) -> None:
        # The largest ever: a run refuses fewer nodes than it has replicas, or goes on with more.
        self.world.nodes_asked = max(self.world.nodes_asked, 1 + nodes)
        self.world.owner.ask(ResizeRun(nodes=1 + nodes))

    def _give_up(self) -> None:
        self.world.judge.has_given_up = True
        self.world.owner.ask(GiveUpProgress())

    def _fuse(self, writes: int, how: int) -> None:
        """Strike the root's machine as it stores its state once more, or some times more."""
        self.world.fuse = (writes, ("kill", "freeze", "part", "reset")[how])

    def _strike_root(self, how: str) -> None:
        numbers = {"kill": (1,), "part": (1,), "reset": (ROOT + 1,)}
        self.befall(how, ROOT, *numbers.get(how, ()))

    def _clock(self, number: int, step: int) -> None:
        by_s, drift = ((-3600.0, 0.0), (1.0, 0.0), (86400.0, 0.0), (0.0, 0.2), (0.0, -0.2))[step]
        self._machine(number).set_clock(by_s, drift=drift)
