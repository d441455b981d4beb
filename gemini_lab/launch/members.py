"""The members of a lab's own etcd, as the lab's owner starts them and replaces lost ones."""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gemini_lab.errors import LaunchError
from gemini_lab.launch.certificate import Authority
from gemini_lab.launch.etcd import wait_until_ready
from gemini_lab.launch.etcd_keeper import DEAF_S
from gemini_lab.launch.etcd_members import PROGRAM, MemberOrder, MemberPlace, address_of, exchanged
from gemini_lab.launch.join import say
from gemini_lab.launch.mpi import run_on_hosts
from gemini_lab.node.config import OVER_KEY
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_store import EtcdStore

COUNT: Final = 3
DEAD_S: Final = 15.0  # one that says nothing for so long is lost
REFUSALS: Final = 6  # as is one whose machine says so often that nobody listens: it is kept alive
LOOK_S: Final = 0.5
CONNECT_S: Final = 2.0
OVER_S: Final = 5.0  # to write that the lab is over; where none answers, none needs to hear it
END_S: Final = DEAF_S + 30.0  # for all members to be gone, at the lab's end
Run = Callable[[MemberOrder, Sequence[str]], list[MemberPlace]]
"""Runs the members' program with an order on hosts, and gives what it prints."""


def run_with_mpi(order: MemberOrder, hosts: Sequence[str]) -> list[MemberPlace]:
    """Run this program on these hosts, with `mpiexec`.

    Raises:
        LaunchError: It failed; the message has what was said.
    """
    line = run_on_hosts(PROGRAM, len(hosts), hosts, msgspec.json.encode(order).decode())
    return msgspec.json.decode(line, type=list[MemberPlace])


@dataclass(slots=True, kw_only=True)
class Members:
    """The members of a lab's etcd, as its owner sees them.

    Attributes:
        address: How agents reach them.
        authority: Signs their certificates.
        prefix: Of the lab's keys.
        run: Runs this program with an order on hosts, and gives what it prints.
    """

    address: EtcdAddress
    authority: Authority
    prefix: str
    run: Run = run_with_mpi

    def mend(self, hosts: Sequence[str]) -> None:
        """Have a new machine each take the place of a member that is lost, if one is.

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
        """Whether a member does; one that only starts anew, or is slow, is waited for."""
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
    hosts: Sequence[str],
    prefix: str,
    *,
    reach: str,
    run: Run = run_with_mpi,
) -> Members:
    """An etcd with a member on each of these hosts; it ends when the lab's key is gone.

    Args:
        hosts: Three machines.
        prefix: Of the lab's keys.
        reach: `host:port` of the network on which members listen.
        run: Runs this program on hosts.

    Raises:
        LaunchError: A member does not start; those that did end when no lab has come for `BEGIN_S`.
    """
    order = MemberOrder(reach=reach, authority=Authority.make(), prefix=prefix)
    address = address_of(run(order, hosts), order)
    wait_until_ready(address, f"the etcd on {', '.join(hosts)}")
    return Members(address=address, authority=order.authority, prefix=prefix, run=run)


def obstacle(endpoint: str) -> OSError | None:
    """What stands against a connection to it; `None`: somebody listens there."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        return error
    return None
