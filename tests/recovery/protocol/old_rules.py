"""Rules that the protocol has outgrown: with any one of them the explorer finds a fault again."""

from collections.abc import Iterator
from dataclasses import replace

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
from gemini_lab_course.model.judged import Rules


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
    """A run in which an excluded machine is no spare."""

    def spares(self) -> list[str]:
        return [node for node in super().spares() if node not in self.state.nodes.excluded]


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


OLD_RULES = {
    "versions say no history": (Rules(has_lineage=False), 126),
    "returning nodes are not inventoried": (Rules(root=AsksNoReturningNode), 108),
    "nobody is waited for": (Rules(root=WaitsForNobody), 12),
    "what any node has counts": (Rules(root=TrustsAnyMemory), 312),
    "versions do not count rewinds": (Rules(counts_rewinds=False), 60),
    "agents forget rewinds": (Rules(keeps_rewinds=False), 590),
    "a slab keeps its first form": (Rules(lays_out_anew=False), 25),
    "what was given up comes back": (Rules(root=TakesWhatWasGivenUp), 300),
    "an exclusion never ends": (Rules(root=ExcludesForGood), 273),
    "nothing is said again": (Rules(root=SaysNothingAgain), 10),
}
"""The rules, each with a seed from which on a schedule soon breaks the protocol by it."""
