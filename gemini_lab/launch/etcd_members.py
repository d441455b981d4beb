"""An embedded etcd of three members on three machines: it outlives any one of them.

The lab's owner has `mpiexec` run this program on the machines, and hands it the secrets as `boot`
does. It starts a keeper, which outlives MPI and ends when the lab's key is gone, and returns. When
a machine is lost and another one comes, the member of the lost one is removed and one on the new
machine added.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gemini_lab.errors import LaunchError
from gemini_lab.launch.boot import Ranks, hand_out, mpi_world
from gemini_lab.launch.etcd import (
    Authority,
    held_port,
    own_address,
    start_member,
    wait_until_ready,
)
from gemini_lab.launch.etcd_keeper import DEAF_S, Stay, leave_keeper
from gemini_lab.launch.join import say
from gemini_lab.launch.mpi import run_on_hosts
from gemini_lab.launch.mpi_order import take_order
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.start_config import OVER_KEY
from gemini_lab.node.this_machine import address_towards

PROGRAM: Final = "gemini_lab.launch.etcd_members"
COUNT: Final = 3
PATIENCE_S: Final = 60.0  # for members to agree on another one
DEAD_S: Final = 15.0  # one that says nothing for so long is lost
REFUSALS: Final = (
    6  # as is one whose machine refuses so often: its keeper would have started it again
)
LOOK_S: Final = 0.5
CONNECT_S: Final = 2.0
OVER_S: Final = 5.0  # to write that the lab is over; if none answers, none needs to hear it
END_S: Final = DEAF_S + 30.0  # for all members to be gone, at the lab's end


class MemberOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order to this program on each machine."""

    reach: str  # `host:port` towards which members listen on the same network
    authority: Authority  # signs their certificates
    prefix: str  # of the lab's keys: with them they end
    # The one that gets another member; `None`: it begins with these.
    etcd: EtcdAddress | None = None
    lost: str = ""  # the endpoint of that one's member that is to go


class MemberPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place where a member listens."""

    host: str
    client_port: int
    peer_port: int

    @classmethod
    @contextmanager
    def towards(cls, reach: str) -> "Iterator[MemberPlace]":
        """Give a free place of this machine, on its network towards `reach`; held within the block.

        All machines wait there for each other, and a replaced member for the others' agreement.
        """
        host = address_towards(reach)
        with held_port(host) as client, held_port(host) as peer:
            yield cls(host=host, client_port=client, peer_port=peer)

    @property
    def name(self) -> str:
        return f"{self.host}-{self.peer_port}"

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"{self.host}:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"https://{self.host}:{self.peer_port}"


Run = Callable[[MemberOrder, Sequence[str]], list[MemberPlace]]
"""Runs this program with an order on hosts, and returns what it prints."""


def run_with_mpi(order: MemberOrder, hosts: Sequence[str]) -> list[MemberPlace]:
    """Run this program on these hosts, with `mpiexec`.

    Raises:
        LaunchError: It failed; the message has what was said.
    """
    line = run_on_hosts(PROGRAM, len(hosts), hosts, msgspec.json.encode(order).decode())
    return msgspec.json.decode(line, type=list[MemberPlace])


@dataclass(slots=True, kw_only=True)
class Members:
    """The members of a lab's etcd, as its owner sees them."""

    address: EtcdAddress  # how agents reach them
    authority: Authority  # signs their certificates
    prefix: str  # of the lab's keys
    run: Run = run_with_mpi  # runs this program with an order on hosts, and gives what it prints

    def mend(self, hosts: Sequence[str]) -> None:
        """Replace each lost member by one on a new machine.

        Raises:
            LaunchError: That could not be done.
        """
        lost = [one for one in self.address.endpoints if not self._answers(one)]
        if 2 * len(lost) > len(self.address.endpoints):
            raise LaunchError(
                f"of the etcd's members {', '.join(lost)} do not answer, and the others are too "
                "few to agree on new ones; the run goes on until it needs etcd"
            )
        for endpoint, host in zip(lost, hosts, strict=False):
            there = next(one for one in self.address.endpoints if one not in lost)
            order = MemberOrder(
                reach=there,
                authority=self.authority,
                prefix=self.prefix,
                etcd=self.address,
                lost=endpoint,
            )
            (place,) = self.run(order, [host])
            self.address = exchanged(self.address, endpoint, place.endpoint)
            wait_until_ready(self._alone(place.endpoint), f"a member on {host}")

    def see_off(self) -> None:
        """Wait until no member is left: their lab is over, and its key is gone from the store.

        Agents tell those beside them; one whose agent was lost asks the store, and ends after
        `DEAF_S` if the others have ended before.
        """
        store = EtcdStore(self.address, self.prefix)
        with suppress(StoreUnavailableError):
            patiently(lambda: store.put(OVER_KEY, ""), patience_s=OVER_S)
        store.close()
        give_up_s = time.monotonic() + END_S
        left = list(self.address.endpoints)
        while left := [one for one in left if obstacle(one) is None]:
            if time.monotonic() > give_up_s:
                say(f"of the lab's etcd {', '.join(left)} still run after {END_S:.0f} s")
                return
            time.sleep(LOOK_S)

    def _alone(self, endpoint: str) -> EtcdAddress:
        return replace(self.address, endpoints=(endpoint,), is_followed=False)

    def _answers(self, endpoint: str) -> bool:
        """Return whether a member answers; wait for one that starts again, or is slow."""
        store = EtcdStore(self._alone(endpoint), self.prefix)
        give_up_s, refusals = time.monotonic() + DEAD_S, 0
        while time.monotonic() < give_up_s and refusals < REFUSALS:
            try:
                store.items()
            except StoreUnavailableError:
                is_refused = isinstance(obstacle(endpoint), ConnectionRefusedError)
                refusals = refusals + 1 if is_refused else 0
                time.sleep(LOOK_S)
            else:
                store.close()
                return True
        return False


def start_members(
    hosts: Sequence[str],  # three machines
    prefix: str,  # of the lab's keys
    *,
    reach: str,  # `host:port` of the network on which members listen
    run: Run = run_with_mpi,  # runs this program on hosts
) -> Members:
    """Return an etcd with a member on each of these hosts; it ends when the lab's key is gone.

    Raises:
        LaunchError: A member does not start; those that did end when no lab has come for `BEGIN_S`.
    """
    order = MemberOrder(reach=reach, authority=Authority.make(), prefix=prefix)
    endpoints = [one.endpoint for one in run(order, hosts)]
    address = own_address(endpoints, order.authority, is_followed=True)
    wait_until_ready(address, f"the etcd on {', '.join(hosts)}")
    return Members(address=address, authority=order.authority, prefix=prefix, run=run)


def obstacle(endpoint: str) -> OSError | None:
    """Return why a connection to it fails; `None` if a program listens there."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        return error
    return None


def exchanged(address: EtcdAddress, lost: str, new: str) -> EtcdAddress:
    """Return the address with one endpoint in another one's place."""
    kept = [one for one in address.endpoints if one != lost]
    return replace(address, endpoints=(*kept, new))


def join_cluster(own: MemberPlace, places: Sequence[MemberPlace], order: MemberOrder) -> None:
    """Start this machine's member, as one of the first or in a lost one's place.

    Raises:
        StoreUnavailableError: The other members do not agree on it in time.
    """
    if order.etcd is None:
        endpoints = [one.endpoint for one in places]
        address = own_address(endpoints, order.authority, is_followed=True)
        names = {one.peer: one.name for one in places}
    else:
        address = exchanged(order.etcd, order.lost, own.endpoint)
        store = EtcdStore(order.etcd, order.prefix, timeout_s=5.0)
        members = patiently(
            lambda: store.wait(store.client.replace_member(order.lost, own.peer)),
            patience_s=PATIENCE_S,
        )
        store.close()
        names = {one.peer: one.name for one in members} | {own.peer: own.name}
    _, keeper = start_member(
        order.authority,
        order.prefix,
        endpoint=own.endpoint,
        peer=own.peer,
        name=own.name,
        cluster=",".join(f"{name}={peer}" for peer, name in names.items()),
        is_first=order.etcd is None,
        is_durable=True,
    )
    leave_keeper(keeper, Stay(address, has_begun=order.etcd is not None))


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
        join_cluster(own, places, order)
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
