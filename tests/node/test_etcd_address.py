"""An etcd's address: what a person mistyped is said at once, what may pass is tried."""

import socket

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.node.etcd_address import EtcdAddress


def is_known(host: str) -> bool:
    """Whether the name service here does not answer that there is no such machine."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno != socket.EAI_NONAME
    return True


def test_a_name_that_no_machine_has_is_refused():
    with pytest.raises(ConfigError, match=r"no machine is called a\.\.b"):  # of any name service
        EtcdAddress.parse("a..b:2379", {})
    if is_known("nosuchhost.invalid"):
        pytest.skip("no name service answers here")
    with pytest.raises(ConfigError, match=r"nosuchhost\.invalid or nor\.this\.invalid"):
        EtcdAddress.parse("nosuchhost.invalid:2379,nor.this.invalid:2379", {})


def test_one_member_that_is_known_will_do():
    """The machines of others may have been replaced."""
    for text in ("nosuchhost.invalid:2379,127.0.0.1:2379", "localhost:1", "[::1]:2379"):
        assert len(EtcdAddress.parse(text, {}).endpoints) == len(text.split(","))
