"""The runs of a lab, one at a time, and what reaches them from the nodes."""

import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import Failure
from gemini_lab.injector.orders import Order
from gemini_lab.lab.control import Asked
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.made_with import PACKAGE, made_with
from gemini_lab.lab.node_contracts import NodeCluster
from gemini_lab.lab.run import Run
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    AnyEvent,
    FailureCause,
    LabClosed,
    LabStarted,
    Note,
    RunStarted,
)
from gemini_lab.log.file import OWNERS_FOLDER
from gemini_lab.recovery.messages import Ask, JobOrder, OutputSaid, TakeStacks
from gemini_lab.seats import in_order
from gemini_lab.storage.store_files import require_writable

MADE_WITH: Final = ("torch", "deepspeed", "transformers", "lightning", "accelerate")
"""The packages whose versions a run's log has."""


class Runs:
    """Hands what happens on a lab's nodes to the run under way; implements `Audience`."""

    def __init__(self) -> None:
        self.newest: Run | None = None  # the run under way, or the last one
        self.numbers = itertools.count(1)  # of runs to come

    @property
    def under_way(self) -> Run | None:
        return None if self.newest is None or self.newest.is_over else self.newest

    def begin(self, run: Run) -> None:
        self.newest = run

    def take(self, entry: Entry) -> None:
        if self.newest is not None:
            self.newest.take(entry)

    def take_output(self, said: OutputSaid, *, node: str) -> None:
        if self.newest is not None:
            self.newest.take_output(said, node=node)

    def take_note(self, text: str) -> None:
        if self.newest is not None:
            self.newest.take(said(Note(text=text)))

    def settle(self) -> None:
        if self.newest is not None:
            self.newest.settle()

    def take_end(self, reason: str) -> None:
        self.give_up(reason)

    def strike(self) -> None:
        if self.newest is not None:
            self.newest.strike()

    def act(self, asked: Asked) -> str:
        """Do what a command asks of the run under way, and return the answer.

        Raises:
            ConfigError: No run is under way, or it cannot do this.
        """
        run = self.under_way
        if run is None:
            raise ConfigError("no run is under way in this lab")
        if isinstance(asked, Ask):
            return run.ask(asked.request)
        if isinstance(asked, TakeStacks):
            return run.stacks(*asked.ranks)
        return told(run.inject(Failure.from_json(asked.failure)))

    def give_up(self, reason: str, cause: FailureCause = "machines") -> None:
        """End the run under way, if there is one: its nodes are about to go."""
        run = self.under_way
        if run is not None:
            run.give_up(reason, cause)

    def close(self) -> None:
        if self.newest is not None:
            self.newest.take(said(LabClosed()))
            self.newest.close()


def told(given: Sequence[Order]) -> str:
    """Return in words which node was told to do what to itself."""
    return ", ".join(f"{order.action.kind} on {order.node}" for order in given)


def said(event: AnyEvent) -> Entry:
    """Return an entry of the lab's own, now."""
    return Entry(at_s=time.time(), node="lab", event=event)


def lab_started(config: LabConfig, cluster: NodeCluster) -> Entry:
    """Return the entry that the lab's nodes are up, for the head of a run's log."""
    return said(
        LabStarted(
            nodes=config.nodes,
            standbys=config.standbys,
            root=cluster.root,
            names=tuple(in_order(cluster.members)),
            etcd=tuple(cluster.etcd),
        )
    )


def run_started(order: JobOrder) -> Entry:
    """Return the entry that a job was submitted."""
    job, seats = order.job, order.seats
    racks = tuple(seats.rack_of.values())[: seats.nodes]
    return said(
        RunStarted(
            name=job.title,
            script=job.script,
            args=tuple(job.args),
            module=job.module,
            nodes=seats.nodes,
            standbys=seats.standbys,
            workers_per_node=seats.workers_per_node,
            racks=racks or None,
            settings=order.settings,
            made_with=made_with(MADE_WITH, file=PACKAGE if job.module else Path(job.script)),
        )
    )


def require_folder(folder: Path) -> None:
    """Refuse a folder in which no run could have its own, before anything is started for one.

    Raises:
        ConfigError: This user may not write there, or a part of its path is a file.
    """
    try:
        require_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"runs cannot keep their logs in {folder.absolute()} ({error.strerror}: "
            f"{error.filename}); make it writable, or name another folder with folder= or --folder"
        ) from error


def fresh_folder(folder: Path) -> Path:
    """Make `folder` for its user alone, with a number if it exists; return its path.

    Raises:
        ConfigError: It cannot be made.
    """
    numbered = (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))
    found = folder
    try:
        if folder.exists():
            found = next(one for one in numbered if not one.exists())
        found.mkdir(parents=True, mode=OWNERS_FOLDER)
    except OSError as error:
        raise ConfigError(
            f"cannot make the run's folder {found}: {error.strerror}; mend that, or name another "
            "folder with folder= or --folder"
        ) from error
    return found


@contextmanager
def begun(folder: Path) -> Iterator[None]:
    """Give a block that writes a run's first files; where the disk takes them not, its folder goes.

    Raises:
        ConfigError: It does not take them.
    """
    try:
        yield
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(
            f"the run cannot keep its log in {folder} ({error}); make room there, or name another "
            "folder with folder= or --folder"
        ) from error
