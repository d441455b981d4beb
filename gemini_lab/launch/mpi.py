"""Starting agents on this machine or on many, through `mpiexec`."""

import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError, LaunchError, MissingError, shortened, shown
from gemini_lab.job import python_command
from gemini_lab.launch.mpi_order import HOME_LENT, run_with_order
from gemini_lab.limits import read_file, require_text
from gemini_lab.node.locked_tempdir import MPI_FILES, LockedTempdir
from gemini_lab.node.start_config import (
    AgentConfig,
    AgentDown,
    AgentUp,
    BootOrder,
    SharedMachine,
)

LAUNCH_S: Final = 120.0
BOOT: Final = "gemini_lab.launch.boot"
LONGEST_HOST: Final = 253
"""Characters of a host's name, as DNS has it."""
_SLOTS: Final = re.compile("[0-9]{1,6}")
UNKNOWN_HOST: Final = re.compile("Could not resolve hostname .*: (Name|No address|nodename)")
"""ssh's error for an unknown host; it says "Temporary failure" if that may pass."""


def find_mpiexec() -> str:
    """Return the `mpiexec` beside this Python, else the one on the PATH.

    Raises:
        MissingError: There is none.
    """
    return find_program(
        "mpiexec",
        "install one with `pip install 'gemini-lab[embedded]'`, or load your site's MPI module",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Machines that agents may start on; without any, all start on this one."""

    # Host names, one for each agent that can be placed; spare ones are for standbys. Twice the same
    # name asks for two agents on one machine, which can then be lost together.
    names: tuple[str, ...] = ()
    # How many workers a host has room for, where a hostfile says so.
    slots: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_file(cls, path: str | Path) -> "Hosts":
        """Return the hosts in a hostfile: `host`, `host slots=8` or `host:8` a line.

        A line is a machine, and gets one agent. Its slots are processors or GPUs: room for workers,
        not for replicas.

        Raises:
            ConfigError: The file cannot be read, names no host, or has a line that is no host.
        """
        told = shortened(str(path), LONGEST_HOST)
        try:
            lines = read_file(Path(path)).splitlines()
        except OSError as error:
            raise ConfigError(
                f"cannot read the hostfile {told}: {error.strerror}; name a file with a host in "
                "each line, or the hosts themselves (--hosts, hosts=[...])"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"the hostfile {told} is no text ({error}); it has a host's name on each line"
            ) from error
        return cls.read(lines, said_in=f"the hostfile {told}")

    @classmethod
    def read(cls, lines: Sequence[str], *, said_in: str = "hosts=") -> "Hosts":
        """Return the same of lines, or of names, that stand elsewhere.

        Raises:
            ConfigError: None of them names a host, or one is no host.
        """
        names: list[str] = []
        room: dict[str, int] = {}
        for line in lines:
            name, *options = line.partition("#")[0].split() or [""]
            if (counted := name.partition(":"))[2].isdecimal():  # MPICH's and Intel MPI's `host:8`
                name, options = counted[0], [f"slots={counted[2]}", *options]
            slots = [o.removeprefix("slots=") for o in options if o.startswith("slots=")]
            if any("=" not in o for o in options) or not all(map(_SLOTS.fullmatch, slots)):
                raise ConfigError(
                    f"cannot read {shown(line)} in {said_in}; write `host`, `host slots=8` or "
                    "`host:8`"
                )
            if name:
                require_text("a host's name", name, most=LONGEST_HOST)
                names.append(name)
            if slots:
                room[name] = room.get(name, 0) + int(slots[0])
        if not names:
            raise ConfigError(f"{said_in} names no host; name one for each machine")
        return cls(names=tuple(names), slots=room)

    def without_room(self, workers: int) -> list[str]:
        """Return hosts that are said to have fewer slots than their agents would start workers."""
        return [
            name for name, slots in self.slots.items() if self.names.count(name) * workers > slots
        ]


def mpi_environment(folder: str = "") -> dict[str, str]:
    """Return Open MPI's settings for several agents on a small machine, also as root.

    Args:
        folder: For `mpiexec`'s own files on this machine; by default they are in /tmp.
    """
    environment = dict(os.environ)
    if folder:
        environment["PRTE_MCA_prte_local_tmpdir_base"] = folder
    if "HOME" not in environment:
        environment |= {"HOME": _home() or folder or "/", HOME_LENT: "1"}
    # "slot" is said though it is the default: without it all agents go to the first host.
    environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe")
    if "SLURM_JOB_ID" in environment:
        # Slurm ends what a finished step leaves behind, agents too; by ssh they belong to the job.
        environment.setdefault("PRTE_MCA_plm", "ssh")
    if os.geteuid() == 0:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            environment[name] = environment[f"{name}_CONFIRM"] = "1"
    return environment


def _home() -> str:
    """Return this user's folder; empty if the system does not know the user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def mpi_command(program: str, count: int, hosts: Sequence[str]) -> list[str]:
    """Return the command that runs a module in `count` places, on `hosts` if there are any."""
    where: list[str] = []
    if hosts:
        where = ["--host", ",".join(f"{h}:{hosts.count(h)}" for h in dict.fromkeys(hosts))]
    return [find_mpiexec(), "-n", str(count), *where, *python_command(program)]


def run_on_hosts(program: str, count: int, hosts: Sequence[str], order: str) -> str:
    """Return the line, a list in JSON, that rank 0 of a module of ours prints for an `order`.

    Raises:
        MissingError: There is no `mpiexec`, or ssh does not know one of the hosts.
        LaunchError: MPI or the program failed; the message has what they said.
    """
    where = ", ".join(hosts) or "this machine"
    command = mpi_command(program, count, hosts)
    files = LockedTempdir(MPI_FILES)  # an `mpiexec` that is killed leaves its own
    try:
        environment = mpi_environment(files.make())
        told = run_with_order(command, order, env=environment, limit_s=LAUNCH_S)
    finally:
        files.close()
    if told.answer is not None:
        return told.answer
    said = told.text.strip()[-2000:]
    if told.is_late:
        advice = "try `ssh HOST true` by hand for each" if hosts else "try it by hand"
        raise LaunchError(
            f"mpiexec did not start {program} in {count} places within {LAUNCH_S:.0f} s on "
            f"{where}; {advice}" + (f"; it said so far:\n{said}" if said else "")
        )
    kind = MissingError if UNKNOWN_HOST.search(said) else LaunchError
    raise kind(
        f"mpiexec could not start {program} in {count} places on {where} (exit status {told.code})"
        + (f":\n{said}" if said else ", and said nothing")
    )


def launch_agents(
    configs: Sequence[AgentConfig],  # of the agents
    *,
    hosts: Sequence[str],  # one for each, or none: this machine
    # The machines that have an agent already, and how their hosts were called.
    taken: Mapping[str, str],
    log_folder: Path,  # where their logs go
) -> list[AgentUp]:
    """Start an agent for each configuration, and return when all are up.

    Returns:
        What each agent answered.

    Raises:
        ConfigError: Two of the hosts are one machine; no agent was started.
        LaunchError: MPI or an agent failed; the message has what they said.
    """
    order = BootOrder(
        agents=list(configs),
        log_folder=str(log_folder),
        hosts=[host for host in dict.fromkeys(hosts) for _ in range(hosts.count(host))],
        taken=dict(taken),
    )
    line = run_on_hosts(BOOT, len(configs), hosts, msgspec.json.encode(order).decode())
    answers = msgspec.json.decode(line, type=list[AgentUp | AgentDown | SharedMachine])
    for answer in answers:
        if isinstance(answer, SharedMachine):
            raise ConfigError(
                f"{' and '.join(answer.hosts)} are one machine, and a shard's replicas would be "
                "lost together with it; name another machine, or, if two nodes on one machine are "
                f"meant, write {answer.hosts[0]} for both"
            )
    errors = [answer.error for answer in answers if isinstance(answer, AgentDown)]
    if errors:
        raise LaunchError("; ".join(errors))
    return [answer for answer in answers if isinstance(answer, AgentUp)]


def find_program(name: str, way_out: str) -> str:
    """Return the program `name` beside this Python, else the one on the PATH.

    Raises:
        MissingError: There is none; `way_out` says what to do then.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise MissingError(f"no {name} was found next to this Python or on the PATH; {way_out}")
    return found
