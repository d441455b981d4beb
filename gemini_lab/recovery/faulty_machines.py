"""What becomes of a run one of whose machines computes wrong."""

from collections.abc import Iterable
from dataclasses import replace

from gemini_lab.log.events import WrongSums
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.protocol import NodeJoined
from gemini_lab.recovery.root_state import RootState
from gemini_lab.shard.lineage import Lineage


def left_by(said: WrongSums, *, run: int) -> VersionId:
    """What is left behind when training goes back to the newest version that is verified."""
    lineage = Lineage(run=run, epoch=said.epoch, rewinds=said.rewinds)
    return VersionId(version=said.version, lineage=lineage)


def unheard(state: RootState, agents: Iterable[NodeJoined]) -> WrongSums | None:
    """What these agents know of wrong sums that no root agent has acted upon.

    Workers say it once, and stand still: a root agent that was lost just then, or a connection,
    took it along.
    """
    for agent in agents:
        said = agent.wrong_sums
        if said is None or said.epoch != state.reached.trained:
            continue
        if not said.nodes or {*said.nodes} - {*state.nodes.wrong}:
            return said
    return None


def without(state: RootState, nodes: tuple[str, ...]) -> RootState:
    """The state in which these nodes are never used again."""
    return replace(
        state,
        nodes=replace(
            state.nodes,
            wrong=tuple(dict.fromkeys((*state.nodes.wrong, *nodes))),
            excluded=tuple(dict.fromkeys((*state.nodes.excluded, *nodes))),
        ),
        faults=replace(state.faults, attempts=0, offences=(), barren=()),
    )


def reason_to_end(said: WrongSums, state: RootState) -> str:
    """Why the run ends because of it; empty if it does not."""
    if state.read_settings().on_wrong_sums == "stop":
        return f'{said} (the run ends here as "on_wrong_sums": "stop" says)'
    if said.goes_back:
        return ""
    return f"{said}; train on three machines or more, of which one is told by the two others"
