"""Machines of a Slurm cluster: one job a machine, so that the loss of one ends no other."""

import shlex
import subprocess
from collections.abc import Mapping
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError, LaunchError, MissingError
from gemini_lab.job import python_command
from gemini_lab.launch.provider import Fleet, Invitation

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
        """The lab's jobs: those that run, by their ids, and how many wait."""
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
    """What one of Slurm's programs prints.

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
