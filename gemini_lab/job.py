"""A training job: a script with its arguments, as `python SCRIPT ARGS` would run it."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        env: Environment variables for the workers, beside the inherited ones.
    """

    script: str
    args: Sequence[str] = ()
    module: bool = False
    name: str = ""
    cwd: str = field(default_factory=os.getcwd)
    env: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Return if the job can start.

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

    def to_json(self) -> dict[str, Any]:
        """The job as plain JSON values."""
        return {
            "script": self.script, "args": list(self.args), "module": self.module,
            "name": self.title, "cwd": str(self.cwd), "env": dict(self.env),
        }  # fmt: skip
