"""Starting agents: what `mpiexec` runs, and what it costs while an agent is slow."""

import contextlib
import threading
import time
from collections.abc import Iterable

import psutil
import pytest

from gemini_lab import Lab
from gemini_lab.errors import ConfigError

SETTLING_S = 3.0  # the other ranks have started their agents by then
PAUSE_S = 4.0


def ranks() -> dict[str, psutil.Process]:
    """`mpiexec` and what it started here, by rank, without what has ended."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "gemini_lab.launch.boot" in process.cmdline():
                found[process.environ().get("OMPI_COMM_WORLD_RANK", "mpiexec")] = process
    return found


def an_agent_of_another_rank() -> psutil.Process | None:
    """An agent that is being started by an MPI rank that is not the gathering one."""
    with contextlib.suppress(psutil.Error, KeyError):
        for process in ranks()["2"].children():
            if "gemini_lab.node.agent" in process.cmdline():
                return process
    return None


def processor_s(processes: Iterable[psutil.Process]) -> float:
    """Seconds of processor time of processes; one that has ended since counts nothing."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def pause_an_agent(used_s: list[float]) -> None:
    """Stop an agent for a while; note what the ranks that wait for it used in that time."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        agent = an_agent_of_another_rank()
        if agent is not None:
            agent.suspend()
            time.sleep(SETTLING_S)
            waiting = list(ranks().values())
            before_s = processor_s(waiting)
            time.sleep(PAUSE_S)
            used_s.append(processor_s(waiting) - before_s)
            agent.resume()
            return
        time.sleep(0.005)


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_waiting_for_a_slow_agent_leaves_the_processors_to_it(tmp_path):
    used_s: list[float] = []
    thread = threading.Thread(target=pause_an_agent, args=[used_s])
    thread.start()
    with Lab(4, 1, folder=tmp_path):
        thread.join()
    assert len(used_s) == 1
    assert used_s[0] < PAUSE_S / 2  # a rank that waits inside MPI takes a whole processor


@pytest.mark.usefixtures("leaves_nothing")
def test_two_names_of_one_machine_are_no_two_hosts(tmp_path):
    with pytest.raises(ConfigError, match=r"localhost and 127\.0\.0\.1 are one machine.*for both"):
        Lab(2, 0, hosts=["localhost", "127.0.0.1"], folder=tmp_path)
