"""The table of waits in `docs/reference/waits.md` says what the code does."""

import importlib
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]
PAGE = (HERE / "docs" / "reference" / "waits.md").read_text(encoding="utf-8")
ROOMS = ("recovery", "node", "lab", "launch", "engine")
SHORT_S = 10.0
WAITS = {
    "all agents to end their workers": ["recovery.root.agent.FENCE_LIMIT_S"],
    "the inventories": ["recovery.root.agent.INVENTORY_LIMIT_S"],
    "an agent's machine to answer": ["node.agent_links.SILENT_S"],
    "an agent whose machine refuses": ["node.agent_links.LONGEST_PAUSE_S"],
    "an agent whose connection breaks": ["recovery.root.agents.MOST_BREAKS"],
    "what workers lacked": ["recovery.faults.LONGEST_PAUSE_S"],
    "all agents to say": ["recovery.kept_ranks.ANSWER_S"],
    "ranks that are to stop": ["recovery.stop.LATE_S"],
    "ranks that all stand still": ["recovery.hangs.STAND_S"],
    "ranks that have begun an iteration": ["recovery.hangs.STILL_S"],
    "ranks that stand in collectives": ["recovery.hangs.STAND_S", "recovery.hangs.PAST_S"],
    "a root agent of the user's own": [
        "lab.submission.ONE_S",
        "gemini_lab_course.own_root.process.READ_S",
    ],
    "the first `protect`": ["recovery.hangs.UNPROTECTED_S"],
    "ranks that others wait for": ["recovery.hangs.LATE_S", "recovery.hangs.PAST_S"],
    "processes that start ahead": ["recovery.kept_ranks.AHEAD_S"],
    "a save": ["recovery.saver.LONGEST_PAUSE_S"],
    "the tier to learn": ["recovery.root.ending.DISOWN_LIMIT_S"],
    "the store to take": ["node.root_shell.STORE_PATIENCE_S"],
    "any of several other agents": ["node.root_shell.CUT_OFF_S"],
    "registered agents that it does": ["node.root_shell.CUT_OFF_S"],
    "a worker that is to stand": ["kept.workers.STAND_S"],
    "the same, after that": ["kept.groups.ORDER_S"],
    "its warm parent: imports": ["node.host.IMPORTS_S", "node.host.ANSWER_S"],
    "a warm parent that ends": ["node.host.MOST_LOST_IMPORTS"],
    "the words of its other ranks": ["node.lab_link.HOLD_S"],
    "a worker to show its stacks": ["node.stacks.PULSE_S", "node.stacks.SIGNAL_S"],
    "its machine's faults": ["node.health.SILENT_S", "node.health.DRIVER_S"],
    "another machine's agent": ["node.link_speed.CONNECT_S", "node.link_speed.LIMIT_S"],
    "products of matrices": ["node.health.GPU_S"],
    "its warm parent to be started": [
        "node.host.PARENT_PAUSE_S",
        "node.host.LONGEST_PARENT_PAUSE_S",
    ],
    "what workers left running": ["node.warm.ORPHANS_S", "node.host.GONE_S"],
    "a bulk process": ["node.bulk.IDLE_S"],
    "the persistent tier's list": ["node.supervisor.STORAGE_S"],
    "a version in the tier": [
        "recovery.progress_at_risk.FIRST_PAUSE_S",
        "recovery.progress_at_risk.LONGEST_PAUSE_S",
    ],
    "its lab, once its key": ["node.agent.LAB_GRACE_S"],
    "its lab, where it reaches": ["node.agent.UNHEARD_S", "node.agent.LAB_SILENT_S"],
    "its lab's key": ["node.agent.KEY_GRACE_S"],
    "a detached lab's store": ["node.agent.ALONE_S"],
    "its agent to be stopped": ["node.freeze_guard.STOP_S", "node.freeze_guard.DEAF_S"],
    "its lab, with no agent here": [
        "launch.etcd_keeper.BEGIN_S",
        "launch.etcd_keeper.DEAF_S",
        "launch.etcd_keeper.FORSAKEN_S",
    ],
    "agents here": ["launch.etcd_keeper.AGENTS_END_S"],
    "others to leave": ["node.agent.STORE_LEFT_S"],
    "the other ranks, in `protect`": ["engine.session.MEET_S"],
    "data to be read in processes": ["engine.state.data_rehearsal.LIMIT_S"],
    "to be ended": ["engine.session.HOLD_S"],
    "a new start": ["engine.session.FENCE_S"],
    "what ranks that were kept": ["kept.process.RECORD_S"],
    "training's thread": ["kept.process.IDLE_S"],
    "threads of its script": ["node.worker.LIMIT_S"],
    "`gemini-lab check`, to kill": ["engine.witness.KILLED_S"],
    "any rank under plain torchrun": ["lab.check.BEGIN_S", "lab.check.STILL_S"],
    "a process that makes": ["engine.gradients.sent_differences.IDLE_S"],
    "MPI to start": ["launch.mpi.LAUNCH_S"],
    "its etcd's members": ["launch.etcd_members.END_S"],
    "any agent at all": ["lab.agent_cluster.LOST_S", "lab.agent_cluster.ALONE_S"],
    "etcd to start": ["launch.etcd.START_S", "launch.boot.READY_S"],
    "agents to leave": ["lab.agent_cluster.GOODBYE_S"],
    "its launcher": ["lab.owner.START_S"],
    "its owner's machine": ["lab.attached.SILENT_S"],
    "any owner": ["lab.attached.PATIENCE_S", "lab.attached.OWNER_S"],
    "the store": ["launch.etcd_keeper.HUNG_S"],
}
"""By how a row's second column begins, the constants that it tells."""
IN_WORDS = {
    "machines, or memory": "a setting",
    "a worker that stands still in a step": "settings",
    "a worker that does nothing": "a setting",
    "a worker inside": "no end",
    "its user to act": "no end",
    "a store in which a stranger": "no end",
    "the other ranks, where an epoch": "no end",
    "the other ranks' scripts": "no end",
    "the other ranks, to leave together": "a few seconds",
    "the newest version to be saved": "a setting",
    "the last version to be saved": "a number of tries, recovery.root.ending.LAST_TRIES_S",
    "the word that a rank is lost": "far below a second",
    "a worker that the kernel": "no end",
    "a store that does not return": "a number of tries, engine.restore.ASK_AGAIN_S",
    "the lock of a compilation": "a setting",
    "other ranks, its agent": "what the root sees",
    "all that torchrun has started": "twice lab.under_torchrun.END_S",
    "its lab | 10 min": "gemini-lab node's option, launch.join.WAIT_S by default",
}
NO_WAITS = {
    "lab.agent_cluster.LONGEST_RETRY_S": "a pause",
    "lab.otlp.EVERY_S": "how often",
    "lab.under_torchrun.END_S": "a call",
    "lab.announcement.LEASE_S": "how long a key stands",
    "launch.etcd_keeper.LONGEST_PAUSE_S": "a pause",
    "launch.join.SAY_AGAIN_S": "how often",
    "launch.join.WAIT_S": "an option",
    "node.agent_links.STEADY_S": "what counts as steady",
    "node.build_locks.QUIET_S": "what counts as quiet",
    "node.membership.ABSTAINS_S": "how long one stays away",
    "node.membership.TURNS_S": "how long one gives way",
    "node.membership.REREAD_S": "how often",
    "node.root_role.LONGEST_PAUSE_S": "a pause",
    "recovery.root.ending.LAST_TRIES_S": "a number of tries",
    "engine.restore.ASK_AGAIN_S": "a number of tries",
    "recovery.replicas.LOOK_S": "how often",
    "recovery.resizes.LONGEST_PAUSE_S": "a pause, a setting's bound",
    "recovery.root.agent.LONGEST_RETRY_S": "a pause while a run waits",
    # One question to a program beside, or one call: it is told at once where it fails.
    "node.health.LOOK_S": "how often",
    "recovery.ailments.OVER_S": "when a fault counts as over",
    "engine.heartbeat.SPINS_S": "what counts as still",
    "engine.session.OTHER_S": "an injected failure's",
    "lab.agent_cluster.CONNECT_S": "a call",
    "lab.agent_cluster.LEAVE_S": "a call",
    "lab.connections.ANSWER_S": "a call",
    "lab.control.LISTEN_S": "a call",
    "launch.boot.MESSAGE_S": "a call",
    "launch.etcd.END_S": "a call",
    "launch.etcd_members.PATIENCE_S": "a call",
    "launch.etcd_members.DEAD_S": "a call",
    "launch.mpi_order.ORDER_S": "a call",
    "launch.provider.ANSWER_S": "a call",
    "node.control_store.PATIENCE_S": "a call",
    "node.warm.ANSWER_S": "a call",
}
"""Times that are in no row, and why."""


def rows() -> list[list[str]]:
    table = PAGE.split("| who waits |")[1].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def begins(row: list[str]) -> str | None:
    known = [words for words in (*WAITS, *IN_WORDS) if " | ".join(row[1:]).startswith(words)]
    return max(known, key=len, default=None)


def value_of(name: str) -> float:
    module, _, constant = name.rpartition(".")
    value = getattr(
        importlib.import_module(
            module if module.startswith("gemini_lab_") else f"gemini_lab.{module}"
        ),
        constant,
    )
    return float(sum(value) if isinstance(value, tuple) else value)


def numbers_in(text: str) -> set[float]:
    """The times in words, in seconds, and plain numbers."""
    units = {"s": 1, "min": 60, "h": 3600, None: 1}
    found = re.findall(r"(\d+(?:\.\d+)?)(?: (s|min|h)\b)?", text)
    words = {"three": 3.0, "once": 1.0}
    told = {float(number) * units[unit or None] for number, unit in found}
    return told | {number for word, number in words.items() if word in text}


def test_each_row_is_known():
    assert [row for row in rows() if begins(row) is None] == []
    told = {begins(row) for row in rows()}
    assert {*WAITS, *IN_WORDS} - told == set()


@pytest.mark.parametrize("words", WAITS)
def test_a_row_has_the_times_of_the_code(words):
    (row,) = [row for row in rows() if begins(row) == words]
    told = numbers_in(" ".join(row[2:]))
    assert {value_of(name) for name in WAITS[words]} <= told


def test_no_long_wait_of_the_code_is_without_a_row():
    found = set()
    for room in ROOMS:
        for file in sorted((HERE / "gemini_lab" / room).rglob("*.py")):
            module = ".".join(file.relative_to(HERE / "gemini_lab").with_suffix("").parts)
            for name in re.findall(r"^([A-Z][A-Z_]*_S): Final", file.read_text(), re.MULTILINE):
                if value_of(f"{module}.{name}") >= SHORT_S:
                    found.add(f"{module}.{name}")
    told = {name for names in WAITS.values() for name in names}
    assert found - told - {*NO_WAITS} == set()
    assert {*NO_WAITS} <= found
