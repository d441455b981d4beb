"""The program that `mpiexec` runs on every node: it starts an agent that outlives MPI.

MPI knows how to reach the nodes (ssh, Slurm and other schedulers) and lets them find one another.
But a launcher ends the whole job when a machine dies, so the agents, whose memory must survive
that, leave the MPI job: they start in a session of their own, and MPI is finalised.

Rank 0 takes a `BootOrder` (`mpi_order`) and prints the agents' answers as one line of JSON.
Open MPI encrypts nothing, and the configurations have the lab's secrets in them: so each rank makes
a key pair and tells rank 0 the public one, and what comes back only that rank can open.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from nacl.public import PrivateKey, PublicKey, SealedBox

from gemini_lab.display import last_lines
from gemini_lab.errors import LaunchError
from gemini_lab.job import python_command
from gemini_lab.launch.mpi_order import HOME_LENT, take_order
from gemini_lab.limits import read_end
from gemini_lab.node.locked_tempdir import MPI_FILES, MPI_SHARED, LockedTempdir
from gemini_lab.node.processes import AGENT, reap
from gemini_lab.node.start_config import (
    AgentConfig,
    AgentDown,
    AgentUp,
    BootOrder,
    SharedMachine,
    why_blind,
)
from gemini_lab.node.this_machine import machine_identity
from gemini_lab.units import MIB

READY_S: Final = 60.0
END_S: Final = 5.0
POLL_S: Final = 0.01
MOST_BYTES: Final = 16 * MIB  # of a message: an order has some KiB for each rank
MESSAGE_S: Final = 2 * READY_S  # for another rank to say something; its agent may take READY_S


def start_agent(config: AgentConfig, log_folder: str) -> AgentUp | AgentDown:
    """Start one agent; returns its answer."""
    if (reason := why_blind(config.lab.detached)) is not None:
        return AgentDown(error=reason)
    log = Path(log_folder) / f"{config.name}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        output: Any = log.open("ab")
        begin = output.tell()
    except OSError:
        output, begin = subprocess.DEVNULL, 0  # a node that does not see the lab's folder
    lab = [config.prefix, *([config.lab.detached.identity] if config.lab.detached else [])]
    agent = subprocess.Popen(
        python_command(AGENT, *lab),  # the lab, by which `processes_of` finds it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=output,
        env=agent_environment(config.lab.threads),
        start_new_session=True,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(msgspec.json.encode(config) + b"\n")
    agent.stdin.close()
    timer = threading.Timer(READY_S, agent.kill)
    timer.start()
    started_s = time.monotonic()
    up = _answer(agent.stdout)
    timer.cancel()
    if up is not None:
        reap(agent)
        return up
    is_late = time.monotonic() - started_s >= READY_S
    if is_late:
        reap(agent)
        end = f"was not ready within {READY_S:.0f} s"
    else:
        end = f"ended before it was ready (exit status {agent.wait(END_S)})"
    return AgentDown(error=f"{config.name}'s agent {end}{_said_in(log, begin)}")


def _answer(said: IO[bytes]) -> AgentUp | None:
    """Return an agent's answer; libraries may greet on standard output before."""
    for line in said:
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(line, type=AgentUp)
    return None


def _said_in(log: Path, begin: int) -> str:
    """Return the last lines of an agent's log from a place on, and where more are."""
    try:
        lines = read_end(log, begin).splitlines()
    except OSError as error:
        return f"; its log {log} cannot be read ({error.strerror})"
    said = "".join(f"\n  | {line}" for line in last_lines(lines))
    return f"; it said last, in {log}:{said}" if said else f", and said nothing in {log}"


def agent_environment(threads: int | None) -> dict[str, str]:
    """Return this environment without the launcher's variables, which would mislead workers.

    Args:
        threads: For each worker's computations, unless the user has set OMP_NUM_THREADS.
    """
    foreign = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPIR_", "SLURM_")
    lent = {HOME_LENT, "HOME"} if HOME_LENT in os.environ else set()
    kept = {
        k: v
        for k, v in os.environ.items()
        if k not in lent and (not k.startswith(foreign) or k == "SLURM_CONF")
    }  # where Slurm is, for an owner that asks it for machines
    if threads is not None:
        kept.setdefault("OMP_NUM_THREADS", str(threads))
    # Without this, asking whether CUDA is there would spoil the processes that are forked later.
    return {**kept, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class Ranks:
    """All ranks of an MPI program, which send bytes to one another.

    Anybody who reaches MPI's ports may send to them, so nothing that comes is unpickled, as mpi4py
    does with what its lower-case calls bring.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.size = int(self._world.rank), int(self._world.size)
        self._sent: list[Any] = []

    def send(self, data: bytes, *, to: int) -> None:
        """Send bytes to a rank; `finish` waits until they have gone."""
        self._sent.append(self._world.Isend(data, dest=to))

    def receive(self, source: int) -> bytes:
        """Wait for what a rank sends.

        Raises:
            LaunchError: It is more than anything that is said here.
            TimeoutError: Nothing came.
        """
        status = self._mpi.Status()
        message = wait_asleep(lambda: self._world.Improbe(source=source, status=status))
        count = status.Get_count(self._mpi.BYTE)
        if not 0 <= count <= MOST_BYTES:
            raise LaunchError(
                f"rank {source} of MPI sent {count:,} bytes, and at most {MOST_BYTES:,} are taken; "
                "somebody else may talk to MPI's ports"
            )
        room = bytearray(count)
        request = message.Irecv([room, self._mpi.BYTE])
        wait_asleep(lambda: request.Test() or None)
        return bytes(room)

    def finish(self) -> None:
        for request in self._sent:
            wait_asleep(lambda request=request: request.Test() or None)  # type: ignore[misc]


@contextmanager
def mpi_world() -> Iterator[Ranks]:
    """Give all ranks, until the block ends; what those of a machine share goes with them."""
    files = LockedTempdir(MPI_FILES)  # one that is killed leaves its own to the next
    try:
        if folder := files.make():
            os.environ.setdefault(MPI_SHARED, folder)
        from mpi4py import MPI  # noqa: PLC0415  (its import initialises MPI)

        ranks = Ranks(MPI)
        yield ranks
        ranks.finish()
        MPI.Finalize()
    finally:
        files.close()


def wait_asleep(look: Callable[[], Any]) -> Any:
    """Return what `look` finds in MPI, once it finds something; between two looks, sleep.

    Open MPI's own waits keep a processor busy; on a small machine they have starved the very
    agents that were waited for, for a minute.

    Raises:
        TimeoutError: Nothing came: a rank is gone, and the launcher has not noticed.
    """
    give_up_s = time.monotonic() + MESSAGE_S
    while time.monotonic() < give_up_s:
        if (found := look()) is not None:
            return found
        time.sleep(POLL_S)
    raise TimeoutError(f"another machine's MPI process said nothing for {MESSAGE_S:.0f} s")


def hand_out(world: Ranks, parts: Callable[[list[str]], Sequence[bytes]] | None) -> bytes:
    """Send each rank its own part, sealed for it alone; return this rank's.

    On rank 0, `parts` makes each rank's part, given the machines of the ranks.
    """
    own_key = PrivateKey.generate()
    world.send(bytes(own_key.public_key) + machine_identity().encode(), to=0)
    if parts is not None:
        said = [world.receive(rank) for rank in range(world.size)]
        machines = [message[PublicKey.SIZE :].decode() for message in said]
        for rank, part in enumerate(parts(machines)):
            box = SealedBox(PublicKey(said[rank][: PublicKey.SIZE]))
            world.send(box.encrypt(part), to=rank)
    return SealedBox(own_key).decrypt(world.receive(0))


def parts_of(order: BootOrder, shared: SharedMachine | None = None) -> list[bytes]:
    """Return each rank's part of the order: its own configuration, or nothing to start."""
    return [
        msgspec.json.encode(
            BootOrder(agents=[] if shared else [config], log_folder=order.log_folder)
        )
        for config in order.agents
    ]


def shared_machine(
    hosts: Sequence[str], machines: Sequence[str], taken: Mapping[str, str]
) -> SharedMachine | None:
    """Return hosts that are one machine under several names, if any are.

    `taken` maps machines with an agent to the host names by which these were started.
    """
    names: dict[str, list[str]] = {machine: [name] for machine, name in taken.items()}
    for name, machine in zip(hosts, machines, strict=False):
        known = names.setdefault(machine, [])
        if name not in known:
            known.append(name)
    found = (SharedMachine(hosts=called) for called in names.values() if len(called) > 1)
    return next(found, None)


def main() -> None:
    """Start this rank's agent; rank 0 hands out the configurations and gathers the answers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also where the launcher was killed
    with mpi_world() as world:
        start_all(world)


def start_all(world: Ranks) -> None:
    """Start the agents of all ranks of an MPI world, each its own."""
    is_first = world.rank == 0
    answers: list[AgentUp | AgentDown | SharedMachine] = []
    parts = None
    if is_first:
        order = msgspec.json.decode(take_order(), type=BootOrder)

        def parts(machines: list[str]) -> list[bytes]:
            shared = shared_machine(order.hosts, machines, order.taken)
            answers.extend([] if shared is None else [shared])
            return parts_of(order, shared)

    own = msgspec.json.decode(hand_out(world, parts), type=BootOrder)
    for one in own.agents:
        world.send(msgspec.json.encode(start_agent(one, own.log_folder)), to=0)
    if is_first:
        said = map(world.receive, range(world.size if own.agents else 0))
        answers += [msgspec.json.decode(one, type=AgentUp | AgentDown) for one in said]
        sys.stdout.write(msgspec.json.encode(answers).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
