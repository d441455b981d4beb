"""The owner of a detached run, beside its root agent: keeps the log, and ends the lab with the run.

Run as `python -m gemini_lab.lab.owner` by the root agent's node, which tells it with a line on
standard input where the store is. It is the owner for as long as that input stays open and the
store has that root's record; the next root's node starts the next owner. An owner takes the log
over from the folder that all nodes see, and hears from each agent what the last one may have
missed.
"""

import os
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.errors import LaunchError
from gemini_lab.injector.scenario import Scenario
from gemini_lab.lab.agent_cluster import AgentCluster
from gemini_lab.lab.control import ControlServer
from gemini_lab.lab.detached import RunRecord
from gemini_lab.lab.lab_runs import Runs, said
from gemini_lab.lab.loop import LoopThread
from gemini_lab.lab.run import Run, RunOrigin
from gemini_lab.lab.run_locator import ACCESS_FILE, OWNER_KEY, RUN_KEY, access_in
from gemini_lab.lab.starting import own_operator
from gemini_lab.launch.etcd_members import Members
from gemini_lab.launch.operator import Operator
from gemini_lab.log.events import LabClosed, RunFailed, RunFinished
from gemini_lab.log.file import LOG_FILE, EventLog
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.membership import RootRecord, node_addresses
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import LAB_FILE, LAB_KEY, LabRecord, OwnerStart, why_blind
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.root_state import RootState

LOOK_S: Final = 0.5
TICK_S: Final = 0.1
TELL_END_S: Final = 5.0
"""A run that ended so long ago without an event of it lost its root at that moment."""
SEE_OFF_S: Final = 2.0
START_S: Final = 3600.0
"""For a launcher to hand its run over, after all machines have come."""


def main() -> int:
    """Own a lab until its run is over; return 0 then."""
    start = msgspec.json.decode(sys.stdin.readline(), type=OwnerStart)
    threading.Thread(target=_end_with_input, daemon=True).start()
    store = SealedStore(start.etcd, start.prefix, token=start.token, identity=start.identity)
    items = _wait_for_run(store, start)
    own(store, start, items)
    return 0


def _end_with_input() -> None:
    """End at once with the agent beside which this runs, or when that is root no more."""
    while sys.stdin.readline():
        pass
    os._exit(0)


def _wait_for_run(store: SealedStore, start: OwnerStart) -> dict[str, str]:
    """Return the store's content once it has a run; end the lab if none comes."""
    give_up_s = time.monotonic() + START_S
    while True:
        items = _look(store, start)
        if items is not None and RUN_KEY in items and "job" in items:
            return items
        if items is not None and time.monotonic() > give_up_s:
            store.delete(LAB_KEY)
            raise LaunchError(
                f"no run was in the store {START_S:.0f} s after this owner had come; start it again"
            )
        time.sleep(LOOK_S)


def _look(store: SealedStore, start: OwnerStart) -> dict[str, str] | None:
    """Return the store's content; `None` while it is away. Somebody else's lab is left at once."""
    try:
        items = store.items()
    except StoreUnavailableError:
        return None
    if items.get("root", start.root) != start.root or LAB_KEY not in items:
        os._exit(0)
    return items


def own(store: SealedStore, start: OwnerStart, items: dict[str, str]) -> None:
    """Keep the log of a run until its end, and then end its lab."""
    record = msgspec.json.decode(items[LAB_KEY], type=LabRecord)
    told = msgspec.json.decode(items[RUN_KEY], type=RunRecord)
    root = RootRecord.from_text(start.root)
    assert record.detached is not None
    if (reason := why_blind(record.detached)) is not None:
        raise LaunchError(reason)
    folder = Path(record.detached.folder)
    with ExitStack() as undo:
        loop = undo.enter_context(LoopThread())
        runs = Runs()
        config = told.config(store, start.token, folder.parent)
        members = _members(folder, start)
        operator = own_operator(config, store, record, token=start.token, members=members)
        cluster = AgentCluster(
            store=store,
            record=record,
            operator=operator,
            loop=loop,
            audience=runs,
            beside=root.name,
        )
        run = _taken_over(folder, told, items, cluster, root.name)
        operator.know({*run.names, *node_addresses(items)})
        runs.begin(run)
        host = root.address.rpartition(":")[0]
        control = undo.enter_context(
            ControlServer(loop, runs.act, lambda: run, host=host, token=start.token)
        )
        cluster.take_over()
        loop.call_every(TICK_S, runs.strike)
        control.open_to(folder)
        run.reopen = control.open_to
        _tell_where(store, start, control.address)
        _wait_for_end(run, store, start)
        run.take(said(LabClosed()))
        control.see_off(SEE_OFF_S)
        _end(run, cluster, operator)


def _members(folder: Path, start: OwnerStart) -> Members | None:
    """Return the members of the etcd that the run has on its machines, if it has one."""
    access = access_in(folder)
    if access is None or access.authority is None:
        return None
    return Members(address=start.etcd, authority=access.authority, prefix=start.prefix)


def _taken_over(
    folder: Path, told: RunRecord, items: dict[str, str], cluster: AgentCluster, root: str
) -> Run:
    order = msgspec.json.decode(items["job"], type=JobOrder)
    origin = RunOrigin(
        folder=folder,
        number=order.number,
        job=order.job,
        seats=order.seats,
        scenario=Scenario.from_json(told.scenario),
        root=root,
    )
    run = Run(origin, cluster, EventLog.taken_over(folder / LOG_FILE))
    run.recall()
    return run


def _end(run: Run, cluster: AgentCluster, operator: Operator) -> None:
    """Leave nothing: neither agents nor keys, and in the folder what a run that is over keeps."""
    cluster.leave()
    run.close()
    for name in (ACCESS_FILE, LAB_FILE):
        (run.folder / name).unlink(missing_ok=True)
    operator.clear()  # may take this very machine away
    cluster.leave_beside()


def _tell_where(store: SealedStore, start: OwnerStart, address: str) -> None:
    """Write where this owner listens, while its agent is root."""
    while True:
        with suppress(StoreUnavailableError):
            if not store.put_if({OWNER_KEY: address}, guard="root", held=start.root):
                os._exit(0)
            return
        time.sleep(LOOK_S)


def _wait_for_end(run: Run, store: SealedStore, start: OwnerStart) -> None:
    """Wait until the run is over; an end that a lost root could not tell is told here."""
    ended_s: float | None = None
    while not run.is_over_within(LOOK_S):
        items = _look(store, start)
        if items is None or "state" not in items:
            continue
        state = RootState.from_text(items["state"])
        if state.phase not in {"done", "failed"}:
            ended_s = None
        elif ended_s is None:
            ended_s = time.monotonic()
        elif time.monotonic() - ended_s > TELL_END_S:
            reason = "it was given up; its root agent was lost before it could say why"
            done = RunFinished(
                iteration=max(state.reached.newest, state.reached.iteration, run.iteration)
            )
            run.take(said(done if state.phase == "done" else RunFailed(reason=reason)))


if __name__ == "__main__":
    sys.exit(main())
