"""A training job: a script with its arguments, as `python SCRIPT ARGS` would run it."""

import os
import platform
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER
from numbers import Real
from pathlib import Path
from typing import Final
from zipfile import is_zipfile

from gemini_lab.errors import ConfigError, kind_of, shortened, shown
from gemini_lab.limits import MOST_CHARACTERS, read_bytes, require_text, require_utf8

LONGEST_WORD: Final = 60
"""With the time before it, it is a name that a store takes, which are 100 characters."""
HASH_SEED: Final = "PYTHONHASHSEED"
"""The variable that settles, as an interpreter starts, in which order its sets of texts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job that every worker runs.

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
        if not isinstance(self.script, str | Path):
            raise ConfigError(f"script= is {kind_of(self.script)}; give a path, or a module's name")
        if not isinstance(self.env, Mapping):
            raise ConfigError(f'env= is {kind_of(self.env)}; give a dict such as {{"NAME": "1"}}')
        if isinstance(self.args, str):
            raise ConfigError(
                f"args={self.args!r} is one text; give a list of words, such as {self.args.split()}"
            )
        for name in ("script", "name", "cwd"):
            value = getattr(self, name)
            require_text(f"{name}=", str(value) if isinstance(value, Path) else value)
            object.__setattr__(self, name, str(value))
        object.__setattr__(self, "args", tuple(map(_word, self.args or ())))
        for name in self.env:
            require_text("a variable's name", name)
            if not name or "=" in name:
                raise ConfigError(f"env= names {shown(name)}; a variable's name has no '='")
        object.__setattr__(self, "env", {name: _word(value) for name, value in self.env.items()})
        hash_seed_in(self.env)
        for word in (*self.args, *self.env.values()):
            require_utf8("an argument or a variable of the script,", word)

    def check(self) -> None:
        """Refuse a job that cannot start.

        Raises:
            ConfigError: The script or module is not there, cannot be read, or is no Python.
        """
        if self.module:
            spec = find_module(self.script, cwd=self.cwd)
            if spec is None:
                raise ConfigError(
                    f"there is no module {shown(self.script)} to run, neither in "
                    f"{shortened(self.cwd)} nor installed; check its name, or the folder"
                )
            file = Path(spec.origin or "")
            if file.suffix == ".py":
                _require_python(file)
        else:
            file = Path(self.cwd) / self.script
            if not _is_file(file):
                raise ConfigError(
                    f"there is no script {shown(self.script)} in {shortened(self.cwd)}; check the "
                    "path"
                )
            _require_python(file)

    @property
    def title(self) -> str:
        """The name, or one made from the script's."""
        file = self.script.rpartition(".")[2] if self.module else Path(self.script).stem
        return self.name or file

    @property
    def word(self) -> str:
        """The title in a few characters that every folder, store and shell takes as they are."""
        return re.sub(r"[^\w.-]+", "-", self.title, flags=re.ASCII)[:LONGEST_WORD].strip("-.")


def job_of(job: object) -> Job:
    """Return a job as it is, or make one of a script's path.

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


def hash_seed_in(environment: Mapping[str, str]) -> int | None:
    """Return the hash seed that a person chose; `None` where nobody did, or it is to be drawn.

    Raises:
        ConfigError: Python would not start with it.
    """
    said = environment.get(HASH_SEED) or "random"
    if said == "random":
        return None
    if not said.isascii() or not said.isdigit() or len(said) > 10 or int(said) >= 2**32:
        raise ConfigError(
            f"{HASH_SEED}={said[:40]!r} is no seed with which Python starts; give a number from 0 "
            "to 4294967295, or leave it out"
        )
    return int(said)


def find_module(name: str, *, cwd: str) -> ModuleSpec | None:
    """Find the module that `python -m name` would run in `cwd`; import nothing."""
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


def python_command(module: str, *words: object) -> list[str]:
    """Return the command that runs a module whatever files lie in the working folder.

    Without `-P` a user's `secrets.py` there would take the place of Python's own. A worker adds the
    script's folder for the script alone; `PYTHONSAFEPATH` would reach what the script starts, too.
    """
    return [sys.executable, "-Pm", module, *map(str, words)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no system has a path of such a length
        return False


def _word(argument: object) -> str:
    """Return a script's argument as a word of its command line.

    Raises:
        ConfigError: It is no text, number or path.
    """
    if isinstance(argument, str | Real | Path):
        word = str(argument) if not isinstance(argument, int) else shown(argument)
        if "\0" in word or len(word) > MOST_CHARACTERS:
            raise ConfigError(
                f"a script's arguments and variables have {MOST_CHARACTERS:,} characters at most, "
                f"and none is NUL, as on a command line (one has {len(word):,})"
            )
        return word
    raise ConfigError(
        "a script's arguments and variables are texts, numbers and paths, and one is "
        f"{kind_of(argument)}; write it as the command line would"
    )


def _require_python(file: Path) -> None:
    """Refuse a script that Python cannot read: each worker would find that out, in each try.

    Raises:
        ConfigError: It cannot.
    """
    try:
        if is_zipfile(file):  # Python runs these, too, and they may be large
            return
        source = read_bytes(file)
    except OSError as error:
        raise ConfigError(
            f"the script {file} cannot be read: {error.strerror}; mend its permissions, or name "
            "another one"
        ) from error
    if source.startswith(MAGIC_NUMBER):  # compiled
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are said where it runs
            compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        raise ConfigError(
            f"Python {platform.python_version()} cannot read the script {file}{where}: "
            f"{getattr(error, 'msg', error)}; correct it there"
        ) from error
