"""What a campaign puts around a run so that it can be broken: tier, script, networks, clocks."""

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError
from gemini_lab_bench.chaos.clock import NodeClocks
from gemini_lab_bench.chaos.faults import Fault, Schedule
from gemini_lab_bench.chaos.namespaces import NodeNetwork
from gemini_lab_bench.chaos.store import BreakableStore
from gemini_lab_bench.chaos.tier import BreakableTier

SLOW_BYTES_PER_S: Final = 64 * 1024
SSH: Final = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
address="$1"; shift
case "$address" in
{enters}
esac
"""


class NetworkHosts:
    """Emulated machines, each a network namespace, that `mpiexec` reaches as if by ssh.

    Args:
        folder: For the program that stands in for ssh.
        count: How many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._ssh = folder / "ssh"
        self._count = count
        pid = os.getpid()  # other campaigns may run beside this one
        self._subnet = f"10.{128 + pid % 100}.{pid // 100 % 250}"
        self._network = NodeNetwork(self._count, subnet=self._subnet)

    @property
    def names(self) -> list[str]:
        return [self._network.address(number) for number in range(self._count)]

    @property
    def campaign(self) -> str:
        """The address that the campaign's own machine has for them."""
        return f"{self._subnet}.254"

    @property
    def environment(self) -> dict[str, str]:
        """MPI's settings: how to reach them, and through which network."""
        return {
            "PRTE_MCA_plm_ssh_agent": str(self._ssh),
            "PRTE_MCA_prte_if_include": f"{self._subnet}.0/24",
            "OMPI_MCA_btl_tcp_if_include": f"{self._subnet}.0/24",
            "OMPI_MCA_btl": "self,tcp",
            "OMPI_MCA_pml": "ob1",
        }

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        return self._network.command(host, command)

    def strike(self, fault: Fault, pid: int) -> int:
        """Break the link of the host on which a process runs; the host's number.

        Raises:
            ConfigError: The process is on none of the hosts.
        """
        host = self._network.node_of(pid)
        if host is None:
            raise ConfigError(f"process {pid} is on no host with a network of its own")
        match fault.kind:
            case "link_slow":
                self._network.slow(host, bytes_per_s=SLOW_BYTES_PER_S)
            case "partition_out":
                self._network.cut(host, sent=True, received=False)
            case "partition_in":
                self._network.cut(host, sent=False, received=True)
            case _:
                self._network.cut(host, sent=True, received=True)
        return host

    def mend(self, host: int) -> None:
        self._network.mend(host)

    def __enter__(self) -> Self:
        self._network.__enter__()
        ways = "\n".join(self._way(number) for number in range(self._count))
        self._ssh.write_text(SSH.format(enters=ways), encoding="utf-8")
        self._ssh.chmod(self._ssh.stat().st_mode | stat.S_IXUSR)
        return self

    def __exit__(self, *_: object) -> None:
        self._network.__exit__()

    def _way(self, number: int) -> str:
        """Return the branch of the program that runs its arguments on a host."""
        words = shlex.join(self.command(number, ["bash", "-c"]))
        return f'  {self._network.address(number)}) exec {words} "$*" ;;'


SCRIPT: Final = """\
import sys

import own_part
from gemini_lab.training.gpt_job import main

assert own_part.TEXT
sys.exit(main())
"""
UNLIKE: Final = (4, 8)
"""Machines for two stages of two tensor parallel ranks each, and of as many data parallel ones."""
STAGES: Final = Path(__file__).parents[3] / "docs" / "examples" / "train_pipeline.py"
"""The job whose ranks differ: the example of the docs."""
_HEAD: Final = """
import time

import own_part

assert own_part.TEXT


def held(models: list[nn.Module]) -> float:
    weights = [weight.detach() for model in models for weight in model.parameters()]
    own = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights]
    return sum(part.double().square().sum().item() for part in own)


def main() -> None:
"""
_SAID: Final = """
        protected.log(loss=held(models))
        time.sleep(0.05)
        if reads_last:
            loss ="""


def stages_script() -> str:
    """Return the example in which each rank logs what it holds, and takes its time.

    Raises:
        ConfigError: It is not there.
    """
    try:
        text = STAGES.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the job of unlike ranks is in a checkout: {error}") from None
    for old, new in (
        ("\n\ndef main() -> None:\n", _HEAD),
        ("            protected.log(loss=loss)\n", ""),
        ("        if reads_last:\n            loss =", _SAID.lstrip("\n")),
    ):
        if text.count(old) != 1:
            raise ConfigError(f"{STAGES} has no single {old.strip()!r}")
        text = text.replace(old, new)
    return text


OWN_PART: Final = 'TEXT = "the campaign\'s own"\n'
EDITED: Final = 'TEXT = "the campaign\'s own, which somebody edits while it trains"\n'
"""Other code that computes the same: what is told of it is what counts."""
SPARE: Final = 4  # hosts: one is used once, and a slow one may be left for another


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What stands around one run."""

    tier: BreakableTier  # its persistent tier
    script: Path  # what it trains
    store: BreakableStore | None = None  # what stands before the tier, if anything does
    hosts: NetworkHosts | None = None  # its nodes' networks, if they have their own
    clocks: NodeClocks | None = None  # its nodes' clocks, if they have their own

    @property
    def tier_url(self) -> str:
        return str(self.tier.url) if self.store is None else self.store.url

    def edit(self, text: str) -> None:
        """Write another text into the module that the script imports from its folder."""
        new = self.script.with_name("own_part.new")
        new.write_text(text, encoding="utf-8")
        new.replace(self.script.with_name("own_part.py"))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **(self.hosts.environment if self.hosts else {}),
            **(self.clocks.environment if self.clocks else {}),
            **(self.store.environment if self.store else {}),
        }


@contextmanager
def scene_of(schedule: Schedule, folder: Path) -> Iterator[Scene]:
    """Set up what a schedule's faults need, in a run's folder; take it down at the end."""
    with ExitStack() as made:
        hosts = None
        if "network" in schedule.needs:
            machines = schedule.nodes + schedule.standbys + schedule.most_lost
            hosts = made.enter_context(NetworkHosts(folder, machines + SPARE))
        tier, store = made.enter_context(BreakableTier(folder)), None
        if "store" in schedule.needs:
            where = {} if hosts is None else {"host": hosts.campaign}
            store = made.enter_context(BreakableStore(tier.url, **where))
        script = folder / "script" / "train.py"
        script.parent.mkdir()
        text = stages_script() if schedule.differs else SCRIPT
        script.write_text(text, encoding="utf-8")
        scene = Scene(
            tier=tier,
            script=script,
            store=store,
            hosts=hosts,
            clocks=NodeClocks(folder) if "clock" in schedule.needs else None,
        )
        scene.edit(OWN_PART)
        yield scene
