"""The start of what a lab was not given: etcd, and agents."""

import os
import secrets
import socket
import warnings
from contextlib import ExitStack
from typing import Final

from gemini_lab.errors import LaunchError, MissingError
from gemini_lab.lab.agent_cluster import AgentCluster
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.loop import LoopThread
from gemini_lab.lab.node_contracts import Audience
from gemini_lab.launch.etcd import Embedded, start_etcd
from gemini_lab.launch.etcd_members import COUNT, Members, start_members
from gemini_lab.launch.join import JoinOperator, prefix_of
from gemini_lab.launch.mpi import Hosts
from gemini_lab.launch.operator import MpiOperator
from gemini_lab.launch.provider import Invitation, Supply
from gemini_lab.memory.free import free_memory, too_little_for
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.host import SCRATCH
from gemini_lab.node.locked_tempdir import remove_left
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import Detached, LabRecord
from gemini_lab.node.this_machine import address_towards

LOOPBACK: Final = "127.0.0.1"


def start_cluster(config: LabConfig, loop: LoopThread, audience: Audience) -> "AgentCluster":
    """Start etcd, unless one is named, and agents; returns when the lab is connected to each.

    What was started is ended again if the rest does not start.

    Raises:
        LaunchError: MPI, etcd or an agent could not be started.
    """
    if is_local(config) and (why := too_little_for(config.seats.machines, free_memory())):
        warnings.warn(why, RuntimeWarning, stacklevel=3)
    with ExitStack() as undo:
        if is_local(config):  # nodes that are killed leave theirs
            undo.callback(remove_left, SCRATCH)
        prefix = prefix_of(config.join or secrets.token_hex(6))
        etcd = config.etcd or embedded_etcd(config.hosts, prefix, undo)
        record, token = record_of(config), config.token or secrets.token_hex(16)
        store = SealedStore(
            etcd if isinstance(etcd, EtcdAddress) else etcd.address,
            prefix,
            token=token,
            identity=record.identity,
        )
        undo.callback(store.close)
        members = etcd if isinstance(etcd, Members) else None
        operator = own_operator(config, store, record, token=token, members=members)
        undo.callback(operator.clear)
        cluster = AgentCluster(
            store=store,
            record=record,
            operator=operator,
            loop=loop,
            audience=audience,
        )
        undo.callback(cluster.leave)
        cluster.open(config.seats.machines)
        cluster.ends_with(undo.pop_all())
    return cluster


def embedded_etcd(hosts: Hosts, prefix: str, undo: ExitStack) -> Embedded | Members:
    """Return an etcd on loopback; for other machines, on the first three of them, or on this one.

    `undo` ends an etcd on this machine, or waits for one on three, which ends with the lab's key.
    """
    if not hosts.names:
        return undo.enter_context(start_etcd(LOOPBACK, prefix))
    try:
        own = address_towards(f"{hosts.names[-1]}:22")
    except OSError as error:
        is_unknown = error.errno == socket.EAI_NONAME
        raise (MissingError if is_unknown else LaunchError)(
            f"the host {hosts.names[-1]} is not known here ({error}); check its name, or "
            "name a running etcd that all hosts reach with etcd= or --etcd"
        ) from error
    machines = tuple(dict.fromkeys(hosts.names))
    if len(machines) < COUNT:
        return undo.enter_context(start_etcd(own, prefix))
    members = start_members(machines[:COUNT], prefix, reach=f"{own}:9")
    undo.callback(members.see_off)
    return members


def is_local(config: LabConfig) -> bool:
    """Return whether all of a lab's machines are this one."""
    return not config.hosts.names and config.join is None


def record_of(config: LabConfig, detached: Detached | None = None) -> LabRecord:
    """Return a lab's record for the store."""
    seats = config.seats
    return LabRecord(
        identity=secrets.token_hex(8),
        machines=seats.machines,
        lease_s=config.lease_s,
        warm=config.warm,
        threads=max(1, (os.cpu_count() or 1) // seats.world_size) if is_local(config) else None,
        detached=detached,
    )


def own_operator(
    config: LabConfig,  # the lab
    store: SealedStore,  # its part of the store
    record: LabRecord,  # what it says of itself there
    *,
    token: str,  # its secret
    members: Members | None = None,  # those of an etcd that the lab started on its machines
) -> JoinOperator | MpiOperator:
    """Return the operator that brings a lab's machines."""
    if config.join is not None:
        supply = None
        if config.provider is not None:
            lab = Invitation(
                lab=config.join, identity=record.identity, etcd=store.address, token=token
            )
            supply = Supply(provider=config.provider, lab=lab)
        return JoinOperator(store=store, token=token, wait_s=config.wait_s, supply=supply)
    return MpiOperator(
        etcd=members or store.address,
        prefix=store.prefix.rstrip("/"),
        lab=record,
        hosts=config.hosts,
        log_folder=config.folder / "agents",
        token=token,
    )
