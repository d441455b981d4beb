"""Following a run from the command that started it: until it ends, or this process is told to."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NoReturn

from gemini_lab.cli.exits import EXIT_OF, Exit
from gemini_lab.cli.signals import on_hangup, silent_without_terminal
from gemini_lab.display import complain
from gemini_lab.errors import RunFailedError
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.lab.notice import save_within
from gemini_lab.lab.progress import show_progress
from gemini_lab.lab.run import Run

NOTICES: Final = (signal.SIGTERM, signal.SIGUSR1)
"""How batch systems announce the end: Kubernetes and `scancel`, and `sbatch --signal`."""


def follow(run: Run, notice_s: float) -> Exit:
    """Show how a run goes until it ends, or until this process is told to end."""
    with interrupt_says(lambda: told_of(run), now=f"ending {run.name} and its nodes"), noticed():
        try:
            with silent_without_terminal():
                show_progress(run, show_output=True)
            run.wait()
        except RunFailedError as error:
            complain(f"gemini-lab run: {error}")
            return EXIT_OF[run.cause or "machines"]
        except NoticeGiven as notice:
            return end_at(notice, run, notice_s)
    return Exit.FINISHED


def told_of(run: Run) -> str:
    """What there is of a run that Ctrl-C has ended, with its lab."""
    lines = [
        f"interrupted at iteration {run.iteration}; nothing of {run.name} runs any more",
        f"  its log is in {run.folder}",
    ]
    url = run.course.settings.get("persistent_url")
    if run.persisted is not None:
        version, url = run.persisted
        lines += [
            f"  version {version} is whole in {url}",
            f"  the same command with --resume goes on from version {version}",
        ]
    elif url:
        lines += [
            f"  no version of it has reached {url}: there is nothing new to go on from",
            "  SIGTERM, in place of Ctrl-C, has one saved first",
        ]
    elif "persistent_url" in run.course.settings:
        lines.append("  it has no persistent tier, so it cannot be gone on from")
    else:
        lines.append("  its script had not called protect yet: there is nothing new to go on from")
    return "\n".join(lines)


class NoticeGiven(BaseException):
    """This process was told to end soon; no error, so nothing may catch it as one."""


@contextmanager
def noticed() -> Iterator[None]:
    """Raise `NoticeGiven` on the first signal by which batch systems announce the end.

    A terminal that closes announces it, too. From then on SIGTERM ends this process at once, and
    what may be sent again does nothing: SIGUSR1, and SIGHUP.
    """
    before = {number: signal.getsignal(number) for number in (*NOTICES, signal.SIGHUP)}
    after = {**before, signal.SIGUSR1: signal.SIG_IGN, signal.SIGHUP: signal.SIG_IGN}

    def tell(number: int, _frame: object) -> NoReturn:
        for each, handler in after.items():
            signal.signal(each, handler)
        raise NoticeGiven(signal.Signals(number).name)

    for number in NOTICES:
        signal.signal(number, tell)
    on_hangup(tell)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGUSR1) is tell:
            for number, handler in before.items():
                signal.signal(number, handler)


def end_at(notice: NoticeGiven, run: Run, notice_s: float) -> Exit:
    """Save the newest version that can be had in time, end the run, and say what came of it."""
    say = partial(print, file=sys.stderr, flush=True)
    say(f"gemini-lab run: {notice}: saving a version within {notice_s:.0f} s (--notice)")
    saved = save_within(run, notice_s)
    if run.is_over:
        return Exit.FINISHED if run.failure is None else EXIT_OF[run.cause or "machines"]
    if saved.version is None:
        told = f"{notice}: no version was saved: {saved.reason}"
    else:
        told = f"{notice}: version {saved.version} is whole in {saved.url}"
    run.give_up(told, "notice")
    say(f"gemini-lab run: {told}")
    say("gemini-lab run: the same command with --resume goes on from the newest version there is")
    return Exit.TERMINATED if saved.version is None else Exit.AGAIN
