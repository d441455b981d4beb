"""A network that is likely the wrong one is said, and a right one is not."""

import socket

import psutil

from gemini_lab.log.events import Network
from gemini_lab.node.this_machine import network_of, remarks_on

GOOD = Network(address="10.0.0.1", interface="ib0", bytes_per_s=12.5e9)


def test_a_node_on_loopback_among_other_hosts_is_said():
    wrong = Network(address="127.0.1.1", interface="lo")
    (remark,) = remarks_on({"node-0": GOOD, "node-1": wrong})
    assert "node-1 listens on 127.0.1.1, which no other machine reaches" in remark


def test_nodes_of_one_machine_belong_on_loopback():
    local = Network(address="127.0.0.1", interface="lo")
    assert not list(remarks_on({"node-0": local, "node-1": local}))


def test_a_slower_interface_than_there_is_one_is_said():
    slow = Network(address="10.0.1.2", interface="eth0", bytes_per_s=125e6, faster=("ib0",))
    (remark,) = remarks_on({"node-0": GOOD, "node-1": slow})
    assert "eth0" in remark
    assert "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to ib0" in remark


def test_the_interface_of_an_address_is_found():
    loopback = {
        name
        for name, addresses in psutil.net_if_addrs().items()
        if ("127.0.0.1", socket.AF_INET) in [(one.address, one.family) for one in addresses]
    }
    assert network_of("127.0.0.1").interface in loopback
    assert network_of("192.0.2.99").interface is None
