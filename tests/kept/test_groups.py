"""Process groups that outlive a rank that is killed, or falls silent: real processes, real Gloo."""

import gc
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from json_lines import json_lines

from gemini_lab.kept.groups import Mode, StandingGroup, StandingGroups, obstacle
from gemini_lab.kept.works import DoneWork, LoneWork
from gemini_lab.launch.etcd import held_port
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.sockets import can_be_found

HERE = Path(__file__).parent
SIZE = 3
pytestmark = [
    pytest.mark.skipif(not can_be_found(), reason="needs Linux's /proc"),
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "no obstacle"),
]


@pytest.fixture
def ports():
    """Two, which are given to nobody else before the ranks listen there."""
    with held_port("127.0.0.1") as one, held_port("127.0.0.1") as other:
        yield [one, other]


@pytest.fixture
def begin():
    """Starts a rank; whatever still runs at the end is killed."""
    started = []

    def start(rank, ports, role, end, *, file="standing_rank.py", kind="2"):
        words = [str(rank), str(SIZE), ",".join(map(str, ports)), role, end, kind]
        process = subprocess.Popen([sys.executable, HERE / file, *words], stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def told_by(process):
    output, _ = process.communicate(timeout=120)  # groups that do not fit wait for each other
    found = {}
    for told in json_lines(output.decode().splitlines()):
        found |= told
    return found


def settles_at(most):
    """The threads of this process once they are so few, or after a while."""
    deadline_s = time.monotonic() + 30
    while (there := len(list(Path("/proc/self/task").iterdir()))) > most:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    return there


def test_groups_that_are_made_anew_leave_no_threads_behind():
    """Every recovery makes them anew, and a process has room for so many."""
    store = dist.HashStore()
    groups = StandingGroups()
    group = StandingGroup(groups, store, 0, 1, timedelta(seconds=60))
    threads = len(list(Path("/proc/self/task").iterdir()))
    for number in range(5):
        group.connect(dist.PrefixStore(str(number), store))
    assert settles_at(threads) <= threads
    group.call("barrier").wait()


def test_a_checkpoint_group_that_is_left_leaves_no_threads_behind_and_refuses():
    gc.collect()  # groups of earlier tests, whose threads would end meanwhile
    before = len(list(Path("/proc/self/task").iterdir()))
    group = CheckpointGroup(dist.HashStore(), rank=0, world_size=1)
    group.barrier()
    for _ in range(2):
        group.leave()
    assert settles_at(before) <= before
    for refused in (group.barrier, partial(group.all_gather, [1])):
        with pytest.raises(RuntimeError, match="were closed"):
            refused()


@pytest.mark.parametrize(
    ("end", "lost"), [("killed", "2"), ("silent", "2"), ("killed", "1,2"), ("killed", "0,2")]
)
def test_the_ranks_that_are_left_go_on_with_new_ones(begin, ports, end, lost):
    """Of `1,2` a group of some ranks is lost as a whole: nobody can play its set-up."""
    ranks = [begin(rank, ports, "first", end, kind=lost) for rank in range(SIZE)]
    there = [*ranks]
    for rank in map(int, lost.split(",")):
        there[rank] = begin(rank, ports, "late", end, kind=lost)
    told = [told_by(one) for one in there]
    assert [one["set_up"] for one in told] == [6.0] * SIZE  # 1 + 2 + 3; the new one was told
    assert [one["some"] for one in told] == [[11.0], [11.0, 110.0], [110.0]]
    assert [one["some_after"] for one in told] == [one["some"] for one in told]
    kept = [one for one, first in zip(told, ranks, strict=True) if first in there]
    assert [one["broken"] for one in kept] == [True] * len(kept)
    assert [one["after"] for one in told] == [33.0] * SIZE
    assert [one["rows"] for one in told] == [[0.0, 1.0, 2.0]] * SIZE
    assert {one["backend"] for one in told} == {"gloo"}
    assert ranks[-1].poll() == (-9 if end == "killed" else None)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("DDP", "silent"),
        ("FSDP2", "killed"),
        ("TP", "killed"),
        pytest.param("DDP", "killed", marks=pytest.mark.long),
        pytest.param("FSDP2", "silent", marks=pytest.mark.long),
    ],
)
def test_what_plain_pytorch_made_of_its_groups_goes_on_with_a_new_rank(begin, ports, kind, end):
    file = "standing_torch.py"
    ranks = [begin(rank, ports, "first", end, file=file, kind=kind) for rank in range(SIZE)]
    late = begin(SIZE - 1, ports, "late", end, file=file, kind=kind)
    told = [told_by(ranks[0]), told_by(ranks[1]), told_by(late)]
    assert {one["flaw"] for one in told} == {""}
    assert [one["unset"] for one in told] == [False, False, kind == "TP"]
    assert [one["broken"] for one in told[:2]] == [True, True]
    assert all(one["after"] == told[0]["before"] for one in told)


def test_where_a_connection_breaks_and_nobody_dies_it_is_told_and_all_go_on(begin, ports):
    ranks = [begin(rank, ports, "first", "cut") for rank in range(SIZE)]
    told = [told_by(one) for one in ranks]
    assert [one["broken"] for one in told] == [True] * SIZE
    assert ["broken"] in [one["told"] for one in told]
    assert [one["after"] for one in told] == [33.0] * SIZE


class Work:
    """A handle that waits for its time, whatever it is told."""

    def __init__(self, error=None):
        self.is_due = threading.Event()
        self.error = error

    def wait(self):
        assert self.is_due.wait(60)
        if self.error is not None:
            raise self.error


def test_a_handle_that_takes_no_notice_of_a_time_out_is_waited_for_apart():
    work = Work()
    apart = LoneWork(work)
    with pytest.raises(RuntimeError, match=r"not over within 0\.01 s"):
        apart.wait(timedelta(seconds=0.01))
    assert not apart.is_completed()
    work.is_due.set()
    assert apart.wait(timedelta(seconds=60))
    assert apart.is_completed()


def test_what_went_wrong_there_is_told():
    work = Work(RuntimeError("the peer is gone"))
    work.is_due.set()
    with pytest.raises(RuntimeError, match="the peer is gone"):
        LoneWork(work).wait(timedelta(seconds=60))


class OverJustAfterALook:
    """A handle of a collective that comes to its end between a look's time-out and what follows."""

    def __init__(self, error=None):
        self.error = error
        self.looks = 0

    def is_completed(self):
        return self.looks > 0

    def wait(self, timeout):
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError(f"Operation timed out after {timeout}")
        if self.error is not None:
            raise self.error


def test_a_collective_that_is_done_just_after_a_look_has_not_failed():
    groups = StandingGroups(kept=[0])
    group = StandingGroup(groups, dist.HashStore(), 0, 2, timedelta(seconds=60))
    group.wait_for(OverJustAfterALook())
    with pytest.raises(RuntimeError, match="the peer is gone"):
        group.wait_for(OverJustAfterALook(RuntimeError("the peer is gone")))


def two_ranks(act):
    """What `act` gives on each of two ranks, threads here; it is told its group and its rank."""
    store = dist.HashStore()
    groups = StandingGroups()

    def be(rank):
        return act(StandingGroup(groups, store, rank, 2, timedelta(seconds=60)), rank)

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(be, range(2))]


def test_who_sent_what_may_come_from_anybody_is_told():
    def act(group, rank):
        room = torch.full((1,), float(rank))
        work = group.send([room], 0, 0) if rank else group.recv_anysource([room], 0)
        work.wait()
        return None if rank else (work._source_rank(), room.item())

    assert two_ranks(act)[0] == (1, 1.0)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_loop_in_which_ranks_send_messages_or_make_groups_is_known(is_over):
    """A rank that starts later would do both otherwise than those that are kept."""
    made = []

    def act(group, rank):
        groups = group._groups
        if is_over:
            groups.record.close()
        room = torch.zeros(1)
        (group.send([room], 0, 0) if rank else group.recv([room], 1, 0)).wait()
        made.append(groups)

    two_ranks(act)
    assert ("sends messages between ranks in its loop" in made[0].flaw) == is_over
    StandingGroup(made[0], dist.HashStore(), 0, 1, timedelta(seconds=60))
    assert "makes process groups" not in made[0].flaw
    made[0].mode = Mode.ALONE
    StandingGroup(made[0], dist.HashStore(), 0, 2, timedelta(seconds=60))
    assert ("makes process groups in its loop" in made[0].flaw) == is_over


def test_a_handle_gives_its_result_and_gloos_own_barrier_is_one():
    def act(group, _):
        work = group.allreduce([torch.ones(1)])
        work.wait()
        group.monitored_barrier(timedelta(seconds=60), wait_all_ranks=True)
        return [one.item() for one in work.result()]

    assert two_ranks(act) == [[2.0], [2.0]]


def test_of_what_never_came_nobody_is_said_to_have_sent_it():
    """The iteration is thrown away, but the script has to come to its end."""
    work = DoneWork([[torch.ones(1)]])
    assert (work._source_rank(), work.result()) == (0, [torch.ones(1)])


class NeverOver:
    """A handle of a collective that waits for the rest of a message, as Gloo does then."""

    def get_future(self):
        return torch.futures.Future()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_future_ends_too_where_a_connection_was_closed(is_lost):
    groups = StandingGroups(kept=[0], order_s=0.1)
    group = StandingGroup(groups, dist.HashStore(), 0, 2, timedelta(seconds=60))
    ours, theirs = socket.socketpair()
    name = str(Path(f"/proc/self/fd/{ours.fileno()}").readlink())
    group._connections._links = [(ours.fileno(), name)]
    tensor = torch.ones(1)
    future = group.promise(NeverOver(), [tensor])
    time.sleep(0.8)
    assert not future.done()
    if is_lost:
        groups.tell = groups.break_off
    ours.close()
    theirs.close()
    if is_lost:
        assert future.wait() == [tensor]
    else:
        with pytest.raises(RuntimeError, match="a connection to another rank was closed"):
            future.wait()
