"""The `gemini-lab` command: one table of sub-commands, each in the module that owns its work."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Final, NoReturn

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.hangup import on_hangup
from gemini_lab.cli.system_errors import exit_of, said_of
from gemini_lab.errors import GeminiError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "quickstart": (
        "gemini_lab.experiments.quickstart:command",
        "four nodes train, three failures, the same numbers",
    ),
    "run": ("gemini_lab.cli.run:command", "run your own script, protected"),
    "torchrun": ("gemini_lab.cli.torchrun:command", "the same, with torchrun's own arguments"),
    "node": ("gemini_lab.cli.node:command", "make this machine a node of a lab"),
    "list": ("gemini_lab.cli.runs:list_command", "which runs are under way"),
    "attach": ("gemini_lab.cli.runs:attach_command", "follow a run that is under way"),
    "status": ("gemini_lab.cli.runs:status_command", "how a run is now, on one screen"),
    "top": ("gemini_lab.cli.top:command", "the same, live, for as long as it goes on"),
    "metrics": ("gemini_lab.cli.metrics:command", "a run's metrics, served or sent"),
    "rewind": ("gemini_lab.cli.rewind:command", "have training take back iterations"),
    "drain": ("gemini_lab.cli.drain:command", "move a node's ranks before its machine goes"),
    "resize": ("gemini_lab.cli.resize:command", "have a run go on with more or fewer nodes"),
    "stop": ("gemini_lab.cli.runs:stop_command", "end a run that is under way"),
    "check": ("gemini_lab.cli.check:command", "does your script come back bit-identical?"),
    "inject": ("gemini_lab.cli.inject:command", "break something in a live run"),
    "report": ("gemini_lab.cli.report:command", "what a run did"),
    "serve": ("gemini_lab.lab.pages:command", "show a run in the browser, live or afterwards"),
    "export": ("gemini_lab.storage.export:command", "full fp32 weights from a run"),
    "profile": (
        "gemini_lab.experiments.profile_script:command",
        "when is a script's network idle?",
    ),
    "figures": ("gemini_lab.experiments.figures.command:command", "the paper's figures"),
    "bench": ("gemini_lab.experiments.bench:command", "measurements with repeats and spread"),
    "chaos": ("gemini_lab.cli.chaos:command", "random real faults, and what must hold after"),
    "doctor": ("gemini_lab.cli.doctor:command", "what is there, and what to do about what is not"),
}
"""Name: (`module:function` taking the remaining arguments and returning an exit code, help)."""

STILL_ENDING: Final = (
    b"\nstill ending what was started; Ctrl-\\ ends this alone, and leaves the rest\n"
)


def usage() -> str:
    """The help text."""
    lines = [f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: gemini-lab COMMAND [options]   (gemini-lab COMMAND --help, --version)\n\n"
        + "\n".join(lines)
    )


def main(arguments: list[str] | None = None) -> int:
    """Run one sub-command; `gemini_lab.cli.exits` lists the exit codes."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in {"-h", "--help", "help"}:
        print(usage())  # noqa: T201
        return 0
    if name in {"-V", "--version", "version"}:
        print(f"gemini-lab {metadata.version('gemini-lab')}")  # noqa: T201
        return 0
    if name not in COMMANDS:
        print(f"gemini-lab: there is no command {name!r}\n\n{usage()}", file=sys.stderr)  # noqa: T201
        return Exit.REFUSED
    module, _, function = COMMANDS[name][0].partition(":")
    signal.signal(signal.SIGTERM, _terminated)
    on_hangup(_terminated)
    try:
        with interrupted_once():
            code = int(getattr(importlib.import_module(module), function)(rest))
        sys.stdout.flush()  # here, and not when Python ends: who reads may have left
    except BrokenPipeError:
        _forget_unwritten()
        return 128 + signal.SIGPIPE
    except GeminiError as error:
        print(f"gemini-lab {name}: {error}", file=sys.stderr)  # noqa: T201
        return Exit.AGAIN if error.may_pass else Exit.REFUSED
    except OSError as error:
        print(f"gemini-lab {name}: {said_of(error)}", file=sys.stderr)  # noqa: T201
        _forget_unwritten()
        return exit_of(error)
    except KeyboardInterrupt as told:
        print(f"gemini-lab {name}: {str(told) or 'interrupted'}", file=sys.stderr)  # noqa: T201
        return Exit.INTERRUPTED
    return code


def _forget_unwritten() -> None:
    """Have Python not try again, at its end, to write what standard output does not take."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Have a second Ctrl-C not cut short what the first one has begun: ending, and tidying up."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as under `&`
        yield
        return

    def again(_number: int, _frame: object) -> None:
        os.write(2, STILL_ENDING)

    def once(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, again)
        os.write(2, b"\n")  # below the ^C
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _terminated(number: int, _frame: object) -> NoReturn:
    """End as an interrupted command does: nothing that it started or wrote for itself is left."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
