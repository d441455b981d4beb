"""What a batch system or a cloud has to offer to bring machines: two verbs and a question.

A provider has `gemini-lab node` run on machines that it asks for. How many it is to ask for is
decided here, from what it has and from who has joined; `gemini_lab/launch/providers.py` and
`auto_scaling.py` are the two that come with the package.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gemini_lab.errors import CapacityError
from gemini_lab.launch.boot import agent_environment
from gemini_lab.node.etcd_address import EtcdAddress

TOKEN_VARIABLE: Final = "GEMINI_LAB_TOKEN"  # noqa: S105 (where one is, not one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a machine has to know to join a lab.

    Attributes:
        lab: The lab's name in the store.
        identity: Random, and the same for all owners of the lab: two labs may have one name.
        etcd: The store.
        token: The lab's secret.
    """

    lab: str
    identity: str
    etcd: EtcdAddress
    token: str

    @property
    def command(self) -> tuple[str, ...]:
        """What is to run on the machine, after `gemini-lab`; no secret is in it."""
        return ("node", "--lab", self.lab, "--etcd", ",".join(self.etcd.endpoints))

    def environment(self) -> dict[str, str]:
        """The variables that the command reads, secrets too, beside those of this process."""
        etcd = self.etcd
        told = {
            TOKEN_VARIABLE: self.token,
            "ETCDCTL_USER": etcd.user,
            "ETCDCTL_PASSWORD": etcd.password,
            "ETCDCTL_CACERT": etcd.ca_cert and str(Path(etcd.ca_cert).absolute()),
            "ETCDCTL_CERT": etcd.cert and str(Path(etcd.cert).absolute()),
            "ETCDCTL_KEY": etcd.key and str(Path(etcd.key).absolute()),
        }
        return agent_environment(None) | {name: value for name, value in told.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a provider has for a lab at one moment.

    Attributes:
        running: The ids of machines that run; a node says its own when it joins (`--machine`).
        promised: How many more were asked for and do not run yet.
    """

    running: frozenset[str] = frozenset()
    promised: int = 0


class Provider(Protocol):
    """Brings machines on which nodes join a lab by themselves.

    It remembers nothing, for a lab's next owner asks the same things on another machine: what is
    there is asked of whoever owns the machines.

    Every call may raise `LaunchError`: it did not answer, or refused, and says why.
    """

    def fleet(self, lab: Invitation) -> Fleet:
        """What it has for this lab now."""

    def ask(self, lab: Invitation, count: int) -> None:
        """Have `count` more machines join the lab; it does not wait for them.

        Raises:
            CapacityError: It cannot have so many.
        """

    def give_back(self, lab: Invitation) -> None:
        """The lab has ended: let go of all its machines, and of those that are still to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Who has joined a lab, by the names of nodes.

    Attributes:
        machine_of: The machine that took each name, be it up, not yet, or no more.
        up: The names of nodes that are registered now.
        known: Those that were handed to the lab before.
    """

    machine_of: Mapping[str, str]
    up: Collection[str]
    known: Collection[str]

    @property
    def arrived(self) -> set[str]:
        """Machines that have a node which is up, or had one that the lab knew: none is to come."""
        done = {*self.up, *self.known}
        return {machine for name, machine in self.machine_of.items() if name in done}


def missing(count: int, fleet: Fleet, joined: Joined) -> int:
    """How many machines to ask for, so that `count` new nodes come: those on their way count.

    A machine whose node is lost is not given back before the lab ends: it may only be silent, and
    have the last copy of a version in its memory.
    """
    new = set(joined.up) - set(joined.known)
    coming = fleet.promised + len(fleet.running - joined.arrived)
    return max(0, count - len(new) - coming)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """A provider, and the lab that it serves."""

    provider: Provider
    lab: Invitation

    def order(self, count: int, joined: Joined) -> None:
        """Ask for the machines that `count` new nodes still need.

        Raises:
            CapacityError: The provider cannot have so many.
            LaunchError: It did not answer, or refused.
        """
        if short := missing(count, self.provider.fleet(self.lab), joined):
            self.provider.ask(self.lab, short)

    def check(self, count: int, joined: Joined) -> None:
        """Wait no longer for machines that are not to come any more.

        Raises:
            CapacityError: Some that were asked for have ended before they joined.
            LaunchError: The provider did not answer, or refused.
        """
        if short := missing(count, self.provider.fleet(self.lab), joined):
            raise CapacityError(
                f"{short} of {count} machines that were asked for have ended before they joined; "
                "what `gemini-lab node` said there tells why (Slurm writes it to slurm-*.out, "
                "an EC2 instance to its console)"
            )
