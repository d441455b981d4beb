"""With what a command ends: what batch systems and shells go by."""

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """The exit codes of `gemini-lab`, listed for people in docs/guide/operate.md."""

    FINISHED = 0
    FAILED = 1
    REFUSED = 2
    STOPPED = 3
    LATE = 4
    AGAIN = 75  # EX_TEMPFAIL of sysexits.h: "the user is invited to try again"
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_OF: Final[dict[str, Exit]] = {
    "script": Exit.FAILED,
    "divergence": Exit.FAILED,
    "not_finite": Exit.FAILED,
    "wrong_sums": Exit.FAILED,  # tried again on the same machines it would go wrong again
    "machines": Exit.AGAIN,
    "owner": Exit.STOPPED,
    "notice": Exit.AGAIN,
}
"""By `RunFailed.cause`, with what the command ends that followed a run which was given up."""
