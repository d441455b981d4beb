"""What is left of a lab's agents on this machine is ended with the lab, and nothing else."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gemini_lab.launch.operator import MpiOperator
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.start_config import LabRecord

LEADS = "sleep 600 & echo $!; wait"


@pytest.fixture
def agent():
    """A process with a session of its own, and one that it has started."""
    with subprocess.Popen(
        ["sh", "-c", LEADS], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        below = psutil.Process(int(leader.stdout.readline()))
        yield leader, below
        leader.kill()
        with suppress(psutil.NoSuchProcess):
            below.kill()


def operator(*agents):
    return MpiOperator(
        etcd=EtcdAddress(endpoints=("127.0.0.1:1",)),
        prefix="test",
        lab=LabRecord(identity="", machines=1, lease_s=2.0, warm=True, threads=1),
        log_folder=Path("nowhere"),
        _local_agents=[*agents],
    )


def test_what_an_agent_that_was_killed_has_left_is_ended(agent):
    """Also where it stands still."""
    leader, below = agent
    known = psutil.Process(leader.pid)
    below.suspend()
    leader.kill()
    leader.wait()
    operator(known).clear()
    assert below.wait(60) in {-signal.SIGKILL, None}


def test_an_agent_that_runs_is_ended_with_all_that_it_started(agent):
    leader, below = agent
    operator(psutil.Process(leader.pid)).clear()
    assert leader.wait(60) == -signal.SIGKILL
    assert below.wait(60) in {-signal.SIGKILL, None}


def test_who_has_got_the_number_of_an_agent_that_is_gone_is_left_alone(agent):
    """A machine has 32,768 of them, and many are used in a minute where much is started."""
    leader, below = agent
    gone = SimpleNamespace(pid=leader.pid, is_running=lambda: False)
    operator(gone).clear()
    assert leader.poll() is None
    assert below.is_running()
