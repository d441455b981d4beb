"""The embedded etcd's keeper: whatever happens to etcd, it comes back on its data."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from gemini_lab.errors import LaunchError
from gemini_lab.launch.certificate import Authority
from gemini_lab.launch.etcd import find_etcd, free_port, start_etcd
from gemini_lab.launch.etcd_keeper import HUNG_S, LOG, LOG_BYTES, Member, answers
from gemini_lab.node.control_store import (
    EtcdAddress,
    EtcdStore,
    StoreUnavailableError,
    patiently,
)
from gemini_lab.node.etcd_streams import EtcdStreams

PATIENCE_S = 60.0


@contextlib.contextmanager
def kept(folder: Path, hung_s: float) -> Iterator[tuple[str, psutil.Process]]:
    """An etcd with its keeper: its URL, and the keeper."""
    try:
        binary = find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    folder.mkdir()
    client, peer = (f"http://127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2))
    member = Member(
        binary=binary,
        folder=str(folder),
        client=client,
        peer=peer,
        name="one",
        cluster=f"one={peer}",
    )
    code = textwrap.dedent(f"""
        import msgspec
        from gemini_lab.launch.etcd_keeper import Member, keep
        member = msgspec.json.decode({msgspec.json.encode(member)!r}, type=Member)
        keep(member, prefix='', hung_s={hung_s})
    """)
    keeper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(lambda: answers(client, ""))
        yield client, psutil.Process(keeper.pid)
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(PATIENCE_S)


def until(holds) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.1)


@pytest.mark.parametrize("failure", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_an_etcd_that_fails_is_started_again_on_its_data(tmp_path, failure):
    with kept(tmp_path / "etcd", hung_s=3.0) as (client, keeper):
        store = EtcdStore(EtcdAddress(endpoints=(client.removeprefix("http://"),)), "test")
        patiently(lambda: store.put("key", "kept"))
        (server,) = keeper.children()
        server.send_signal(failure)
        server.wait(PATIENCE_S)  # whatever it is that ends it
        until(lambda: answers(client, ""))
        assert patiently(store.items) == {"key": "kept"}
        store.close()


def test_the_embedded_etcd_wants_its_password():
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    with start_etcd() as started:
        address = started.address
        for user, password in ((None, None), ("root", "guessed")):
            stranger = EtcdStore(replace(address, user=user, password=password), "test")
            with pytest.raises(StoreUnavailableError):
                stranger.put("key", "forged")
            with pytest.raises(StoreUnavailableError):
                stranger.items()
        store = EtcdStore(address, "test")
        assert patiently(store.items) == {}
        store.close()


def own_address() -> str:
    """An address of this machine that is not loopback's."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return str(entry.address)
    pytest.skip("this machine has no network")


def test_an_embedded_etcd_that_others_reach_is_known_by_its_certificate():
    """Neither in clear nor with another certificate: the password is said to nobody else."""
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    host = own_address()
    with start_etcd(host) as started:
        address = started.address
        store = EtcdStore(address, "test")
        patiently(lambda: store.put("key", "encrypted"))
        assert patiently(store.items) == {"key": "encrypted"}
        store.close()
        assert asyncio.run(lease_is_kept(address))
        foreign = Authority.make().pem
        for authority in (None, foreign):
            stranger = EtcdStore(replace(address, ca_pem=authority), "test")
            with pytest.raises(StoreUnavailableError):
                stranger.items()
            assert not asyncio.run(lease_is_kept(replace(address, ca_pem=authority)))


async def lease_is_kept(address: EtcdAddress) -> bool:
    """Whether what an agent keeps open finds this etcd; it has no such lease."""
    streams = EtcdStreams(address, "test")
    try:
        return not await streams.keep_alive(1)
    except StoreUnavailableError:
        return False
    finally:
        await streams.close()


def test_what_etcd_says_is_kept_up_to_a_limit_and_the_newest_of_it(tmp_path):
    """It says something of each slow request, and a run may last for months."""
    with kept(tmp_path / "etcd", HUNG_S):
        log = tmp_path / "etcd" / LOG
        with log.open("ab") as file:
            file.write(b"a line that etcd might have said\n" * (LOG_BYTES // 30))
        until(lambda: log.stat().st_size < LOG_BYTES // 2)
        older = log.with_name(f"{LOG}.1").stat().st_size
    assert LOG_BYTES < older < 2 * LOG_BYTES
