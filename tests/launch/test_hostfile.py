"""Claims about hostfiles: a line is a machine, whoever the file was written for."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.lab.lab_config import LabConfig, hosts_from
from gemini_lab.launch.mpi import Hosts


def read(folder, text: str) -> Hosts:
    path = folder / "hostfile"
    path.write_text(text)
    return Hosts.from_file(path)


def test_slots_are_room_for_workers_and_not_for_nodes(tmp_path):
    hosts = read(tmp_path, "worker-1 slots=8\nworker-2 slots=8  # the new one\n\n# worker-3\n")
    assert hosts.names == ("worker-1", "worker-2")
    LabConfig(nodes=2, standbys=0, workers_per_node=8, hosts=hosts)


def test_each_kind_of_hostfile_is_read_as_what_it_is(tmp_path):
    """Open MPI's and DeepSpeed's, MPICH's and Intel MPI's, and addresses with colons in them."""
    hosts = read(tmp_path, "a slots=2 max_slots=4\nb:8\nuser@c\nfe80::8\n")
    assert hosts.names == ("a", "b", "user@c", "fe80::8")
    assert hosts.slots == {"a": 2, "b": 8}


def test_more_nodes_than_lines_are_refused_with_the_way_out(tmp_path):
    hosts = read(tmp_path, "worker-1 slots=8\n")
    with pytest.raises(ConfigError, match=r"only 1 hosts.*name it twice"):
        LabConfig(nodes=2, standbys=0, hosts=hosts)


def test_a_host_named_twice_takes_two_nodes(tmp_path):
    hosts = read(tmp_path, "big slots=4\nbig slots=4\n")
    LabConfig(nodes=2, standbys=0, workers_per_node=4, hosts=hosts)


def test_more_workers_than_slots_are_refused_with_the_hosts_name(tmp_path):
    hosts = read(tmp_path, "worker-1 slots=8\nworker-2 slots=2\n")
    with pytest.raises(ConfigError, match=r"4 workers a node do not fit the slots of worker-2"):
        LabConfig(nodes=2, standbys=0, workers_per_node=4, hosts=hosts)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a slots=many", "cannot read 'a slots=many'"),
        ("a b c", "cannot read 'a b c'"),
        ("# none", "names no host"),
    ],
)
def test_a_hostfile_that_says_nothing_is_refused(tmp_path, text, told):
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, text)


def test_names_that_are_given_by_hand_are_read_as_a_hostfiles_lines():
    """`--hosts a:8,b:8`, and `Lab(hosts=[...])`."""
    hosts = hosts_from(["a:8", "b slots=4", "user@c"])
    assert hosts.names == ("a", "b", "user@c")
    assert hosts.slots == {"a": 8, "b": 4}
    with pytest.raises(ConfigError, match="cannot read 'a b c' in hosts="):
        hosts_from(["a b c"])
