"""The `gemini-lab` command: its sub-commands in four groups, each in the module of its work."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import metadata
from typing import Any, Final, NoReturn

from gemini_lab.cli.exits import Exit, exit_of, on_hangup, said_of
from gemini_lab.display import complain
from gemini_lab.errors import GeminiError

OFFERED: Final = "gemini_lab.lab.pages:offered_command"
"""Gives the function of a command that is outside of the core."""
GROUPS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "run": {
        "quickstart": (
            "gemini_lab.training.quickstart:command",
            "train on four nodes that three failures strike",
        ),
        "run": ("gemini_lab.cli.run_command:command", "run your script, protected"),
        "torchrun": ("gemini_lab.cli.torchrun:command", "run it with torchrun's own arguments"),
        "node": ("gemini_lab.cli.node:command", "make this machine a node of a lab"),
        "check": (
            "gemini_lab.cli.check_command:command",
            "check that your script comes back bit-identical",
        ),
        "doctor": ("gemini_lab.cli.doctor:command", "check what this machine lacks"),
    },
    "watch": {
        "list": (
            "gemini_lab.cli.folder_commands:list_command",
            "list running jobs; with --all finished ones, too",
        ),
        "status": ("gemini_lab.cli.follow_commands:status_command", "show a run's state"),
        "top": ("gemini_lab.cli.follow_commands:top_command", "show a run's state, live"),
        "logs": ("gemini_lab.cli.folder_commands:logs_command", "print what a run's workers wrote"),
        "stacks": (
            "gemini_lab.cli.request_commands:stacks_command",
            "print what each thread of the workers does now",
        ),
        "attach": ("gemini_lab.cli.follow_commands:attach_command", "follow a run until it ends"),
        "report": ("gemini_lab.cli.report_command:command", "report what a run did"),
        "serve": ("gemini_lab.lab.pages:command", "show a run in the browser"),
        "metrics": ("gemini_lab.cli.metrics_command:command", "serve or send a run's metrics"),
    },
    "operate": {
        "drain": (
            "gemini_lab.cli.request_commands:drain_command",
            "move a node's ranks before its machine goes",
        ),
        "resize": (
            "gemini_lab.cli.request_commands:resize_command",
            "change a run's number of nodes",
        ),
        "rewind": (
            "gemini_lab.cli.request_commands:rewind_command",
            "take back a run's newest iterations",
        ),
        "give-up": (
            "gemini_lab.cli.request_commands:give_up_command",
            "accept the loss of progress that a run waits for",
        ),
        "stop": ("gemini_lab.cli.follow_commands:stop_command", "end a run"),
        "export": ("gemini_lab.storage.export:command", "write a run's fp32 weights to a file"),
    },
    "study": {
        "inject": (
            "gemini_lab.cli.request_commands:inject_command",
            "break something in a running job",
        ),
        "chaos": (OFFERED, "break real runs at random, and check that nothing is lost"),
        "profile": (
            "gemini_lab.lab.profile_script:command",
            "measure when a script leaves the network idle",
        ),
        "bench": (OFFERED, "measure on this machine, with repeats and spread"),
        "figures": (OFFERED, "draw the paper's figures next to ours"),
        "demo": (OFFERED, "open the page of a recorded run; nothing is started"),
        "attack": (OFFERED, "search the smallest case that breaks what you wrote in a lab"),
        "hand-in": (OFFERED, "make a lab's notebook ready for your teacher"),
        "grade": (OFFERED, "print how a class did, and why"),
    },
}
"""By group and name: (`module:function`, help); the function takes the remaining arguments and
returns an exit code."""
COMMANDS: Final = {name: told for group in GROUPS.values() for name, told in group.items()}

STILL_ENDING: Final = (
    b"\nstill ending what was started; Ctrl-\\ ends this alone, and leaves the rest\n"
)


def usage() -> str:
    """Return the help text."""
    lines = []
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:<12}{text}" for name, (_, text) in commands.items())]
    return "\n".join(
        [
            "usage: gemini-lab COMMAND [options]   (gemini-lab COMMAND --help, --version)",
            "",
            "Lose a machine in the middle of training; be back in seconds, bit-identical.",
            *lines,
            "",
            "Name a run by its folder, by its name below gemini-runs, or as 'latest'.",
        ]
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
        nearest = ", ".join(get_close_matches(name, COMMANDS))
        hint = f"; the nearest: {nearest}" if nearest else ""
        complain(f"gemini-lab: there is no command {name!r}{hint}; gemini-lab --help lists all")
        return Exit.REFUSED
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of a locale that has not all letters
            stream.reconfigure(errors="backslashreplace")
    on_hangup(_terminated)
    try:
        command = function_of(name)  # until it is imported, Ctrl-C ends this at once
        with interrupted_once():
            code = int(command(rest))
        sys.stdout.flush()  # here, and not when Python ends: who reads may have left
    except BrokenPipeError:
        _forget_unwritten()
        return 128 + signal.SIGPIPE
    except GeminiError as error:
        complain(f"gemini-lab {name}: {error}")
        return Exit.AGAIN if error.may_pass else Exit.REFUSED
    except OSError as error:
        complain(f"gemini-lab {name}: {said_of(error)}")
        _forget_unwritten()
        return exit_of(error)
    except KeyboardInterrupt as told:
        complain(f"gemini-lab {name}: {str(told) or 'interrupted'}")
        return Exit.INTERRUPTED
    return code


def function_of(name: str) -> Callable[[list[str]], int]:
    """Return the function of a command; its module is imported here.

    Raises:
        ConfigError: The command is outside of the core, and the installation does not have it.
    """
    module, _, function = COMMANDS[name][0].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    command: Callable[[list[str]], int] = found(name) if COMMANDS[name][0] == OFFERED else found
    return command


def _forget_unwritten() -> None:
    """Discard unwritten output: Python would try to write it again at its end, and fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Raise `KeyboardInterrupt` once: a second Ctrl-C must not cut short the cleaning up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under `&`
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
    """Exit as after Ctrl-C, so that the command cleans up what it started."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
