"""A training job: a script with its arguments, as `python SCRIPT ARGS` would run it."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemini_lab.errors import ConfigError


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
    """

    script: str
    args: Sequence[str] = ()
    module: bool = False
    name: str = ""
    cwd: str = field(default_factory=os.getcwd)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "cwd", str(self.cwd))

    def check(self) -> None:
        """Refuse a job that cannot start.

        Raises:
            ConfigError: The script or module is not there.
        """
        if self.module:
            if importlib.util.find_spec(self.script) is None:
                raise ConfigError(f"there is no module {self.script!r} to run; check its name")
        elif not (Path(self.cwd) / self.script).is_file():
            raise ConfigError(f"there is no script {self.script!r} in {self.cwd}; check the path")

    @property
    def title(self) -> str:
        """The name, or one made from the script's."""
        file = self.script.rpartition(".")[2] if self.module else Path(self.script).stem
        return self.name or file
