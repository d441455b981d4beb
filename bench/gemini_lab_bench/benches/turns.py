"""Jobs that train in turns: each waits while another one does some iterations.

A machine changes its speed within minutes: what runs one after the other meets two machines, what
takes turns of a few seconds one.
"""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import psutil

from gemini_lab.errors import RunFailedError
from gemini_lab.training.turns import LIMIT_S, TURN


def listen(address: Path) -> socket.socket:
    """Return the socket to which the ranks of one job come."""
    listening = socket.socket(socket.AF_UNIX)
    listening.settimeout(LIMIT_S)
    listening.bind(str(address))
    listening.listen()
    return listening


def give_turns(jobs: Mapping[str, socket.socket], *, ranks: int, rest_s: float = 3.0) -> float:
    """Give jobs turns to train until all of them have ended.

    Args:
        jobs: For each job's name, the socket to which its ranks come.
        ranks: Of each job.
        rest_s: For how long all wait before the first turn.

    Returns:
        The share of a core that was in use while all of them waited: what a job that waits may take
        from the one whose turn it is.

    Raises:
        RunFailedError: A job's ranks did not come, or its turn did not end, within `LIMIT_S`.
    """
    with ExitStack() as opened:
        waiting = {
            job: [opened.enter_context(closing(_came(listening, job))) for _ in range(ranks)]
            for job, listening in jobs.items()
        }
        for job, partners in waiting.items():
            _have_ended(partners, job)
        in_use: float = psutil.cpu_percent(rest_s) / 100 * (psutil.cpu_count() or 1)
        while waiting:
            for job, partners in list(waiting.items()):
                for partner in partners:
                    partner.sendall(TURN)
                if not _have_ended(partners, job):
                    del waiting[job]
    return in_use


def _came(listening: socket.socket, job: str) -> socket.socket:
    """Return the next rank that comes."""
    try:
        partner, _ = listening.accept()
    except TimeoutError:
        raise RunFailedError(
            f"{job}: not all ranks were ready to train within {LIMIT_S:.0f} s"
        ) from None
    partner.settimeout(LIMIT_S)
    return partner


def _have_ended(partners: Sequence[socket.socket], job: str) -> bool:
    """Wait until all have ended their turn; whether they want another one."""
    try:
        said = [partner.recv(1) for partner in partners]
    except TimeoutError:
        raise RunFailedError(f"{job}: a turn took longer than {LIMIT_S:.0f} s") from None
    return all(said)
