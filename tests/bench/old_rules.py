"""Rules that agents have outgrown: with any one of them a simulated world breaks again.

`python -m tests.bench.old_rules A:B [NAME...]` looks for the first seed that finds each.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from gemini_lab.errors import ConfigError
from gemini_lab.memory.slab import Slab
from gemini_lab.node import membership, root_shell
from gemini_lab.node.agent import Agent
from gemini_lab.node.listener import WorkerHistory
from gemini_lab.node.membership import Membership
from gemini_lab.node.memory_manager import MemoryManager
from gemini_lab.node.root_shell import CutOff, RootShell
from gemini_lab.node.supervisor import Supervisor
from gemini_lab.recovery import planning
from gemini_lab.recovery.messages import Fenced, ScriptFinished
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.recovery.planning import hopes
from gemini_lab.recovery.progress_at_risk import reason_to_wait
from gemini_lab.recovery.protocol import AgentJoined, Instruction
from gemini_lab.recovery.replicas import RestartPlacement
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root.agents import Agents
from gemini_lab.recovery.root.known_run import KnownRun
from gemini_lab.recovery.root.lifecycle import Lifecycle
from gemini_lab.recovery.root_state import RootState
from gemini_lab.shard.lineage import Lineage
from gemini_lab_bench.world.schedule import PHASES, ROOT, Happening
from gemini_lab_bench.world.seeds import parsed, run, run_seed
from gemini_lab_bench.world.virtual_rank import VirtualRank
from gemini_lab_bench.world.world import WorldShape


class IgnoringAgents(Agents):
    """Agents that are asked for no inventory if they join while the run waits."""

    def on_joined(self, joined: AgentJoined) -> Iterator[Instruction]:
        run = self.run
        if run.state.phase != "waiting" or joined.node in run.living:
            yield from super().on_joined(joined)
            return
        run.living[joined.node] = joined
        silent = tuple(node for node in run.state.nodes.silent if node != joined.node)
        run.state = replace(run.state, nodes=replace(run.state.nodes, silent=silent))
        yield from self.lifecycle.decide(joined.at_s)


class AsksNoReturningNode(RootAgent):
    """A node that joins while the run waits counts as a machine, not as what it has in memory."""

    agents_kind = IgnoringAgents


class HastyLifecycle(Lifecycle):
    """A lifecycle that never waits for progress."""

    def _reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        del plan, at_s
        return ""


class WaitsForNobody(RootAgent):
    """Whatever is at hand is gone on from."""

    lifecycle_kind = HastyLifecycle


class TrustingLifecycle(Lifecycle):
    """A lifecycle that believes in any whole version."""

    def _reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        if not super()._reason_to_wait(plan, at_s):
            return ""
        trusting = replace(hopes(self.run.state, self.run.inventory), is_witnessed=True)
        return reason_to_wait(plan, trusting) or ""


class TrustsAnyMemory(RootAgent):
    """A version that is whole in memory counts, also where nobody shows how far training came."""

    lifecycle_kind = TrustingLifecycle


class TakingLifecycle(Lifecycle):
    """A lifecycle in which what a user gave up counts again once it is back."""

    def _carry_out(
        self, at_s: float, before: RootState, placed: RestartPlacement, address: str
    ) -> Iterator[Instruction]:
        discarded = replace(placed.state.discarded, left=before.discarded.left)
        placed = replace(placed, state=replace(placed.state, discarded=discarded))
        yield from super()._carry_out(at_s, before, placed, address)


class TakesWhatWasGivenUp(RootAgent):
    """Nodes that return with what a user gave up displace those that train."""

    lifecycle_kind = TakingLifecycle


class ForgivingNothing(KnownRun):
    """A run in which an excluded machine is neither a spare nor planned with."""

    def spares(self) -> list[str]:
        return [node for node in super().spares() if node not in self.state.nodes.excluded]

    def plan_of(self, state: RootState) -> RecoveryPlan:
        everybody = self.living
        kept = {n: one for n, one in everybody.items() if n not in state.nodes.excluded}
        try:
            self.living = kept
            return super().plan_of(state)
        finally:
            self.living = everybody


class ExcludesForGood(RootAgent):
    """A machine that failed once is never tried again if another one fails."""

    def __init__(self, *, state: RootState, at_s: float) -> None:
        super().__init__(state=state, at_s=at_s)
        self.run.__class__ = ForgivingNothing


class SaysNothingAgain(RootAgent):
    """What a root was cut off from saying of a recovery's start or end is never said."""

    def take_over(self, at_s: float) -> list[Instruction]:
        self.run.state = replace(self.run.state, story=replace(self.run.state.story, said=()))
        return super().take_over(at_s)


@dataclass(frozen=True)
class OldRule:
    """A rule of before, and what finds it.

    Attributes:
        changes: What of the product is as it was: an owner, a name, and what stood there.
        seed: Of the world that breaks by it; `None` if none has been found.
        shape: That world's, if the seed alone does not say it.
        schedule: What befalls it then.
        among: So many seeds from that on are tried, if moments decide.
    """

    changes: tuple[tuple[Any, str, Any], ...]
    seed: int | None = None
    shape: WorldShape | None = None
    schedule: tuple[Happening, ...] = ()
    among: int = 1

    @contextmanager
    def rules(self) -> Iterator[None]:
        """Have agents follow it in a block."""
        with ExitStack() as stack:
            for owner, name, value in self.changes:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    def seed_that_breaks(self) -> int | None:
        """Return the first seed whose world does not hold by this rule."""
        assert self.seed is not None
        with self.rules():
            tried = range(self.seed, self.seed + self.among)
            return next((seed for seed in tried if self.wrong(seed)), None)

    def wrong(self, seed: int) -> tuple[str, ...]:
        """Return what does not hold in a world, by the rules that count now."""
        if self.shape is None:
            return run_seed(seed).wrong
        return run(seed, self.shape, self.schedule).wrong


def _root(
    kind: type[RootAgent],
    seed: int | None = None,
    shape: WorldShape | None = None,
    *schedule: Happening,
) -> OldRule:
    return OldRule(((root_shell, "RootAgent", kind),), seed, shape, schedule)


async def _stays(*_: Any) -> None:
    """As root agents did that could not reach some for whom a run waits."""


async def _yields_to_reached(shell: Any) -> None:
    """Leave the place to agents that are connected and have not had their turn."""
    items = await shell._membership.store.get([root_shell.YIELDED_KEY])
    before = json.loads(items.get(root_shell.YIELDED_KEY, '{"roots": []}'))["roots"]
    if (shell._others.keys() & shell._links.connected) - {*before}:
        await _YIELDS(shell)


_YIELDS = RootShell._yield_if_others_may_reach_more


def _without_rewinds(rank: VirtualRank) -> Lineage:
    return Lineage(run=rank.start.order.run, epoch=rank.start.epoch)


async def _keeps_first_form(memory: Any, local_rank: int, wanted: Any) -> Slab:
    if local_rank in memory._slabs:
        raise ConfigError("this node keeps other shards")
    return await _LAY_OUT(memory, local_rank, wanted)


_LAY_OUT = MemoryManager._lay_out


def _any_history(*given: Any) -> list[Any]:
    """Return copies as if all of a version were of one history."""
    copies = _GOOD(*given)
    newest = {copy.version: copy.lineage for copy in sorted(copies, key=lambda c: c.lineage)}
    return [replace(copy, lineage=newest[copy.version]) for copy in copies]


_GOOD = planning.good_copies


async def _fences_on(agent: Any, order: Any) -> None:
    agent._give_up_work()
    kept = await agent._kept.stand(agent.host, order)
    await agent.host.kill_all(epoch=agent.epoch, spare=kept)
    address, no_port = agent._hold_port(order.epoch)
    agent.root.send(Fenced(epoch=order.epoch, kept=kept, address=address, no_port=no_port))


async def _obeys_old_orders(agent: Any, order: Any) -> None:
    agent.epoch = max(agent.epoch, order.epoch)
    await agent._answered(order, agent._do)


async def _writes_deposed(membership: Any, _: Any, values: Any) -> bool:
    for key, value in values.items():
        await membership.store.put(key, value)
    return True


async def _rejoins_with_workers(agent: Any) -> None:
    await agent.membership.register()


def _notes_nothing(*_: Any) -> None:
    """As agents did that did not read the epoch in the store."""


def _never_waits_for_leases(agent: Any) -> None:
    agent._is_store_away, agent._reading = False, None
    agent._ring()


async def _is_sure(*_: Any) -> None:
    """Take for lost what is not reached, as a root agent did that was cut off itself."""


def _forgets(history: Any, event: Any, left: Any) -> None:
    before = history.left
    _GO_BACK(history, event, left)
    history.left = before


_GO_BACK = WorkerHistory._go_back


def _only_ends(history: Any, epoch: int) -> list[Any]:
    return [one for one in _DECISIVE(history, epoch) if isinstance(one, ScriptFinished)]


_DECISIVE = WorkerHistory.decisive

SMALL = WorldShape(nodes=3, standbys=1, has_tier=False)
PAIR = WorldShape(nodes=2, standbys=2, has_tier=False)
HALF: Happening = (0.0, "at", PHASES.index("halfway"))
OVERTAKEN = OldRule(
    ((Supervisor, "_fence", _fences_on),),
    seed=0,
    among=100,
    shape=WorldShape(nodes=3, standbys=2, keeps=True),
    schedule=(
        *((6.0, "stop_rank", 0), (0.1, "kill_rank", 1), (0.3, "kill", 2, 1)),
        (0.2, "kill", ROOT, 1),
    ),
)
OLD_RULES = {
    "nobody is waited for": _root(
        WaitsForNobody, 5, WorldShape(has_tier=False), (12.0, "freeze_group", 0)
    ),
    "versions do not count rewinds": OldRule(
        ((VirtualRank, "_own_lineage", _without_rewinds),),
        seed=0,
        among=100,
        shape=WorldShape(),
        schedule=((4.0, "rewind", 1), (3.0, "kill_rank", 0), (9.0, "tier_up")),
    ),
    "a slab keeps its first form": OldRule(
        ((MemoryManager, "_lay_out", _keeps_first_form),),
        seed=0,
        among=20,
        shape=WorldShape(nodes=4, standbys=1, is_refilled=False),
        schedule=((5.0, "freeze", 1), (6.0, "thaw_all"), (9.0, "kill", 2, 1), (20.0, "tier_up")),
    ),
    "what was given up comes back": _root(
        TakesWhatWasGivenUp,
        0,
        PAIR,
        *((8.0, "freeze_group", 0), (5.0, "give_up"), (3.0, "thaw_all"), (3.0, "kill_group", 0)),
    ),
    "what any node has counts": _root(
        TrustsAnyMemory,
        0,
        PAIR,
        *((3.0, "drain", 0), (7.0, "drain", 1), (14.0, "at", PHASES.index("running"))),
        *((9.0, "freeze_group", 0), (0.0, "kill", ROOT, 1), (15.0, "thaw_all")),
    ),
    "copies of two histories are combined": OldRule(
        ((planning, "good_copies", _any_history),),
        seed=1,
        shape=SMALL,
        schedule=(
            *(HALF, (0.0, "freeze", 1), (0.0, "kill_rank", 2)),
            *(HALF, (0.0, "thaw", 1), (0.0, "kill_rank", 2), (0.0, "kill", 3, 1)),
        ),
    ),
    "a deposed root agent writes": OldRule(
        ((Membership, "write_as_root", _writes_deposed),),
        seed=0,
        shape=WorldShape(),
        schedule=((5.0, "kill_rank", 0), (0.01, "freeze", ROOT), (6.0, "thaw_all")),
        among=100,
    ),
    "two readings of the store may both begin a root agent": OldRule(
        ((Agent, "_read_store", Agent._read_and_obey),),
        seed=0,
        among=600,
        shape=WorldShape(nodes=2, standbys=1, workers=2),
        schedule=((4.426, "compact"), (0.092, "kill", 4, 1)),
    ),
    "a root agent that misses agents stays": OldRule(
        ((RootShell, "_yield_if_others_may_reach_more", _stays),),
        seed=206,
        shape=WorldShape(nodes=4, standbys=1, has_tier=False),
        schedule=((26.0, "cut", ROOT, 0), (11.6, "cut", ROOT, 2), (47.4, "core", 0, 1, 2, 3)),
    ),
    "a root agent yields only to those it reaches": OldRule(
        ((RootShell, "_yield_if_others_may_reach_more", _yields_to_reached),),
        seed=0,
        among=300,
        shape=WorldShape(),
        schedule=((42.564, "kill_rank", 3),),
    ),
    "who yielded campaigns again like all others": OldRule(
        ((membership, "GIVES_WAY_S", 0.0),),
        3242,
        WorldShape(nodes=3, standbys=2, has_tier=False, is_refilled=False),
        ((8.149, "kill_rank", 4), (3.108, "lack", 7, 1)),
    ),
    "agents forget rewinds": OldRule(
        ((WorkerHistory, "_go_back", _forgets),),
        seed=0,
        among=40,
        shape=WorldShape(nodes=4, standbys=6, persist_every=1),
        schedule=(
            *((5.0, "tier_full"), (0.0, "freeze", ROOT), (0.0, "rewind", 1)),
            *((5.0, "kill_group", 0), (1.0, "tier_up"), (20.0, "tier_up")),
        ),
    ),
    # As when a greeting told whose scripts had ended, and the run was over by that.
    "a run ends before its last versions are known": OldRule(
        ((WorkerHistory, "decisive", _only_ends),),
        seed=0,
        shape=WorldShape(nodes=2, standbys=3, persist_every=1),
        schedule=((6.0, "kill", ROOT, 0), (0.0, "end")),
        among=20,
    ),
    "nothing is said again": replace(
        _root(
            SaysNothingAgain,
            0,
            WorldShape(),
            *((5.0, "fuse", 0, 0), (0.0, "kill_rank", 0), (8.0, "tier_up")),
        ),
        among=100,
    ),
    "an exclusion never ends": _root(
        ExcludesForGood,
        0,
        WorldShape(nodes=2, standbys=1, is_refilled=False, has_tier=False),
        *((4.0, "lack", 0, 0), (0.0, "kill_rank", 0), (9.0, "regain", 0), (4.0, "kill", 1, 1)),
    ),
    "returning nodes are not inventoried": _root(
        AsksNoReturningNode,
        0,
        replace(PAIR, nodes=4),
        *((5.0, "freeze_group", 0), (50.0, "thaw_all"), (20.0, "tier_up")),
    ),
    # Once a recovery begins, the rule below makes up for it; a run that is to start waits for ever.
    "a root agent that is cut off stays": OldRule(
        ((CutOff, "is_certain", lambda *_, **__: False),),
        seed=18,
        among=40,
        shape=WorldShape(),
        schedule=((0.1, "part", 0, 1), (100.0, "tier_up")),
    ),
    "a root agent that is cut off begins recoveries": OldRule(
        ((RootShell, "_until_others_are_reached", _is_sure),),
        seed=0,
        shape=WorldShape(),
        schedule=((5.0, "part", ROOT, 1), (60.0, "mend_all")),
    ),
    # A stopped worker holds up a fence, the next one waits behind it, and a newer root agent's
    # overtakes both. The one that waited gives up the inventory that the newer one waits for.
    "agents obey orders from before a fence": replace(
        OVERTAKEN,
        changes=((Supervisor, "obey", _obeys_old_orders),),
        seed=3,
        schedule=((5.0, "tier_hangs"), *OVERTAKEN.schedule, (60.0, "tier_up")),
    ),
    "a fence that was overtaken goes on": OVERTAKEN,
    # Each of the two ways by which a node learns of a newer epoch makes up for the other.
    "a node that was replaced goes on": OldRule(
        ((Agent, "_rejoin", _rejoins_with_workers), (Supervisor, "note_epoch", _notes_nothing)),
        seed=0,
        among=20,
        shape=WorldShape(nodes=2, standbys=2, persist_every=1),
        schedule=(
            *((6.0, "freeze_group", 0), (8.0, "give_up"), (10.0, "thaw_all"), (60.0, "tier_up")),
        ),
    ),
    "leases count as soon as a store is back": OldRule(
        ((Agent, "_note_store_away", _never_waits_for_leases),),
        seed=0,
        among=100,
        shape=WorldShape(),
        schedule=((25.0, "store_down"), (14.0, "store_up", 0), (10.0, "tier_up")),
    ),
}


def main(text: str = "0:300", *names: str) -> None:
    """Print the first seed by which each rule breaks a world, and how."""
    for name in names or OLD_RULES:
        began_s = time.monotonic()
        for seed in parsed(text):
            with OLD_RULES[name].rules():
                wrong = run_seed(seed).wrong
            if wrong:
                print(f"{name}: {seed}, {time.monotonic() - began_s:.0f} s, {wrong[0][:150]}")
                break
        else:
            print(f"{name}: not found in {time.monotonic() - began_s:.0f} s")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
