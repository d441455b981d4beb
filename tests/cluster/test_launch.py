"""Starting agents: what `mpiexec` runs, and what it costs while an agent is slow."""

import contextlib
import resource
import threading
import time

import psutil
import pytest

from gemini_lab import Lab

PAUSE_S = 4.0


def an_agent_of_another_rank() -> psutil.Process | None:
    """An agent that is being started by an MPI rank that is not the gathering one."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_agent = "gemini_lab.node.agent" in process.cmdline()
            if is_agent and process.parent().environ()["OMPI_COMM_WORLD_RANK"] == "2":
                return process
    return None


def pause_an_agent(paused: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        agent = an_agent_of_another_rank()
        if agent is not None:
            agent.suspend()
            paused.append(agent)
            time.sleep(PAUSE_S)
            agent.resume()
            return
        time.sleep(0.005)


def launcher_s() -> float:
    """Seconds of processor time of all ended children: here, of `mpiexec` and its ranks."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.usefixtures("leaves_nothing")
def test_waiting_for_a_slow_agent_leaves_the_processors_to_it(tmp_path):
    paused: list[psutil.Process] = []
    thread = threading.Thread(target=pause_an_agent, args=[paused])
    before_s = launcher_s()
    thread.start()
    with Lab(4, 1, folder=tmp_path):
        used_s = launcher_s() - before_s
    thread.join()
    assert paused
    assert used_s < PAUSE_S / 2  # a rank that waits inside MPI takes a whole processor
