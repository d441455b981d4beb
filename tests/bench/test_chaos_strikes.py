"""What a campaign breaks breaks; the log tells it whom to strike, and when."""

import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from made import made
from test_chaos_oracles import LOG
from waiting import until

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import main
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import PersistFinished, PersistStarted
from gemini_lab.log.file import EventLog
from gemini_lab.storage.manifest import MANIFEST
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab_bench.chaos.aftermath import Aftermath
from gemini_lab_bench.chaos.campaign import CampaignPlan, campaign
from gemini_lab_bench.chaos.clock import NodeClocks
from gemini_lab_bench.chaos.faults import Fault, Schedule
from gemini_lab_bench.chaos.kinds import KINDS
from gemini_lab_bench.chaos.means import (
    check,
    possible,
    why_no_clock,
    why_no_disk,
    why_no_network,
)
from gemini_lab_bench.chaos.result import CampaignResult, summed
from gemini_lab_bench.chaos.scene import NetworkHosts, scene_of
from gemini_lab_bench.chaos.strikes import Strikes, exhaust, why_not_wrong
from gemini_lab_bench.chaos.suffer import Suffered
from gemini_lab_bench.chaos.tier import BreakableTier
from gemini_lab_bench.chaos.told import LogSoFar
from gemini_lab_bench.chaos.turn import FaultInRun, Mends
from gemini_lab_bench.chaos.victims import MARK, marked


@pytest.fixture
def tier(tmp_path):
    with BreakableTier(tmp_path) as opened:
        version = opened.url / "version-000000000008"
        version.mkdir()
        (version / "shard-0000-abc.safetensors").write_bytes(bytes(100))
        (version / MANIFEST).write_bytes(b"{" + b" " * 8 + b"}")
        yield opened


def test_a_tier_that_is_away_is_an_error_and_never_an_empty_folder(tier):
    reader = PersistentTier(str(tier.url))
    assert reader.versions() == []
    tier.go_away()
    with pytest.raises(GeminiError, match="could not list"):
        reader.versions()
    with pytest.raises(GeminiError, match="could not write"):
        reader.check()
    tier.come_back()
    reader.check()


needs_disk = pytest.mark.skipif(why_no_disk() is not None, reason=str(why_no_disk()))


@needs_disk
def test_a_full_tier_takes_nothing_until_it_is_emptied(tier):
    reader = PersistentTier(str(tier.url))
    tier.fill()
    with pytest.raises(GeminiError, match="full"):
        reader.check()
    tier.empty()
    reader.check()


@needs_disk
@pytest.mark.parametrize("now_and_then", [False, True])
def test_who_writes_to_a_frozen_tier_stands_still_until_it_thaws(tier, now_and_then):
    file = tier.url / "new"
    write = ["sh", "-c", 'read _; echo . > "$0"', file]
    with subprocess.Popen(write, stdin=subprocess.PIPE) as writer:
        tier.freeze(now_and_then=now_and_then)
        writer.stdin.close()
        with pytest.raises(ConfigError, match="frozen"):
            tier.flip(0)  # nothing of the campaign's own may stand still there
        if not now_and_then:
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(0.5)
            tier.thaw()
        assert writer.wait(60) == 0  # it crawls, but it comes through
    tier.thaw()
    assert tier.flip(0)


@needs_disk
def test_a_full_tier_that_is_frozen_is_emptied_where_it_thaws(tier):
    reader = PersistentTier(str(tier.url))
    tier.fill()
    tier.freeze(now_and_then=False)
    tier.empty()  # who removed a file there now would wait for itself
    with pytest.raises(ConfigError, match="frozen"):
        tier.fill()
    tier.thaw()
    reader.check()


@needs_disk
def test_a_tier_thaws_when_the_program_that_froze_it_is_killed(tmp_path):
    freeze = f"""
from gemini_lab_bench.chaos.tier import BreakableTier
from pathlib import Path
import sys
import time
with BreakableTier(Path({str(tmp_path)!r})) as tier:
    tier.freeze(now_and_then=False)
    print("frozen", flush=True)
    sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", freeze], **pipes) as campaign:
        assert campaign.stdout.readline() == b"frozen\n"
        with subprocess.Popen(["touch", tmp_path / "disk" / "new"]) as writer:
            campaign.kill()
            assert writer.wait(60) == 0
    subprocess.run(["umount", tmp_path / "disk"], check=True)


def test_one_bit_of_the_newest_shard_turns(tier):
    (tier.url / "version-000000000016").mkdir()  # not whole yet: no manifest
    assert tier.flip(8 * 30 + 3) == "byte 30 of version-000000000008/shard-0000-abc.safetensors"
    (shard,) = tier.url.glob("*/shard-*")
    assert shard.read_bytes() == bytes(30) + b"\x08" + bytes(69)


def test_a_torn_manifest_is_cut_in_half(tier):
    assert tier.tear() == f"version-000000000008/{MANIFEST}"
    assert (tier.url / tier.tear()).read_bytes() == b"{ "  # and torn once more


def test_an_empty_tier_cannot_be_torn(tmp_path):
    with BreakableTier(tmp_path) as empty, pytest.raises(ConfigError, match="no version"):
        empty.tear()


def test_processes_are_known_by_their_mark_and_no_others():
    asleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    pids = []
    try:
        for mark in ("ours", "ours-too"):
            process = subprocess.Popen(
                asleep, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
            )
            pids.append(process)
            process.stdout.readline()
        assert [process.pid for process in marked("ours")] == [pids[0].pid]
    finally:
        for process in pids:
            process.kill()
            process.communicate()


CLOCK = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


@pytest.mark.skipif(why_no_clock() is not None, reason=str(why_no_clock()))
def test_a_nodes_clock_is_set_and_no_other_nodes_and_not_the_one_that_nobody_can_set(tmp_path):
    clocks = NodeClocks(tmp_path)
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", CLOCK],
            env={**os.environ, **clocks.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for _ in range(2)
    ]

    def times(node):
        node.stdin.write(b"\n")
        node.stdin.flush()
        return [float(text) for text in node.stdout.readline().split()]

    try:
        before = [times(node) for node in nodes]
        clocks.step(nodes[0].pid, -3600)
        clocks.step(nodes[0].pid, 600)
        after = [times(node) for node in nodes]
    finally:
        for node in nodes:
            node.communicate()
    steps = [now[0] - was[0] - (now[1] - was[1]) for was, now in zip(before, after, strict=True)]
    assert steps == pytest.approx([-3000, 0], abs=1)


POST = """
import socket, sys
post = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
post.bind(("0.0.0.0", 5000))
for line in sys.stdin:
    if line.startswith("send"):
        post.sendto(b"out", (sys.argv[1], int(sys.argv[2])))
        print("sent", flush=True)
        continue
    post.settimeout(float(line))
    try:
        print(post.recv(9).decode(), flush=True)
    except TimeoutError:
        print("nothing", flush=True)
"""
NEVER_S = 0.3  # what is cut off does not come later either


@pytest.mark.skipif(why_no_network() is not None, reason=str(why_no_network()))
def test_a_partition_loses_what_a_node_sends_or_gets_until_it_is_mended(tmp_path):
    """Real datagrams between a host and the machine of the campaign."""
    with NetworkHosts(tmp_path, 1) as hosts, socket.socket(type=socket.SOCK_DGRAM) as ours:
        ours.bind((hosts.campaign, 0))
        port = str(ours.getsockname()[1])
        node = subprocess.Popen(
            hosts.command(0, [sys.executable, "-u", "-c", POST, hosts.campaign, port]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def ask(line):
            node.stdin.write(f"{line}\n")
            node.stdin.flush()
            return node.stdout.readline().strip()

        def arrives(*, in_time_s):
            """Whether what the node sends, and what is sent to it."""
            ask("send")
            ours.settimeout(in_time_s)
            try:
                sent = ours.recv(9) == b"out"
            except TimeoutError:
                sent = False
            ours.sendto(b"in", (hosts.names[0], 5000))
            return sent, ask(in_time_s) == "in"

        try:
            assert arrives(in_time_s=20) == (True, True)
            for kind, expected in (
                ("partition", (False, False)),
                ("partition_out", (False, True)),
                ("partition_in", (True, False)),
            ):
                host = hosts.strike(Fault(kind=kind, lasts_s=1.0), node.pid)
                assert arrives(in_time_s=NEVER_S) == expected, kind
                hosts.mend(host)
                assert arrives(in_time_s=20) == (True, True), kind
            hosts.strike(Fault(kind="link_slow", lasts_s=1.0), node.pid)
            assert arrives(in_time_s=20) == (True, True)
            with pytest.raises(ConfigError, match="on no host"):
                hosts.strike(Fault(kind="partition", lasts_s=1.0), os.getpid())
        finally:
            node.communicate()


WRITER = """
import sys
import time
log = open(sys.argv[1], "ab", buffering=0)
for line in sys.stdin.buffer:
    try:
        log.write(line)
        print("taken", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_a_full_log_is_one_that_its_owner_cannot_write_for_a_while(tmp_path):
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"begun\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER, log], **pipes) as owner:

        def add() -> bytes:
            owner.stdin.write(b"line\n")
            owner.stdin.flush()
            return owner.stdout.readline()

        assert add() == b"taken\n"
        strikes = Strikes(mark="", folder=tmp_path, owner=owner, told=None, scene=None)
        hit, mend = strikes.strike(Fault(kind="log_full", lasts_s=1.0))
        assert (hit, add()) == ("the log", b"File too large\n")
        mend()
        assert add() == b"taken\n"
        owner.stdin.close()
    mend()  # of an owner that is gone: nothing to do


def test_nodes_that_the_owner_of_a_full_log_starts_have_room_of_their_own(tmp_path):
    (tmp_path / "events.jsonl").write_bytes(b"begun\n")
    waits, ours = [sys.executable, "-c", "input()"], {**os.environ, MARK: "mine"}
    with (
        subprocess.Popen(waits, stdin=subprocess.PIPE) as owner,
        subprocess.Popen(waits, stdin=subprocess.PIPE, env=ours) as node,
    ):
        most = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
        strikes = Strikes(mark="mine", folder=tmp_path, owner=owner, told=None, scene=None)
        _, mend = strikes.strike(Fault(kind="log_full", lasts_s=1.0))
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (6, most[1]))  # as one that it starts has
        until(lambda: resource.prlimit(node.pid, resource.RLIMIT_FSIZE) == most)
        assert resource.prlimit(owner.pid, resource.RLIMIT_FSIZE)[0] == 6
        mend()
        for process in (owner, node):
            process.communicate(b"go on")


EXHAUSTED = """
import mmap, os, subprocess, sys
for line in sys.stdin:
    try:
        if line == "files\\n":
            os.close(os.open(os.devnull, os.O_RDONLY))
        elif line == "memory\\n":
            mmap.mmap(-1, 1 << 26).close()
        elif line == "shm\\n":
            memory = os.memfd_create("slab")
            try:
                os.ftruncate(memory, 1 << 22)
            finally:
                os.close(memory)
        print("taken", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("files", b"Too many open files"),
        ("memory", b"Cannot allocate memory"),
        ("shm", b"File too large"),
    ],
)
def test_a_process_gets_no_more_of_something_until_it_does_again(how, said):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-u", "-c", EXHAUSTED], **pipes) as agent:

        def ask() -> bytes:
            agent.stdin.write(f"{how}\n".encode())
            agent.stdin.flush()
            return agent.stdout.readline().strip()

        assert ask() == b"taken"
        mend = exhaust(psutil.Process(agent.pid), how, list)
        assert ask() == said
        mend()
        assert ask() == b"taken"
        agent.stdin.close()
    mend()  # of one that is gone: nothing to do
    with pytest.raises(ConfigError, match="is gone"):
        exhaust(gone(), how, list)


def gone():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = psutil.Process(process.pid)
        process.communicate(b"\n")
    return found


def test_what_an_exhausted_process_has_started_has_as_much_as_is_usual_afterwards():
    waits = [sys.executable, "-c", "input()"]
    with (
        subprocess.Popen(waits, stdin=subprocess.PIPE) as agent,
        subprocess.Popen(waits, stdin=subprocess.PIPE) as worker,
        subprocess.Popen(waits, stdin=subprocess.PIPE) as other,
    ):
        usual = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        mend = exhaust(
            psutil.Process(agent.pid), "files", lambda: map(psutil.Process, [worker.pid, other.pid])
        )
        held = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        assert held[0] < usual[0]
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, held)  # as one that it starts has
        resource.prlimit(other.pid, resource.RLIMIT_NOFILE, (77, usual[1]))  # its own limit
        mend()
        limits = [
            resource.prlimit(one.pid, resource.RLIMIT_NOFILE)[0] for one in (agent, worker, other)
        ]
        assert limits == [usual[0], usual[0], 77]
        for process in (agent, worker, other):
            process.communicate(b"go on")


def test_a_script_that_is_edited_and_edited_back_is_the_same_one_again(tmp_path):
    form = Schedule(seed=0, number=0, nodes=1, standbys=0, iterations=9, faults=())
    with scene_of(form, tmp_path) as scene, subprocess.Popen(["true"]) as owner:
        part = scene.script.with_name("own_part.py")
        before = part.read_text()
        strikes = Strikes(mark="", folder=tmp_path, owner=owner, told=None, scene=scene)
        _, mend = strikes.strike(Fault(kind="script_edit", lasts_s=1.0))
        assert part.read_text() != before
        mend()
        assert part.read_text() == before
        ((since_s, until_s),) = strikes.edits
        assert since_s <= until_s
        strikes.strike(Fault(kind="script_edit", lasts_s=1.0))
        strikes.rest()
        assert strikes.edits[1][1] < math.inf


def test_a_store_is_broken_where_there_is_one_and_mended_where_it_is_gone(tmp_path):
    fault = Fault(kind="tier_unread", lasts_s=1.0)
    form = Schedule(seed=0, number=0, nodes=1, standbys=0, iterations=9, faults=(fault,))
    with subprocess.Popen(["true"]) as owner:
        told = {"mark": "", "folder": tmp_path, "owner": owner, "told": None}
        with scene_of(form, tmp_path) as scene:
            assert scene.tier_url.startswith("webhdfs://")
            hit, mend = Strikes(**told, scene=scene).strike(fault)
            assert hit == "the store"
        mend()
        with scene_of(form.having([]), tmp_path / "other") as scene:
            assert scene.tier_url == str(scene.tier.url)
            strikes = Strikes(**told, scene=scene)
            with pytest.raises(ConfigError, match="no store"):
                strikes.strike(fault)


def test_a_second_node_computes_wrong_only_when_the_first_was_named_or_is_gone():
    """Two of a few cannot be told from the others, and a run ends for that."""
    there = ["node-0", "node-1", "node-2"]
    assert why_not_wrong((), named=(), there=there, nodes=3) == ""
    waits = why_not_wrong(("node-1",), named=(), there=there, nodes=3)
    assert "node-1 computes wrong already" in waits
    assert why_not_wrong(("node-1",), named={"node-1"}, there=there, nodes=3) == ""
    assert why_not_wrong(("node-4",), named=(), there=there, nodes=3) == ""
    assert "of 2 nodes nobody can tell" in why_not_wrong((), named=(), there=there, nodes=2)


def test_what_is_mended_later_is_mended_once():
    done = []
    mends = Mends()
    mends.add(lambda: done.append("soon"), after_s=0.0)
    mends.add(lambda: done.append("late"), after_s=60.0)
    assert mends.do()
    assert not mends.do()
    assert mends
    assert mends.do(all_of_them=True)
    assert not mends
    assert done == ["soon", "late"]


def test_what_is_to_break_again_does_not_where_all_is_mended():
    done = []
    mends = Mends()
    mends.add(lambda: done.append("mended"), after_s=60.0)
    mends.add(lambda: done.append("broken"), after_s=60.0, breaks=True)
    assert mends.do(all_of_them=True)
    assert done == ["mended"]
    assert not mends
    mends.add(lambda: done.append("broken"), after_s=0.0, breaks=True)
    assert mends.do()
    assert done == ["mended", "broken"]


def test_the_log_tells_who_is_root_who_sits_where_and_how_training_goes(tmp_path):
    folder = tmp_path / "run"
    told = LogSoFar(folder, iterations=4)
    told.poll()  # before there is a folder
    log = EventLog(folder / "events.jsonl")
    for entry in LOG[:6]:
        log.append(entry)
    told.poll()
    assert (told.root, told.progress) == ("node-0", 1)
    assert told.keepers_of(1) == ["node-0"]  # whose agent said so; there is no placement yet
    assert list(told.since_s) == ["plan", "start"]  # of the first start
    for entry in LOG[6:]:
        log.append(entry)
    told.poll()
    assert (told.root, told.is_over) == ("node-2", True)
    assert told.progress == 4
    assert list(told.since_s) == ["plan", "start", "fence", "end"]
    log.close()


def test_the_log_tells_when_a_save_begins_and_when_its_version_is_there(tmp_path):
    told, log = LogSoFar(tmp_path, iterations=4), EventLog(tmp_path / "events.jsonl")
    log.append(Entry(at_s=1.0, node="node-0", event=PersistStarted(version=8, url="")))
    told.poll()
    assert list(told.since_s) == ["save"]
    there = made(PersistFinished, version=8, duration_s=0.1)
    log.append(Entry(at_s=1.1, node="node-0", event=there))
    told.poll()
    assert list(told.since_s) == ["save", "commit"]
    log.close()


# -- the campaign ----------------------------------------------------------------------------------


def suffered(tmp_path, *struck, hang=""):
    faults = tuple(one.fault for one in struck)
    schedule = Schedule(seed=1, number=0, nodes=2, standbys=1, iterations=4, faults=faults)
    aftermath = Aftermath(entries=LOG, undisturbed={}, iterations=4, hang=hang)
    return Suffered(schedule=schedule, struck=struck, aftermath=aftermath, folder=tmp_path)


@pytest.fixture
def result(tmp_path):
    """Two runs: a kill and a stop that did not happen, then a kill in a run that did not hold."""
    kill, stop = Fault(kind="node_loss"), Fault(kind="etcd_stop", lasts_s=1.0)
    found = CampaignResult(plan="a kill or two", duration_s=60.0)
    found.add(
        suffered(
            tmp_path / "first",
            FaultInRun(fault=kill, at_s=2.5, until_s=9.0, hit="node-1"),
            FaultInRun(fault=stop, at_s=9.0, hit="no such process", happened=False),
        ),
        [],
    )
    second = suffered(tmp_path / "second", FaultInRun(fault=kill, at_s=1.0, hit="node-1"))
    found.add(second, ["no luck"])
    return found


def test_the_table_has_a_line_a_kind_with_median_worst_and_verdict(result):
    head, kills, stops, *_ = str(result).splitlines()
    assert head.split()[:6] == ["kind", "struck", "held", "stood", "still:", "median"]
    assert kills.split()[:7] == ["node_loss", "2", "1", "5.5", "s", "5.5", "s"]
    assert kills.endswith("1 in runs that did not hold")
    assert stops.split() == ["etcd_stop", "0", "0", "it", "never", "happened"]
    assert "2 faults struck" in str(result)
    assert "1 minutes, 2.0 faults a minute" in str(result)


def test_what_is_written_is_what_is_read(result, tmp_path):
    path = tmp_path / "folder" / "campaign.json"
    result.write(path)
    assert CampaignResult.read(path) == result
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_one_table_sums_several_campaigns(result, tmp_path, capsys):
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        result.write(file)
    assert main(["chaos", "--table", *map(str, files)]) == 0
    said = capsys.readouterr().out
    assert said == summed([result, result]) + "\n"
    assert said.splitlines()[1].split()[:3] == ["node_loss", "4", "2"]
    assert "4 faults struck" in said
    assert "2 did not hold, 0 were cut short" in said
    assert "2 minutes, 2.0 faults a minute" in said
    assert said.count("no luck") == 2


def test_what_a_machine_cannot_break_is_left_out_and_refused_where_it_is_named():
    can, reasons = possible(tuple(KINDS), without={"network": "no network", "clock": "no compiler"})
    assert set(KINDS) - set(can) == {k for k in KINDS if KINDS[k].needs in {"network", "clock"}}
    assert "clock_step: no compiler" in reasons
    with pytest.raises(ConfigError, match="partition: no network"):
        check(["node_loss", "partition"], without={"network": "no network"})
    check(["node_loss"], without={"network": "no network"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kinds", "sneeze"], "sneeze.*worker_crash"),
        (["--faults", "0"], r"--faults must be above zero \(got 0\)"),
        (["--replay", "nowhere.json"], "cannot read a schedule from nowhere.json"),
        (["--table", "nowhere.json"], "cannot read a campaign from nowhere.json"),
        (["--minutes", "0"], r"--minutes must be above zero \(got 0.0\)"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, said, capsys):
    assert main(["chaos", *arguments]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_a_campaign_draws_as_many_faults_as_it_was_asked_for(tmp_path):
    plan = CampaignPlan(
        faults=30,
        seed=5,
        kinds=tuple(kind for kind in KINDS if not KINDS[kind].ends_run),
        nodes=3,
        standbys=1,
        a_run=12,
        limit_s=60.0,
        load=0,
        tries=0,
        folder=tmp_path,
    )
    assert [len(schedule.faults) for schedule in plan.schedules()] == [12, 12, 6]
    assert len({schedule.iterations for schedule in plan.schedules()}) == 1  # one undisturbed run
    assert str(campaign(plan, schedules=[])).startswith("kind")


def test_a_campaign_that_is_interrupted_does_not_pass_for_one_that_held(
    tmp_path, monkeypatch, capsys
):
    """Ctrl-C, or SIGTERM, between runs: none of them was cut short."""

    def interrupted(_plan):
        os.kill(os.getpid(), signal.SIGTERM)
        yield

    monkeypatch.setattr(CampaignPlan, "schedules", interrupted)
    assert main(["chaos", "--folder", str(tmp_path)]) == Exit.INTERRUPTED
    assert "interrupted: of what was left nothing is known" in capsys.readouterr().err
