"""The contract of a batch system or a cloud that brings machines: two verbs and a question.

A provider has `gemini-lab node` run on machines that it asks for. How many it is to ask for is
decided here, from what it has and from who has joined. `Slurm` and `AutoScaling`, at the end, come
with the package.
"""

import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from gemini_lab.errors import CapacityError, ConfigError, LaunchError, MissingError
from gemini_lab.job import python_command
from gemini_lab.launch.boot import agent_environment
from gemini_lab.node.etcd_address import EtcdAddress

TOKEN_VARIABLE: Final = "GEMINI_LAB_TOKEN"  # noqa: S105 (where one is, not one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The data that a machine needs to join a lab.

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
        """The arguments of `gemini-lab` on the machine; no secret is in them."""
        return ("node", "--lab", self.lab, "--etcd", ",".join(self.etcd.endpoints))

    def environment(self) -> dict[str, str]:
        """Return the command's variables, secrets too, beside those of this process."""
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
    """A provider's machines for a lab at one moment.

    Attributes:
        running: The ids of machines that run; a node says its own when it joins (`--machine`).
        promised: How many more were asked for and do not run yet.
    """

    running: frozenset[str] = frozenset()
    promised: int = 0


class Provider(Protocol):
    """Brings machines on which nodes join a lab by themselves.

    It remembers nothing, for a lab's next owner asks the same things on another machine: what is
    there is asked of the machines' owner.

    Every call may raise `LaunchError`: it did not answer, or refused, and says why.
    """

    def fleet(self, lab: Invitation) -> Fleet:
        """Return its machines for this lab now."""

    def ask(self, lab: Invitation, count: int) -> None:
        """Ask for `count` more machines for the lab; do not wait for them.

        Raises:
            CapacityError: It cannot have so many.
        """

    def give_back(self, lab: Invitation) -> None:
        """Give back all machines of a lab that has ended, and those still to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedNodes:
    """The nodes that have joined a lab, by their names."""

    machine_of: Mapping[str, str]  # the machine that took each name, be it up, not yet, or no more
    up: Collection[str]  # the names of nodes that are registered now
    known: Collection[str]  # those that were handed to the lab before

    @property
    def arrived(self) -> set[str]:
        """Machines that have a node which is up, or had one that the lab knew: none is to come."""
        done = {*self.up, *self.known}
        return {machine for name, machine in self.machine_of.items() if name in done}


def missing(count: int, fleet: Fleet, joined: JoinedNodes) -> int:
    """Return how many machines to ask for, beside those on their way, for `count` new nodes.

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

    def order(self, count: int, joined: JoinedNodes) -> None:
        """Ask for the machines that `count` new nodes still need.

        Raises:
            CapacityError: The provider cannot have so many.
            LaunchError: It did not answer, or refused.
        """
        if short := missing(count, self.provider.fleet(self.lab), joined):
            self.provider.ask(self.lab, short)

    def check(self, count: int, joined: JoinedNodes) -> None:
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


# -- Slurm and Auto Scaling groups -----------------------------------------------------------------


WORDS: Final = "'slurm [SBATCH OPTIONS]' or 'auto-scaling GROUP [REGION]'"


ANSWER_S: Final = 60.0
OURS: Final = ("-a", "--array", "-J", "--job-name", "-N", "--nodes", "-n", "--ntasks", "--wrap")
"""Options of sbatch that are decided here: a job is one machine, and is found by its name."""
WAITS: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
RUNS: Final = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED"})


class Slurm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="slurm"):
    """Asks slurmctld for machines, with `sbatch`; implements `Provider`.

    Attributes:
        options: Of `sbatch`, such as `--partition=gpu` and `--time=8:00:00`.

    Raises:
        ConfigError: An option would change what a job of a lab is.
    """

    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in self.options:
            name = option.partition("=")[0]
            short = name[:2] if not name.startswith("--") else name
            if short in OURS:
                raise ConfigError(
                    f"{option!r} cannot be an option of a lab's Slurm jobs: each is one machine, "
                    "and is found by its name; say what a machine has to have, such as "
                    "--partition, --gres or --time, and leave the number to --nodes and --standbys"
                )

    def fleet(self, lab: Invitation) -> Fleet:
        """Return the lab's jobs: those that run, by their ids, and how many wait."""
        listed = ["squeue", "--me", f"--name={_job(lab)}", "--noheader", "--array"]
        lines = [line.split() for line in _answer([*listed, "--format=%T %A"]).splitlines()]
        return Fleet(
            running=frozenset(job for state, job in lines if state in RUNS),
            promised=sum(state in WAITS for state, _ in lines),
        )

    def ask(self, lab: Invitation, count: int) -> None:
        """Submit `count` jobs, as one array.

        They inherit the environment, with the token in it, as every job of Slurm does: its
        administrators can read that.
        """
        shape = (f"--array=1-{count}", "--nodes=1", "--ntasks=1", f"--job-name={_job(lab)}")
        script = shlex.join(python_command("gemini_lab.cli.main", *lab.command))
        _answer(
            ["sbatch", "--parsable", "--no-requeue", *shape, *self.options],
            given=f"#!/bin/sh\nexec {script}\n",
            environment=lab.environment(),
        )

    def give_back(self, lab: Invitation) -> None:
        """Cancel all jobs of the lab."""
        _answer(["scancel", "--quiet", "--me", f"--name={_job(lab)}"])


def _job(lab: Invitation) -> str:
    return f"gemini-lab-{lab.lab}-{lab.identity}"


def _answer(
    command: list[str], *, given: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Return what one of Slurm's programs prints.

    Raises:
        LaunchError: It is not there, did not answer, or refused.
    """
    told = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            input=given,
            env=environment,
            text=True,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise MissingError(
            f"there is no {command[0]} on the PATH of this machine; start the lab where Slurm's "
            "commands are: on a login node, or inside a job"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"`{told}` did not answer within {ANSWER_S:.0f} s; check `scontrol ping`"
        ) from error
    if done.returncode:
        said = done.stderr.strip()
        raise LaunchError(f"`{told}` failed: {said}; try it by hand")
    return done.stdout


STAYS: Final = ("Pending", "InService")  # also "Pending:Wait" and such, of hooks


class AutoScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="auto-scaling"):
    """Sets the capacity of an Auto Scaling group that serves one lab; implements `Provider`.

    The group's launch template starts `gemini-lab node`, and tells it the instance's id.

    Attributes:
        group: The group's name.
        region: Where it is; `None`: as boto3 finds it, in `AWS_REGION` or its files.
    """

    group: str
    region: str | None = None

    def fleet(self, lab: Invitation) -> Fleet:
        """Return the group's healthy instances, and what its desired capacity still lacks."""
        del lab
        found = self._look()
        there = [one for one in found["Instances"] if one["LifecycleState"].startswith(STAYS)]
        running = frozenset(one["InstanceId"] for one in there if one["HealthStatus"] == "Healthy")
        return Fleet(running=running, promised=max(0, found["DesiredCapacity"] - len(there)))

    def ask(self, lab: Invitation, count: int) -> None:
        """Raise the desired capacity by `count`.

        Raises:
            CapacityError: It would be above the group's maximum.
        """
        del lab
        found = self._look()
        wanted, most = found["DesiredCapacity"] + count, found["MaxSize"]
        if wanted > most:
            raise CapacityError(
                f"{count} more machines would make {wanted} in the Auto Scaling group "
                f"{self.group!r}, whose maximum is {most}; raise it: `aws autoscaling "
                f"update-auto-scaling-group --auto-scaling-group-name {self.group} "
                f"--max-size {wanted}`, or ask for fewer nodes and standbys"
            )
        self._desire(wanted)

    def give_back(self, lab: Invitation) -> None:
        """Set the desired capacity to the group's minimum."""
        del lab
        self._desire(self._look()["MinSize"])

    def _look(self) -> dict[str, Any]:
        answer = self._call(
            lambda client: client.describe_auto_scaling_groups(AutoScalingGroupNames=[self.group])
        )
        if not answer["AutoScalingGroups"]:
            where = self.region or "boto3's default region"
            raise ConfigError(
                f"there is no Auto Scaling group {self.group!r} in {where}; check its name and "
                "region: `aws autoscaling describe-auto-scaling-groups`"
            )
        found: dict[str, Any] = answer["AutoScalingGroups"][0]
        return found

    def _desire(self, capacity: int) -> None:
        self._call(
            lambda client: client.set_desired_capacity(
                AutoScalingGroupName=self.group, DesiredCapacity=capacity, HonorCooldown=False
            )
        )

    def _call(self, act: Callable[[Any], Any]) -> Any:
        try:
            import boto3  # noqa: PLC0415  (an extra)
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "an Auto Scaling group needs boto3, which is not installed; "
                "`pip install 'gemini-lab[ec2]'`"
            ) from error
        try:
            return act(boto3.client("autoscaling", region_name=self.region))
        except (BotoCoreError, ClientError) as error:
            raise LaunchError(
                f"EC2 did not do what was asked of the Auto Scaling group {self.group!r}: {error}; "
                "check region, credentials and their rights with `aws autoscaling "
                "describe-auto-scaling-groups`"
            ) from error


def parse_provider(text: str) -> Slurm | AutoScaling:
    """Return the provider that words such as `slurm --partition=gpu` name.

    Raises:
        ConfigError: They name none, or one that cannot be.
    """
    try:
        match shlex.split(text):
            case ["slurm", *options]:
                return Slurm(tuple(options))
            case ["auto-scaling", group]:
                return AutoScaling(group)
            case ["auto-scaling", group, region]:
                return AutoScaling(group, region)
    except ValueError as error:  # an open quote
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(f"cannot read the provider {text!r}; write {WORDS}")
