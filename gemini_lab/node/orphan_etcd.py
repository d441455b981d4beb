"""The etcds that labs have started on this machine, found by their folders' names.

An etcd whose keeper was killed lives on, because its lab may need it. A launcher or an agent that
starts or ends a lab on the machine ends those without a keeper and a user: no agent of its lab is
here, and no client is connected to it. Each agent is connected to one member of its etcd all the
time. Other members are no clients, because they never stop talking to each other, and nor is a
keeper here, which asks any member whether its lab is over.
"""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from gemini_lab.node.locked_tempdir import MPI_FILES, remove_left
from gemini_lab.node.processes import AGENT, STORE_KEEPER, is_alive, kill_all, processes_of
from gemini_lab.units import MIB, format_bytes

FOLDER: Final = "gemini_lab-store-"
"""What the names of their folders begin with; the port for clients follows."""
DATA: Final = "data"
"""What etcd writes, in such a folder."""
CLIENTS_AT: Final = "--listen-client-urls"
"""Etcd's option: the URL for clients follows."""
LAB: Final = "lab"
"""A file in such a folder: the prefix of its lab's keys."""
SEGMENT_BYTES: Final = 64 * MIB
"""A file of etcd's log, which is made in full: without room for one it does not start."""
Address = tuple[str, int]
LOOK_S: Final = 0.2
GONE_S: Final = 3.0


def lack_of_room(endpoints: Sequence[str]) -> str:
    """Return that an etcd at one of these endpoints has no room here; empty if none is known.

    It dies of that, and what it says itself finds no room either.
    """
    for host, _, port in (endpoint.rpartition(":") for endpoint in endpoints):
        folders = [*Path(tempfile.gettempdir()).glob(f"{FOLDER}{port}-*")]
        # Only now: to ask for a host by its name may take as long as to ask etcd itself.
        for folder in folders if folders and _is_here(host) else ():
            with suppress(OSError):  # it has just gone
                free_bytes = shutil.disk_usage(folder).free
                if free_bytes < SEGMENT_BYTES:
                    return (
                        f"its disk is full: {format_bytes(free_bytes)} are free below {folder}, "
                        f"and it needs {format_bytes(SEGMENT_BYTES)}"
                    )
    return ""


def _is_here(host: str) -> bool:
    """Return whether an address is one of this machine's: another one may have the same port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.bind((host, 0))
        return True
    return False


def end_store(folder: str) -> None:
    """End the etcd that has its data in a folder, even if it is used, and remove the folder."""
    stores = [store for store in _stores() if _folder_of(store) == Path(folder)]
    kill_all(stores, within_s=GONE_S)
    shutil.rmtree(folder, ignore_errors=True)


def end_left_stores(wait_s: float = 0.0, over: str = "") -> None:
    """End this user's etcds here without a keeper and a user, and remove their folders.

    Those of launchers that were killed go, too. An agent that calls this is about to end: it is
    nobody who uses one.

    Args:
        wait_s: For those that are still used, as a lab's last processes leave one after the other.
        over: The prefix of a lab that is over: its agents do not count.
    """
    give_up_s = time.monotonic() + wait_s
    own = psutil.Process()
    while unkept := [store for store in _stores() if not _is_kept(store)]:
        none = {*_of(AGENT, over), *_of(STORE_KEEPER)}
        if AGENT in own.cmdline():
            none |= {here for here, _ in _links(own)}
        left = [s for s in unkept if not _has_agent(s, over) and not _has_client(s, none)]
        folders = [folder for folder in map(_folder_of, left) if folder is not None]
        kill_all(left, within_s=GONE_S)
        # Found before they were killed: a process that has ended has no command line. Some are
        # below another job's TMPDIR, where `remove_left` does not look.
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() >= give_up_s:
            break
        time.sleep(LOOK_S)
    for kind in (FOLDER, MPI_FILES):
        remove_left(kind)


def _stores() -> Iterator[psutil.Process]:
    """Yield this user's etcds of labs."""
    # By their command lines: no file of ours says so after its folder was removed.
    for process in psutil.process_iter():
        if _folder_of(process) is not None:
            yield process


def _folder_of(process: psutil.Process) -> Path | None:
    """Return the lab's folder on whose data this process runs an etcd; `None` if it runs none."""
    with suppress(psutil.Error):  # it may have ended
        for place in (Path(word) for word in process.cmdline() if word.endswith(f"/{DATA}")):
            is_labs = place.parent.name.startswith(FOLDER)
            if is_labs and process.uids().real == os.getuid():
                return place.parent
    return None


def _is_kept(store: psutil.Process) -> bool:
    """Return whether its keeper lives, which is its parent then."""
    with suppress(psutil.Error):
        parent = store.parent()
        return parent is not None and STORE_KEEPER in parent.cmdline()
    return False


def _has_agent(store: psutil.Process, over: str) -> bool:
    """Return whether an agent of its lab is here; those of a lab that is over do not count."""
    folder = _folder_of(store)
    with suppress(OSError):
        prefix = (folder / LAB).read_text(encoding="utf-8") if folder is not None else over
        agents = (one for one in processes_of(AGENT, prefix) if one.pid != os.getpid())
        return prefix != over and any(map(is_alive, agents))
    return False


def _has_client(store: psutil.Process, none: Collection[Address]) -> bool:
    """Return whether any other client is connected to it than those at the addresses in `none`."""
    try:
        links, words = _links(store), store.cmdline()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    port = urlsplit(words[words.index(CLIENTS_AT) + 1]).port
    own = {here for here, _ in links}  # etcd speaks with itself, too
    ends = {there for here, there in links if here[1] == port}
    return not ends <= own | set(none)


def _of(module: str, lab: str | None = None) -> Iterator[Address]:
    """Yield the own ends of the connections of those that run a module, for one lab or any."""
    for process in processes_of(module, lab):
        with suppress(psutil.AccessDenied):
            yield from (here for here, _ in _links(process))


def _links(process: psutil.Process) -> list[tuple[Address, Address]]:
    """Return both ends of each connection of a process; one that has ended has none."""
    with suppress(psutil.NoSuchProcess):
        links = process.net_connections("tcp")
        open_ones = [link for link in links if link.status == psutil.CONN_ESTABLISHED]
        return [(_plain(link.laddr), _plain(link.raddr)) for link in open_ones]
    return []


def _plain(address: Address) -> Address:
    """Return an address of IPv4 as such, also where a socket of IPv6 has it."""
    host, port = address
    return host.removeprefix("::ffff:"), port
