"""The hands of people who type anything: real commands from several shells at once.

What they ask for is out of all bounds, so nothing may come of it: no run ends or is harmed, each
command ends, and says what is wrong in a sentence.
"""

import random
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.errors import ConfigError
from gemini_lab.job import python_command
from gemini_lab.lab.control import ask
from gemini_lab.recovery.requests import SaveVersion
from gemini_lab.units import format_bytes

SHELLS: Final = 3
NUMBERS: Final = ("0", "-1", "1000000000", str(2**62), str(10**30))
WAIT_S: Final = "5"
VERBS: Final[tuple[tuple[str, ...], ...]] = (
    ("resize", "RUN", "N", "--wait", WAIT_S),
    ("rewind", "RUN", "N", "--again", "--wait", WAIT_S),
    ("drain", "RUN", "node-N", "--wait", WAIT_S),
    ("drain", "RUN", "N", "--wait", "N"),
    ("inject", "RUN", "bit_flip", "rank-0", "--shard", "N"),
    ("inject", "RUN", "worker_crash", "rank-99N"),
    ("inject", "RUN", "node_loss", "node-99N"),
    ("stop", "RUN", "--notice", "-9N"),
    ("status", "RUN"),
    ("attach", "RUN"),
)
"""With a number in place of `N`; `99N` and `-9N` are out of bounds with each."""
ATTACHED_S: Final = 20.0  # on a busy machine it has only just begun to follow
ENDS_S: Final = 100.0
"""For a command to end on a busy machine: it may wait for an owner that is being replaced."""
LOOK_S: Final = 0.1
MOST_BYTES: Final = 1 << 30
"""By which a run's owner may grow meanwhile."""


class Hands:
    """People at several shells, who ask things of one run.

    Args:
        folder: The run's.
        owner: Its process.
        environment: Of what they start.
    """

    def __init__(self, folder: Path, owner: psutil.Process, environment: Mapping[str, str]) -> None:
        # What went wrong, one line each; complete once `rest` has returned.
        self.found: list[str] = []
        self._folder, self._owner, self._environment = folder, owner, environment
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()

    def ask(self, seed: int) -> str:
        """Ask from all shells at once, and for a version to be saved; says what was typed."""
        rng = random.Random(seed)
        typed = [typed_at(rng) for _ in range(SHELLS)]
        if not self._threads:
            threading.Thread(target=self._watch_owner, name="chaos-hands", daemon=True).start()
        for words in typed:
            thread = threading.Thread(target=self._type, args=(words,), daemon=True)
            thread.start()
            self._threads.append(thread)
        with suppress(ConfigError):  # its owner may be stopped
            ask(self._folder, SaveVersion())
        return "; ".join(" ".join(words) for words in typed)

    def rest(self) -> None:
        for thread in self._threads:
            thread.join()
        self._is_over.set()

    def _type(self, words: tuple[str, ...]) -> None:
        command = [str(self._folder) if word == "RUN" else word for word in words]
        shell = subprocess.Popen(
            python_command("gemini_lab.cli.main", *command),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = shell.communicate(timeout=ATTACHED_S if words[0] == "attach" else ENDS_S)
        except subprocess.TimeoutExpired:
            said = self._end(shell, words)
        if problem := problem_of(words, shell.returncode, said):
            self.found.append(problem)

    def _end(self, shell: subprocess.Popen[str], words: tuple[str, ...]) -> str:
        """End a command: what follows a run ends on Ctrl-C; what else still goes on is too late."""
        shell.send_signal(signal.SIGINT if words[0] == "attach" else signal.SIGKILL)
        try:
            return shell.communicate(timeout=ENDS_S)[0]
        except subprocess.TimeoutExpired:
            shell.kill()
            return shell.communicate()[0]

    def _watch_owner(self) -> None:
        """End an owner that somebody's number makes take all of the machine's memory."""
        with suppress(psutil.Error):
            before_bytes = self._owner.memory_info().rss
            while not self._is_over.wait(LOOK_S):
                grown_bytes = self._owner.memory_info().rss - before_bytes
                if grown_bytes > MOST_BYTES:
                    self.found.append(
                        f"the owner grew by {format_bytes(grown_bytes)}, and was ended"
                    )
                    self._owner.kill()
                    return


def typed_at(rng: random.Random) -> tuple[str, ...]:
    """Return a command that somebody types: its words, with `RUN` for the run."""
    number, words = rng.choice(NUMBERS), rng.choice(VERBS)
    digits = number.lstrip("-")
    return tuple(
        word if word == "RUN" else word.replace("9N", f"9{digits}").replace("N", number)
        for word in words
    )


def problem_of(words: tuple[str, ...], status: int, said: str) -> str | None:
    """Return what is wrong with how a command ended, if anything is."""
    how = f"`{' '.join(words)}` ended with status {status}"
    if "Traceback (most recent call last)" in said:
        return f"{how} and a traceback: {said.strip().splitlines()[-1]}"
    if status == -signal.SIGKILL:
        return f"`{' '.join(words)}` did not end within {ENDS_S:.0f} s: {said.strip()[-300:]}"
    # A Ctrl-C that a library met as it was imported ends Python by that signal: 130 for a shell.
    ends_well = status >= 0 or (status == -signal.SIGINT and words[0] == "attach")
    return None if ends_well else f"{how}: {said.strip()[-300:]}"
