"""An embedded etcd of three members on three machines: it outlives any one of them.

`mpiexec` runs this program on the machines, and hands it the secrets as `boot` does. It starts a
keeper, which outlives MPI and ends when the lab's key is gone, and returns. When a machine is lost
and another one comes, the member of the lost one is removed and one on the new machine added.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gemini_lab.launch.boot import Ranks, hand_out, mpi_world
from gemini_lab.launch.certificate import Authority
from gemini_lab.launch.etcd import find_etcd, held_port, own_address
from gemini_lab.launch.etcd_keeper import Stay, start_keeper
from gemini_lab.launch.etcd_server import Member
from gemini_lab.launch.mpi_order import take_order
from gemini_lab.node.agent import address_towards
from gemini_lab.node.control_store import patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_store import EtcdStore
from gemini_lab.node.locked_tempdir import hold
from gemini_lab.node.orphan_etcd import FOLDER, end_left_stores

PATIENCE_S: Final = 60.0  # for members to agree on another one
PROGRAM: Final = "gemini_lab.launch.etcd_members"


class MemberOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this program is told on each machine.

    Attributes:
        reach: `host:port` towards which members listen on the same network.
        authority: Signs their certificates.
        prefix: Of the lab's keys: with them they end.
        etcd: The one that gets another member; `None`: it begins with these.
        lost: The endpoint of that one's member that is to go.
    """

    reach: str
    authority: Authority
    prefix: str
    etcd: EtcdAddress | None = None
    lost: str = ""


class MemberPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a member listens, and its name."""

    name: str
    host: str
    client_port: int
    peer_port: int

    @classmethod
    @contextmanager
    def towards(cls, reach: str) -> "Iterator[MemberPlace]":
        """A free place of this machine, on its network towards `reach`; held within the block.

        All machines wait there for each other, and where a member is replaced for the others' word.
        """
        host = address_towards(reach)
        with held_port(host) as client, held_port(host) as peer:
            yield cls(name=f"{host}-{peer}", host=host, client_port=client, peer_port=peer)

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"{self.host}:{self.client_port}"

    @property
    def peer(self) -> str:
        """The URL for other members."""
        return f"https://{self.host}:{self.peer_port}"


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A member, as etcd lists it: one that has not started yet has no name."""

    number: int
    name: str
    peer: str
    clients: tuple[str, ...]


class MemberStore(EtcdStore):
    """An etcd whose members are looked at and changed."""

    def members(self) -> list[Listed]:
        """All of them."""
        return self._call(
            lambda etcd: [
                Listed(
                    number=one.id,
                    name=one.name,
                    peer=one.peer_urls[0],
                    clients=tuple(urlsplit(url).netloc for url in one.client_urls),
                )
                for one in etcd.members
            ]
        )

    def replace_member(self, lost: str, peer: str) -> list[Listed]:
        """Remove the member at the endpoint `lost`, and add one at `peer`; may be called again."""
        members = self.members()
        for number in [one.number for one in members if lost in one.clients]:
            self._call(partial(_remove, number=number))
        if peer not in {one.peer for one in members}:
            self._call(lambda etcd: etcd.add_member([peer]))
        return self.members()


def _remove(etcd: Any, *, number: int) -> None:
    etcd.remove_member(number)


def start_member(own: MemberPlace, cluster: str, order: MemberOrder, address: EtcdAddress) -> None:
    """Start a member's keeper in a session of its own, and leave it.

    Args:
        own: Where it is to listen.
        cluster: All members, as `Member.cluster`.
        order: What was ordered.
        address: The whole etcd's.
    """
    binary = find_etcd()
    end_left_stores()
    folder, held = hold(f"{FOLDER}{own.client_port}-")
    member = Member(
        binary=binary,
        folder=str(folder),
        client=f"https://{own.endpoint}",
        peer=own.peer,
        name=own.name,
        cluster=cluster,
        is_first=order.etcd is None,
        is_durable=True,
    )
    member.write(order.authority.certify(own.host))
    keeper = start_keeper(member, order.prefix, held)
    assert keeper.stdin is not None
    keeper.stdin.write(msgspec.json.encode(Stay(address, has_begun=order.etcd is not None)))
    keeper.stdin.close()


def begin(own: MemberPlace, places: Sequence[MemberPlace], order: MemberOrder) -> None:
    """Start one of the members with which an etcd begins."""
    start_member(
        own,
        ",".join(f"{one.name}={one.peer}" for one in places),
        order,
        address_of(places, order),
    )


def take_place(own: MemberPlace, order: MemberOrder) -> None:
    """Start a member in a lost one's place.

    Raises:
        StoreUnavailableError: The others do not agree on it in time.
    """
    assert order.etcd is not None
    store = MemberStore(order.etcd, order.prefix, timeout_s=5.0)
    members = patiently(lambda: store.replace_member(order.lost, own.peer), patience_s=PATIENCE_S)
    store.close()
    cluster = ",".join(
        f"{own.name if one.peer == own.peer else one.name}={one.peer}" for one in members
    )
    start_member(own, cluster, order, exchanged(order.etcd, order.lost, own.endpoint))


def address_of(places: Sequence[MemberPlace], order: MemberOrder) -> EtcdAddress:
    """How agents reach an etcd that begins."""
    return own_address([one.endpoint for one in places], order.authority, is_followed=True)


def exchanged(address: EtcdAddress, lost: str, new: str) -> EtcdAddress:
    """The address with one endpoint in another one's place."""
    kept = [one for one in address.endpoints if one != lost]
    return replace(address, endpoints=(*kept, new))


def main() -> None:
    """Start this machine's member; rank 0 says where all of them are."""
    with mpi_world() as world:
        start_all(world)


def start_all(world: Ranks) -> None:
    """Start the members of all ranks of an MPI world, each its own."""
    parts = None
    if world.rank == 0:
        given = take_order().encode()

        def parts(machines: list[str]) -> list[bytes]:
            return [given] * len(machines)

    order = msgspec.json.decode(hand_out(world, parts), type=MemberOrder)
    with MemberPlace.towards(order.reach) as own:
        places = _exchange(world, own)
        if order.etcd is None:
            begin(own, places, order)
        else:
            take_place(own, order)
    if world.rank == 0:
        sys.stdout.write(msgspec.json.encode(places).decode() + "\n")
        sys.stdout.flush()


def _exchange(world: Ranks, own: MemberPlace) -> list[MemberPlace]:
    """Tell all ranks' places to all."""
    world.send(msgspec.json.encode(own), to=0)
    if world.rank == 0:
        told = [
            msgspec.json.decode(world.receive(rank), type=MemberPlace) for rank in range(world.size)
        ]
        for rank in range(world.size):
            world.send(msgspec.json.encode(told), to=rank)
    return msgspec.json.decode(world.receive(0), type=list[MemberPlace])


if __name__ == "__main__":
    main()
