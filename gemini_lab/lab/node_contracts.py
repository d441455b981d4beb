"""The contracts between a lab and its nodes."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from gemini_lab.injector.orders import Order
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.loop import LoopThread
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.messages import JobOrder, OutputSaid, TakeStacks
from gemini_lab.recovery.requests import AnyRequest


class RunOwner(Protocol):
    """The nodes of a run, as the run asks them."""

    @property
    def living(self) -> Sequence[str]:
        """Names of the nodes whose agents live, standbys included."""

    @property
    def is_local(self) -> bool:
        """Whether all nodes are on this machine, and see its folders."""

    def obey(self, order: Order) -> None:
        """Send a node an injected failure.

        Raises:
            ConfigError: No such node is there.
        """

    def take_stacks(self, nodes: Sequence[str], order: TakeStacks) -> None:
        """Order these nodes to log what their workers' threads do."""

    def ask(self, number: int, request: AnyRequest) -> None:
        """Pass a request to the run with this number on to its root agent."""


class NodeCluster(RunOwner, Protocol):
    """Nodes that are up, until `close`."""

    @property
    def members(self) -> Collection[str]:
        """Names of the nodes whose agents are connected."""

    @property
    def ready(self) -> Collection[str]:
        """Names of those that have imported what workers need."""

    @property
    def root(self) -> str | None:
        """The node with the root agent."""

    @property
    def etcd(self) -> Sequence[str]:
        """`host:port` of each member of the etcd behind them."""

    def bring(self, machines: int) -> None:
        """Ask for machines until so many nodes live; a run under way asks by itself."""

    def submit(self, job: JobOrder) -> None:
        """Start a job on the nodes."""

    def close(self) -> None:
        """End every process of the cluster."""


class Audience(Protocol):
    """The receiver of what happens on the nodes, on the lab's thread."""

    def take(self, entry: Entry) -> None:
        """Receive an event."""

    def take_output(self, said: OutputSaid, *, node: str) -> None:
        """Receive lines that a worker on `node` printed."""

    def take_note(self, text: str) -> None:
        """Receive a text for the log."""

    def settle(self) -> None:
        """Return when what was taken is on the disk itself; called beside the lab's thread."""

    def take_end(self, reason: str) -> None:
        """End the run under way: nothing more will come of it."""


Starter = Callable[[LabConfig, LoopThread, Audience], NodeCluster]
"""Starts a cluster; returns when its nodes are up."""
