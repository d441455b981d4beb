"""Runs that outlive whoever looks at them, from Python: start one, or attach to one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.lab.config import LabOptions, config_of
from gemini_lab.lab.detached import start_detached
from gemini_lab.lab.run_locator import Finder
from gemini_lab.lab.submission import Submission
from gemini_lab.log.file import LATEST, RUNS_FOLDER
from gemini_lab.settings import SettingValue


def attach(
    run: str | Path = LATEST,
    *,
    folder: str | Path = RUNS_FOLDER,
    etcd: str | None = None,
    token_file: str | Path | None = None,
) -> AttachedRun:
    """Follow a run that somebody else owns, and tell it what to do; leaving it leaves it alone.

    Args:
        run: Its folder or name, or `"latest"`; with `etcd`, its lab's name there.
        folder: Where runs keep their folders.
        etcd: `host:port[,host:port...]` of the one that knows it, from machines that do not see its
            folder.
        token_file: Where its token stands; by default `GEMINI_LAB_TOKEN` has it.

    Raises:
        ConfigError: No such run is seen here, it is over, or there is no token.
    """
    secret = None if token_file is None else Path(token_file)
    finder = Finder.of(str(run), below=Path(folder), store=etcd, token_file=secret)
    finder.check()
    return AttachedRun(finder.name, finder.way, finder.folder).start()


def train_detached(
    job: Job,
    *,
    scenario: Scenario | None = None,
    name: str | None = None,
    resume: bool = False,
    settings: Mapping[str, SettingValue] | None = None,
    **lab: Unpack[LabOptions],
) -> AttachedRun:
    """Start nodes and a job that need nobody from then on, and attach to the run.

    The nodes end with their run. A kernel that ends, or this machine, leaves it alone, so there is
    no lab to hold on to.

    Args:
        job: What to run.
        scenario: Failures to inject on the way.
        name: The run's folder; by default the time and the job's name.
        resume: Go on from what another run left in the persistent tier.
        settings: They replace those in the script's `"gemini"` block.
        lab: As for `Lab`. On several hosts, `etcd` and a `folder` that all of them see.

    Raises:
        ConfigError: Something that was asked for is impossible, or could not outlive this process.
        LaunchError: etcd, MPI or an agent could not be started.
        CapacityError: Agents that were to join did not come in time.
    """
    config = config_of(lab)
    wanted = Submission.checked(
        config, job, scenario=scenario, name=name, resume=resume, settings=settings or {}
    )
    return attach(start_detached(config, wanted))
