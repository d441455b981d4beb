"""Namespaces: each node has its own address, hostname and shaped link, and all of it goes away."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab_bench.chaos.namespaces import NodeNetwork, shaping, unprivileged, why_not

RECEIVE = (
    "import socket; s = socket.create_server(('0.0.0.0', 5000)); print('up', flush=True);"
    "c, _ = s.accept(); n = 0\n"
    "while d := c.recv(1 << 16): n += len(d)\n"
    "print(n)"
)
SEND = (
    "import socket, sys; s = socket.create_connection((sys.argv[1], 5000));"
    "s.sendall(bytes(int(sys.argv[2]))); s.close()"
)
KNOCK = (
    "import socket, sys; s = socket.socket(); s.settimeout(2.0);"
    "print(s.connect_ex((sys.argv[1], 5000)))"
)
INSIDE = """
from gemini_lab_bench.chaos.namespaces import NodeNetwork
import subprocess
with NodeNetwork(1) as network:
    print(subprocess.check_output(network.command(0, ["hostname"]), text=True).strip())
"""

WAITING = """
from gemini_lab_bench.chaos.namespaces import NodeNetwork
from pathlib import Path
import os, sys
with NodeNetwork(2, subnet="10.78.3") as network:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    print(network.hostname(0).split("-")[0], children, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def allowed() -> None:
    if reason := why_not():
        pytest.skip(reason)


def links() -> str:
    return subprocess.check_output(["ip", "link", "show"], text=True)


def run_on(network: NodeNetwork, node: int, *command: str) -> str:
    return subprocess.check_output(network.command(node, command), text=True, timeout=60)


@pytest.mark.usefixtures("allowed")
def test_nodes_have_names_and_addresses_of_their_own_and_leave_nothing_behind() -> None:
    with NodeNetwork(2, subnet="10.78.1") as network:
        names = [run_on(network, node, "hostname").strip() for node in (0, 1)]
        assert names == [network.hostname(0), network.hostname(1)]
        assert "10.78.1.2/24" in run_on(network, 1, "ip", "-4", "addr", "show", network.interface)
        assert names[0].split("-")[0] in links()
    assert names[0].split("-")[0] not in links()


@pytest.mark.usefixtures("allowed")
def test_nothing_is_left_of_a_network_whose_program_was_killed() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    prefix, *holders = child.stdout.readline().split()
    assert len(holders) == 3, "two nodes and their switch"
    assert prefix in links()
    child.kill()
    child.communicate()
    until(lambda: prefix not in links())
    until(lambda: not any(Path(f"/proc/{holder}").exists() for holder in holders))


@pytest.mark.usefixtures("allowed")
def test_bytes_cross_a_shaped_link_no_faster_than_its_rate() -> None:
    """8 MB at 20 MB/s, less the bucket that may leave at once."""
    size_bytes, rate = 8_000_000, 20e6
    with NodeNetwork(2, subnet="10.78.2") as network:
        for node in range(2):
            network.slow(node, bytes_per_s=rate)
        receiver = subprocess.Popen(
            network.command(1, [sys.executable, "-c", RECEIVE]), stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "up\n"
        started_s = time.monotonic()
        run_on(network, 0, sys.executable, "-c", SEND, network.address(1), str(size_bytes))
        assert receiver.communicate(timeout=60)[0] == f"{size_bytes}\n"
        assert time.monotonic() - started_s >= 0.9 * size_bytes / rate


@pytest.mark.usefixtures("allowed")
def test_a_network_that_cannot_be_made_is_taken_down_again() -> None:
    with pytest.raises(LaunchError, match="failed"), NodeNetwork(1, subnet="300.1.1"):
        pass
    assert f"gl{os.getpid() % 0xFFFFF:05x}" not in links()


def test_a_user_without_privileges_gets_a_network_in_a_user_namespace() -> None:
    probe = subprocess.run(unprivileged(["true"]), capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"user namespaces are not allowed here: {probe.stderr.strip()}")
    said = subprocess.check_output(
        unprivileged([sys.executable, "-c", INSIDE]), text=True, timeout=60
    )
    assert said.startswith("gl")


def test_the_bucket_holds_what_a_fast_link_carries_in_a_tick() -> None:
    assert shaping(50e6) == "tbf rate 400000000bit burst 200000 latency 100ms"
    assert "burst 65536" in shaping(1e6)


def test_a_number_of_nodes_that_has_no_addresses_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 250"):
        NodeNetwork(251)


@pytest.mark.usefixtures("allowed")
def test_two_nodes_that_are_parted_lose_each_other_and_nobody_else() -> None:
    with NodeNetwork(3, subnet="10.78.4") as network:

        def hears(node: int, other: int) -> bool:
            """Nobody listens there, so that who is heard refuses."""
            said = run_on(network, node, sys.executable, "-c", KNOCK, network.address(other))
            return int(said) == errno.ECONNREFUSED

        assert hears(0, 1)
        network.part(0, 1)
        assert [hears(0, 1), hears(1, 0), hears(0, 2), hears(2, 1)] == [False, False, True, True]
