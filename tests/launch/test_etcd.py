"""The embedded etcd's keeper: whatever happens to etcd, it comes back on its data."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
from waiting import until

from gemini_lab.errors import LaunchError
from gemini_lab.launch.etcd import (
    Authority,
    find_etcd,
    free_port,
    held_port,
    own_address,
    start_etcd,
)
from gemini_lab.launch.etcd_keeper import (
    AUTHORITY,
    CERTIFICATE,
    HUNG_S,
    KEY,
    LOG,
    LOG_BYTES,
    PEERS_AT,
    MemberProcess,
)
from gemini_lab.launch.mpi import find_program
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdClient, EtcdStore
from gemini_lab.node.orphan_etcd import CLIENTS_AT, FOLDER, end_left_stores, lack_of_room
from gemini_lab.node.processes import STORE_KEEPER

PATIENCE_S = 60.0


def member_in(folder: Path, binary: str) -> tuple[MemberProcess, EtcdAddress]:
    """A member that is not started yet, and how it is reached."""
    authority, ports = Authority.make(), [free_port("127.0.0.1") for _ in range(2)]
    client, peer = (f"https://127.0.0.1:{port}" for port in ports)
    member = MemberProcess(
        binary=binary,
        folder=str(folder),
        client=client,
        peer=peer,
        name="one",
        cluster=f"one={peer}",
    )
    member.write(authority.certify("127.0.0.1"))
    return member, own_address([f"127.0.0.1:{ports[0]}"], authority)


@contextlib.contextmanager
def kept(
    folder: Path, hung_s: float, program: Path | None = None
) -> Iterator[tuple[MemberProcess, EtcdAddress, psutil.Process]]:
    """An etcd with its keeper; by a link to etcd, where that is named."""
    try:
        binary = find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    if program is not None:
        program.symlink_to(binary)
        binary = str(program)
    folder.mkdir()
    member, address = member_in(folder, binary)
    code = textwrap.dedent(f"""
        import msgspec
        from gemini_lab.launch.etcd_keeper import keep
        from gemini_lab.launch.etcd_keeper import MemberProcess
        member = msgspec.json.decode({msgspec.json.encode(member)!r}, type=MemberProcess)
        keep(member, prefix='', hung_s={hung_s})
    """)
    keeper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(member.answers)
        yield member, address, psutil.Process(keeper.pid)
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(PATIENCE_S)


@pytest.mark.parametrize("failure", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_an_etcd_that_fails_is_started_again_on_its_data(tmp_path, failure):
    with kept(tmp_path / "etcd", hung_s=3.0) as (member, address, keeper):
        store = EtcdStore(address, "test")
        patiently(lambda: store.put("key", "kept"))
        (server,) = keeper.children()
        server.send_signal(failure)
        server.wait(PATIENCE_S)  # whatever it is that ends it
        until(member.answers)
        assert patiently(store.items) == {"key": "kept"}
        store.close()


def test_an_etcd_that_cannot_be_started_for_a_while_comes_back_when_it_can(tmp_path):
    """Its program is away, as while packages are installed; so it is on a read-only disk."""
    program = tmp_path / "etcd-link"
    with kept(tmp_path / "etcd", HUNG_S, program) as (member, _, keeper):
        binary = program.readlink()
        (server,) = keeper.children()
        program.unlink()
        server.kill()
        server.wait(PATIENCE_S)
        time.sleep(3.0)  # for more than one attempt
        assert keeper.status() != psutil.STATUS_ZOMBIE
        program.symlink_to(binary)
        until(member.answers)


@pytest.mark.parametrize("host", ["loopback", "network"])
def test_an_embedded_etcd_and_its_clients_are_known_by_their_certificates(host):
    """Neither in clear, nor without a certificate, nor with one that another lab signed."""
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    with start_etcd("127.0.0.1" if host == "loopback" else own_ip()) as started:
        address = started.address
        store = EtcdStore(address, "test")
        patiently(lambda: store.put("key", "encrypted"))
        assert patiently(store.items) == {"key": "encrypted"}
        store.close()
        assert asyncio.run(lease_is_kept(address))
        foreign = own_address(address.endpoints, Authority.make()).own
        trusting = replace(foreign, authority_pem=address.own.authority_pem)
        for own in (None, foreign, trusting):
            stranger = EtcdStore(replace(address, own=own), "test")
            with pytest.raises(StoreUnavailableError):
                stranger.put("key", "forged")
            with pytest.raises(StoreUnavailableError):
                stranger.items()
            assert not asyncio.run(lease_is_kept(replace(address, own=own)))


STRANGER = """
import encodings.idna, encodings.latin_1, email.parser, http.client, json, os, ssl, sys
import urllib.error, urllib.request
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
anybody = ssl._create_unverified_context()
def ask(url, **more):
    request = urllib.request.Request(url, **more)
    return urllib.request.urlopen(request, timeout=5, context=anybody)
def number(value):
    low = value & 127
    return bytes([low]) if value < 128 else bytes([low | 128]) + number(value >> 7)
for url in sys.argv[1:]:
    for scheme in ("http", "https"):
        url = scheme + "://" + url.partition("://")[2]
        try:
            with ask(url + "/members") as members:
                cluster, known = members.headers["X-Etcd-Cluster-ID"], json.load(members)[0]["id"]
            # A heartbeat of a leader that nobody elected, of a term far above the member's.
            said = {1: 8, 2: known, 3: 4711, 4: 1000, 8: 0}
            body = b"".join(number(key << 3) + number(value) for key, value in said.items())
            heads = {"X-Server-From": "1267", "X-Server-Version": "3.5.1",
                     "X-Min-Cluster-Version": "3.0.0", "X-Etcd-Cluster-ID": cluster}
            with ask(url + "/raft", data=body, method="POST", headers=heads) as answer:
                print("obeyed", url, answer.status)
        except (OSError, ValueError, http.client.HTTPException) as error:
            print("refused", url, error, file=sys.stderr)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to try it")
def test_another_user_of_the_machine_gives_the_embedded_etcd_no_entry():
    """What is said to the port for peers is applied past all that clients have to prove."""
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    with start_etcd() as started:
        below = psutil.Process().children(recursive=True)
        words = next(one for one in below if one.name() == "etcd").cmdline()
        urls = [words[words.index(at) + 1] for at in (PEERS_AT, CLIENTS_AT)]
        store = EtcdStore(started.address, "test")
        patiently(lambda: store.put("key", "ours"))
        command = [sys.executable, "-I", "-c", STRANGER, *urls]
        tried = subprocess.run(command, capture_output=True, text=True, check=True)
        assert tried.stdout == ""
        assert tried.stderr.count("refused") == 4
        folder = Path(words[words.index("--data-dir") + 1]).parent
        proof = zip(("--cacert", "--cert", "--key"), (AUTHORITY, CERTIFICATE, KEY), strict=True)
        asked = [str(part) for option, name in proof for part in (option, folder / name)]
        etcdctl = [find_program("etcdctl", ""), f"--endpoints={urls[1]}", *asked]
        status = [*etcdctl, "endpoint", "status", "--write-out=json"]
        told = subprocess.run(status, capture_output=True, text=True, check=True)
        assert json.loads(told.stdout)[0]["Status"]["raftTerm"] < 1000
        assert patiently(store.items) == {"key": "ours"}
        store.close()


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are, here and in what is started; without an etcd it is skipped."""
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def full(place) -> Iterator[Path]:
    """The same, on a disk of 8 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


STARTED = """
import sys, time
from gemini_lab.launch.etcd import start_etcd
with start_etcd() as started:
    print("up", flush=True)
    time.sleep(600)
"""


def test_an_etcd_that_is_killed_with_all_else_leaves_its_folder_to_the_next(place):
    with orphaned() as (server, _):
        (left,) = place.iterdir()
        server.kill()
        server.wait(PATIENCE_S)
        end_left_stores()
        assert not left.exists()


def test_an_etcd_whose_keeper_and_launcher_were_killed_ends_once_nobody_uses_it(place):
    """Whoever starts or ends a lab on its machine sees to that."""
    with orphaned() as (server, used):
        (left,) = place.iterdir()
        with used:
            end_left_stores()
            assert server.is_running()
            assert (left / "data").exists()
        until(lambda: end_left_stores() or not server.is_running())
        assert not left.exists()


@contextlib.contextmanager
def orphaned() -> Iterator[tuple[psutil.Process, socket.socket]]:
    """An etcd whose keeper was killed, and who started that; and what uses it from before on.

    Any lab that begins or ends on the machine would end it otherwise.
    """
    command = [sys.executable, "-c", STARTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "up\n"
        below = psutil.Process(launcher.pid).children(recursive=True)
        server = next(process for process in below if process.name() == "etcd")
        url = server.cmdline()[server.cmdline().index(CLIENTS_AT) + 1]
        host, _, port = url.removeprefix("https://").partition(":")
        folder = Path(server.cmdline()[server.cmdline().index("--data-dir") + 1]).parent
        trust = ssl.create_default_context(cafile=folder / AUTHORITY)
        trust.load_cert_chain(folder / CERTIFICATE, folder / KEY)
        used = trust.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
        used.sendall(b"GET /health HTTP/1.1\r\nHost: etcd\r\n\r\n")
        assert used.recv(1), "it has taken the connection once it answers"
        # Its keeper first, which ends it when the launcher goes.
        for process in [*(one for one in below if one != server), launcher]:
            process.kill()
    try:
        yield server, used
    finally:
        used.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            server.kill()


def the_keeper() -> psutil.Process:
    """Return this process's keeper of a store; what other tests' processes left is not asked."""
    below = psutil.Process().children()
    alive = [one for one in below if one.status() != psutil.STATUS_ZOMBIE]
    (keeper,) = (one for one in alive if STORE_KEEPER in one.cmdline())
    return keeper


def test_an_etcd_whose_keeper_was_killed_ends_with_its_lab():
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    with start_etcd():
        keeper = the_keeper()
        (server,) = keeper.children()
        folder = Path(server.cmdline()[server.cmdline().index("--data-dir") + 1]).parent
        keeper.kill()
        assert server.is_running()
    until(lambda: not server.is_running())
    assert not folder.exists()


def test_a_keeper_that_fails_is_told_with_its_exit_status_and_last_words(tmp_path, monkeypatch):
    (tmp_path / "psutil.py").write_text("raise RuntimeError('this psutil is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LaunchError, match="did not start") as failed, start_etcd():
        pass
    assert "keeps it ended with exit status 1" in str(failed.value)
    assert "RuntimeError: this psutil is broken" in str(failed.value)


def test_an_etcd_is_reached_past_all_proxies(monkeypatch):
    """The command's own connections, those of agents, and etcd's between its members."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://192.0.2.1:1")
    with start_etcd() as etcd:
        store = EtcdStore(etcd.address, "test")
        lease = store.grant(2)
        assert asyncio.run(EtcdClient(etcd.address, "test").keep_alive(lease))
        keeper = the_keeper()
        (server,) = keeper.children()
        heard = {name.lower() for name in server.environ()}
    assert not heard & {"http_proxy", "https_proxy", "grpc_proxy", "etcd_listen_client_urls"}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody listens beside who holds")
def test_a_port_that_an_etcd_is_to_have_is_given_to_nobody_before_it_listens_there():
    """A busy machine starts it late, and gives out ports all the time."""
    with held_port("127.0.0.1") as port:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port


def test_an_etcd_whose_disk_is_too_small_says_so_at_once(full):
    """Its keeper would try again and again, and the folder with its log goes in the end."""
    with pytest.raises(LaunchError, match=r"no space left on device; free 128.0 MiB there, or"):
        start_etcd().__enter__()
    assert not [*full.iterdir()]


def test_an_etcd_that_is_away_says_that_its_disk_is_full(full):
    """What etcd says of that itself would lie on the same disk."""
    port = free_port("127.0.0.1")
    (full / f"{FOLDER}{port}-x").mkdir()
    store = EtcdStore(EtcdAddress(endpoints=(f"127.0.0.1:{port}",)), "test")
    with pytest.raises(StoreUnavailableError, match=r"its disk is full: .* MiB are free below"):
        store.items()


def test_an_etcd_of_another_machine_is_not_said_to_be_on_a_full_disk_here(full):
    """Its port may be that of one here."""
    port = free_port("127.0.0.1")
    (full / f"{FOLDER}{port}-x").mkdir()
    elsewhere = "192.0.2.1"  # for documentation: nobody has it
    assert lack_of_room([f"127.0.0.1:{port}"])
    assert not lack_of_room([f"{elsewhere}:{port}"])


def test_an_etcd_that_no_lab_started_is_not_looked_up(full):
    """Where a name server is away, too, that takes an agent its time, again and again."""
    looked = []
    is_over = False

    def see(event: str, _: object) -> None:
        if event == "socket.bind" and not is_over:
            looked.append(event)

    sys.addaudithook(see)
    port = free_port("127.0.0.1")
    looked.clear()
    assert not lack_of_room([f"localhost:{port}"])
    assert looked == []
    (full / f"{FOLDER}{port}-x").mkdir()
    assert lack_of_room([f"127.0.0.1:{port}"])
    assert looked
    is_over = True


def fill(store: EtcdStore) -> None:
    """Write until it takes no more: it looks at its size from time to time."""
    for number in range(10_000):
        store.put(f"key-{number}", "x" * 10_000)


@pytest.mark.usefixtures("place")
def test_an_etcd_that_takes_nothing_more_says_so_and_the_way_out(tmp_path):
    member, address = member_in(tmp_path, find_etcd())
    with subprocess.Popen(
        [*member.command(), "--quota-backend-bytes", "100000"], stderr=subprocess.DEVNULL
    ) as server:
        try:
            until(member.answers)
            store = EtcdStore(address, "test")
            with pytest.raises(StoreUnavailableError, match=r"NOSPACE.*etcdctl alarm disarm"):
                fill(store)
            assert store.items()
            store.close()
        finally:
            server.kill()


def own_ip() -> str:
    """An address of this machine that is not loopback's."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return str(entry.address)
    pytest.skip("this machine has no network")


async def lease_is_kept(address: EtcdAddress) -> bool:
    """Whether what an agent keeps open finds this etcd; it has no such lease."""
    streams = EtcdClient(address, "test")
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
