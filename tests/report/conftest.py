"""A log of a short run, written by hand: what the claims about reports are made of."""

import pytest
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import KINDS
from gemini_lab.log.file import EventLog

BEGIN_S = 1000.0


def event(kind, at_s, node="lab", **data):
    return Entry(at_s=BEGIN_S + at_s, node=node, event=made(KINDS[kind], **data))


def iteration(number, rank, at_s, *, epoch, loss=None, node=None, **more):
    """`rank` runs on the node of its number unless said otherwise; an iteration takes 1.5 s."""
    values = {} if loss is None else {"loss": loss}
    return event(
        "iteration",
        at_s,
        node or f"node-{rank}",
        rank=rank,
        iteration=number,
        duration_s=1.5,
        values=values,
        epoch=epoch,
        **more,
    )


def complete(version, rank, at_s, *, epoch, node=None):
    return event(
        "version_complete",
        at_s,
        node or f"node-{rank}",
        rank=rank,
        version=version,
        sent_bytes=1000,
        local_s=0.1,
        duration_s=0.5,
        epoch=epoch,
        next_version=version + 1,
    )


def step(name, start_s, end_s, *, recovery, epoch):
    return event(
        "recovery_step",
        end_s,
        "node-0",
        recovery=recovery,
        epoch=epoch,
        step=name,
        start_s=BEGIN_S + start_s,
        end_s=BEGIN_S + end_s,
    )


def receipt(shard, at_s, *, tier, holder, node, epoch, version=2):
    return event(
        "shard_restored",
        at_s,
        node,
        rank=shard,
        shard=shard,
        version=version,
        tier=tier,
        holder=holder,
        size_bytes=5000,
        verified=True,
        retrieve_s=0.2 if tier == "peer" else 0.0,
        verify_s=0.05,
        load_s=0.05,
        epoch=epoch,
    )


def loss_of(number, rank):
    return 5.0 / number + rank / 7  # no short decimal, so rounding would show


def started(nodes=2):
    return event(
        "run_started",
        0.0,
        name="gpt",
        script="train.py",
        nodes=nodes,
        workers_per_node=1,
        settings={"replicas": 2},
    )


def steady_run(iterations=4):
    """Two nodes, no failure."""
    log = [started(), event("root_elected", 0.1, "node-0", name="node-0", term=1)]
    for number in range(1, iterations + 1):
        for rank in range(2):
            log.append(iteration(number, rank, 1.5 * number, epoch=1, loss=loss_of(number, rank)))
            log.append(complete(number, rank, 1.5 * number + 0.5, epoch=1))
    log.append(event("run_finished", 1.5 * iterations + 1, iteration=iterations))
    return log


def failing_run():
    """Node 1 is lost at 5.0 s: version 2 (reached at 3.0 s) comes back, iteration 3 is redone."""
    log = [entry for entry in steady_run(2) if entry.kind != "run_finished"]
    log += [
        # Another loss than in the steady run, to see that the redone iteration takes its place.
        *(iteration(3, rank, 4.5, epoch=1, loss=99.0) for rank in range(2)),
        event("injected", 5.0, "node-1", failure="node_loss"),
        event("node_lost", 5.1, "node-0", name="node-1", cause="connection"),
        event(
            "recovery_started",
            5.1,
            "node-0",
            epoch=2,
            cause="node_lost",
            lost=("node-1",),
            failed_at_s=BEGIN_S + 5.1,
            iteration=3,
        ),
        step("fence", 5.1, 5.2, recovery=1, epoch=2),
        step("inventory", 5.2, 5.3, recovery=1, epoch=2),
        event(
            "recovery_planned",
            5.3,
            "node-0",
            epoch=2,
            version=2,
            members=("node-0", "node-2"),
            reason="version 2 is the newest of which every shard is whole somewhere",
        ),
        step("start", 5.3, 5.8, recovery=1, epoch=2),
        receipt(0, 6.0, tier="local", holder="node-0", node="node-0", epoch=2),
        receipt(1, 6.1, tier="peer", holder="node-0", node="node-2", epoch=2),
        iteration(2, 1, 6.1, epoch=2, loss=loss_of(2, 1), node="node-2", restored=True),
        step("retrieve", 5.8, 6.1, recovery=1, epoch=2),
    ]
    for number, at_s in ((3, 7.6), (4, 9.1)):
        for rank, node in enumerate(("node-0", "node-2")):
            loss = loss_of(number, rank)
            log.append(iteration(number, rank, at_s, epoch=2, loss=loss, node=node))
            log.append(complete(number, rank, at_s + 0.5, epoch=2, node=node))
    log += [
        step("warm_up", 6.1, 7.6, recovery=1, epoch=2),
        event(
            "recovery_finished",
            7.6,
            "node-0",
            epoch=2,
            version=2,
            iteration=3,
            duration_s=2.5,
            lost_iterations=1,
        ),
        event(
            "persist_finished",
            8.0,
            "node-0",
            version=2,
            url="file:///x",
            size_bytes=9000,
            duration_s=0.4,
        ),
        event("persist_failed", 9.0, "node-0", version=4, url="file:///x", reason="disk full"),
        event("note", 9.0, "node-0", text="a remark"),
        event("run_finished", 10.0, iteration=4),
    ]
    return log


@pytest.fixture
def steady():
    return steady_run()


@pytest.fixture
def failing():
    return failing_run()


@pytest.fixture
def make_event():
    return event


@pytest.fixture
def save(tmp_path):
    def write(name, log):
        folder = tmp_path / "gemini-runs" / name
        file = EventLog(folder / "events.jsonl")
        for entry in log:
            file.append(entry)
        file.close()
        return folder

    return write
