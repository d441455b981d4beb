"""`gemini-lab rewind RUN N`: have training take back iterations, without a restart."""

from collections.abc import Sequence
from typing import Final

from gemini_lab.cli.asked import ask, parser_of_asking
from gemini_lab.cli.exits import Exit
from gemini_lab.display import tell
from gemini_lab.errors import ConfigError
from gemini_lab.limits import whole
from gemini_lab.log.events import AnyEvent, Note, RewindFailed, Rewound
from gemini_lab.recovery.rewinds import CANNOT_GO_BACK

WAIT_S: Final = 120.0


def command(arguments: Sequence[str]) -> int:
    """Have training take back its newest iterations, and return when it has.

    All ranks go back to a version in their nodes' memory at the end of an iteration. What was read
    since is skipped, unless --again is given.
    """
    parser = parser_of_asking("rewind", command.__doc__, wait_s=WAIT_S)
    parser.add_argument(
        "steps", type=whole("steps", least=1), help="how many iterations to take back"
    )
    parser.add_argument("--again", action="store_true", help="have the same batches come again")
    options = parser.parse_args(arguments)
    return ask(options, lambda run: run.rewind(options.steps, skip=not options.again), GoingBack())


class GoingBack:
    """Training that is to go back because a person asked."""

    def hear(self, event: AnyEvent) -> Exit | None:
        """Say that it went, or why it could not."""
        match event:
            case Rewound(cause="person"):
                tell(f"{event}, after {event.duration_s:.3f} s")
                return Exit.FINISHED
            case RewindFailed(cause="person", reason=reason):
                raise ConfigError(reason)
            case Note(text=text) if text == CANNOT_GO_BACK:
                tell(text)
                return Exit.AGAIN
        return None

    def at_end(self, name: str) -> Exit:
        """A run that is over goes nowhere."""
        raise ConfigError(f"{name} is over, and did not go back")

    def late(self, name: str, wait_s: float) -> str:
        """Only the script's loop can go back."""
        return (
            f"{name} has not gone back after {wait_s:.0f} s (--wait); it does so at the end of an "
            "iteration, if its loop is one over protected.steps or protected.epochs, and its "
            "workers were not started anew meanwhile: then ask again"
        )
