"""`%gemini` and `%%gemini`: the lab of a notebook in a few words, after `%load_ext gemini_lab`.

    %gemini status            the run, or the lab          lab.run
    %gemini fail KIND PLACE   break something now          lab.run.inject(NodeLoss("node-2"))
    %gemini controls          buttons                      lab.controls()
    %gemini dash              the dashboard                lab.dashboard()
    %gemini report            what the run did so far      lab.run.report()
    %gemini stop              end the run                  lab.run.stop()

    %%gemini --nodes 4 --replicas 2 --name mine            lab.train(Job(script=...), replicas=2)
    (a training script)

`%%gemini` starts the cell's text on the nodes and returns at once; where no lab is open it makes
one. It leaves `lab` and `run` behind. What stands on the right does the same in plain Python.
"""

import argparse
import hashlib
import shlex
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.injector.failures import read_failure
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.lab_runs import told
from gemini_lab.lab.run import Run
from gemini_lab.report import RunReport
from gemini_lab.settings import SettingValue


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Give `shell` the magics."""

    def gemini(line: str, cell: str | None = None) -> object:
        try:
            if cell is None:
                return line_magic(line, shell.user_ns)
            return cell_magic(line, cell, shell.user_ns)
        except GeminiError as error:
            raise UsageError(str(error)) from None  # IPython shows it as one line

    gemini.__doc__ = __doc__
    shell.register_magic_function(gemini, magic_kind="line_cell", magic_name="gemini")


def line_magic(line: str, names: Mapping[str, object]) -> object:
    """Do what `%gemini LINE` says with the lab among `names`.

    Raises:
        ConfigError: There is no such word, no lab, or no run.
    """
    word, *rest = _split(line) or ["status"]
    if word not in WORDS:
        raise ConfigError(f"%gemini knows no {word!r}; it knows {', '.join(WORDS)}")
    if rest and word != "fail":
        raise ConfigError(f"%gemini {word} stands alone (got {' '.join(rest)!r} after it)")
    lab = open_lab(names)
    if lab is None:
        raise ConfigError("no lab is open in this notebook; lab = Lab(nodes=4), or %%gemini")
    return WORDS[word](lab, *rest)


def cell_magic(line: str, cell: str, names: MutableMapping[str, object]) -> Run:
    """Do what `%%gemini LINE` says with the cell's text.

    Raises:
        ConfigError: An option is wrong, or a run is under way.
    """
    options = _options().parse_args(_split(line))
    lab = open_lab(names)
    if lab is None:
        standbys = 1 if options.standbys is None else options.standbys
        names["lab"] = lab = Lab(options.nodes or 4, standbys)
    for name in ("nodes", "standbys"):
        wanted, there = getattr(options, name), getattr(lab, name)
        if wanted not in {None, there}:
            raise ConfigError(
                f"--{name} {wanted}: the open lab has {there}; close it first, or leave this out"
            )
    settings = {} if options.replicas is None else {"replicas": options.replicas}
    names["run"] = run = train_text(lab, cell, name=options.name, args=options.args, **settings)
    return run


def train_text(
    lab: Lab,
    text: str,
    *,
    name: str | None = None,
    args: tuple[str, ...] = (),
    **settings: SettingValue,
) -> Run:
    """Start a training script that is given as text; it is kept in `cells/` of the lab's folder."""
    if not text.strip():
        raise ConfigError("the cell is empty; put a training script below %%gemini")
    mark = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    script = lab.folder / "cells" / f"cell-{mark}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    return lab.train(
        Job(script=str(script), args=tuple(args)),
        scenario=None,
        name=name,
        resume=False,
        placement=None,
        root=None,
        hold_at=(),
        **settings,
    )


def open_lab(names: Mapping[str, object]) -> Lab | None:
    """Return the lab that is open under one of `names`, if there is one.

    Raises:
        ConfigError: There are several.
    """
    labs = {id(v): (name, v) for name, v in names.items() if isinstance(v, Lab) and not v.is_closed}
    if len(labs) > 1:
        known = ", ".join(sorted(name for name, _ in labs.values()))
        raise ConfigError(f"several labs are open ({known}); close all but one")
    return next((lab for _, lab in labs.values()), None)


def status(lab: Lab) -> Run | Lab:
    """Return the newest run, or the lab if there was none."""
    return lab.run or lab


def fail(lab: Lab, kind: str = "", *places: str) -> str:
    """Make a failure happen now; says which node was told to do what to itself."""
    failure = read_failure(kind.replace("-", "_"), places)
    return told(_run_of(lab).inject(failure))


def report(lab: Lab) -> RunReport:
    """Return what the run did so far."""
    return _run_of(lab).report()


def stop(lab: Lab) -> Run:
    """End the run."""
    run = _run_of(lab)
    run.stop()
    return run


WORDS: Final[Mapping[str, Callable[..., object]]] = {
    "status": status,
    "fail": fail,
    "controls": lambda lab: lab.controls(),
    "dash": lambda lab: lab.dashboard(),
    "report": report,
    "stop": stop,
}
"""What `%gemini` knows: the word, and the function that does it with a lab."""


def _run_of(lab: Lab) -> Run:
    if lab.run is None:
        raise ConfigError("this lab has had no run; lab.train(job), or %%gemini")
    return lab.run


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"cannot read {line!r} ({error}); close the quotation") from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"%%gemini: {message}; {self.format_usage().strip()}")


def _options() -> argparse.ArgumentParser:
    options = _Parser(prog="%%gemini", add_help=False)
    options.add_argument("--nodes", type=int)
    options.add_argument("--standbys", type=int)
    options.add_argument("--replicas", type=int)
    options.add_argument("--name")
    options.add_argument("args", nargs="*", help="for the script, after --")
    return options
