"""A training job: a script with its arguments, as `python SCRIPT ARGS` would run it."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from gemini_lab.errors import ConfigError, kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every worker runs.

    Attributes:
        script: Path of a Python file, or the name of a module if `module`.
        args: Its arguments.
        module: Run it as `python -m` does.
        name: What the run is called; by default after the script.
        cwd: Working directory of the workers.
        env: Environment variables for the workers, beside the inherited ones; not shown.
        passes_local_rank: Give the script `--local_rank=N` as `deepspeed` does, also where its
            source does not ask for that.
    """

    script: str
    args: Sequence[str] = ()
    module: bool = False
    name: str = ""
    cwd: str = field(default_factory=os.getcwd)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    passes_local_rank: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "cwd", str(self.cwd))

    def check(self) -> None:
        """Refuse a job that cannot start.

        Raises:
            ConfigError: The script or module is not there.
        """
        if self.module:
            if find_module(self.script, cwd=self.cwd) is None:
                raise ConfigError(
                    f"there is no module {self.script!r} to run, neither in {self.cwd} nor "
                    "installed; check its name, or the folder"
                )
        elif not (Path(self.cwd) / self.script).is_file():
            raise ConfigError(f"there is no script {self.script!r} in {self.cwd}; check the path")

    @property
    def title(self) -> str:
        """The name, or one made from the script's."""
        file = self.script.rpartition(".")[2] if self.module else Path(self.script).stem
        return self.name or file


def job_of(job: object) -> Job:
    """A job, or that of a script of which only the path is given.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(job, str | Path):
        return Job(script=str(job))
    if not isinstance(job, Job):
        raise ConfigError(
            "what is to run has to be a Job or a script's path, and this is "
            f'{kind_of(job)}; make one: Job(script="train.py")'
        )
    return job


def find_module(name: str, *, cwd: str) -> ModuleSpec | None:
    """Where `python -m name` would find its module when it is run in `cwd`; imports nothing."""
    path: Sequence[str] | None = [cwd, *sys.path]
    *packages, last = name.split(".")
    for package in packages:
        spec = PathFinder.find_spec(package, path)
        if spec is None or spec.submodule_search_locations is None:
            return None
        path = list(spec.submodule_search_locations)
    spec = PathFinder.find_spec(last, path)
    if spec is None or spec.submodule_search_locations is None:
        return spec
    return PathFinder.find_spec("__main__", list(spec.submodule_search_locations))
