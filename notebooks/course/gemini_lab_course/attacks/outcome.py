"""The result of an attack: the smallest case that breaks the function, or its figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gemini_lab.errors import ConfigError, in_lines
from gemini_lab.injector import NodesLoss, Scenario
from gemini_lab.placement import Placement
from gemini_lab.units import format_seconds

Stage = str
"""Which stage was attacked: `"placement"`, `"chunks"`, `"recovery"`, `"division"` or `"root"`."""


class Case(Protocol):
    """One thing that a stage is asked."""

    @property
    def arguments(self) -> Mapping[str, object]:
        """The stage's arguments, by the names of its parameters."""

    def __str__(self) -> str:
        """Return the case in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFault:
    """What is wrong with an answer.

    Attributes:
        why: In a sentence, which never says what would be right.
        lost: Nodes whose loss shows it, where failures do.
        shards: Shards that it is about.
        spans: Idle spans that it is about.
    """

    why: str
    lost: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideOurs:
    """One figure of the attacked function, with the reference's and the optimum's.

    Attributes:
        what: What is compared, and for which case.
        yours: Of what was attacked.
        reference: Of this package's own stage.
        optimum: The best that there can be, or a bound that nothing is better than.
        unit: `"share"`, `"s"`, or nothing for a count.
    """

    what: str
    yours: float
    reference: float
    optimum: float
    unit: str = ""

    def said(self, value: float) -> str:
        """Return one of the three, in its unit."""
        if self.unit == "share":
            return f"{value:.1%}"
        return format_seconds(value) if self.unit == "s" else f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class Counterexample:
    """The smallest case found that breaks what was attacked.

    Attributes:
        stage: Which stage it was attacked as.
        case: What it was asked.
        answer: What it answered; `None` where it raised or did not come to an end.
        fault: What is wrong with that.
        tried: Smaller cases, all of which it mastered.
        judge: Asks another one the same; `replay` calls it.
    """

    stage: Stage
    case: Case
    answer: object
    fault: StageFault
    tried: int
    judge: Callable[[Callable[..., object]], "Counterexample | None"] = field(
        repr=False, compare=False
    )

    @property
    def holds(self) -> bool:
        """Whether what was attacked withstood: no."""
        return False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to try: one case is enough."""
        return True

    def replay(self, mine: Callable[..., object]) -> "Counterexample | None":
        """Try `mine` on the same case; return how it breaks now, or `None` if it does not.

        Args:
            mine: A changed version of the function that was attacked, or it itself.
        """
        return self.judge(mine)

    def scenario(self, *, iteration: int) -> Scenario:
        """Return the same failures for a real run: `lab.train(job, placement=..., scenario=...)`.

        Raises:
            ConfigError: No failure is needed to see what is wrong, or the nodes are already lost
                when the stage is asked.
        """
        if not self.fault.lost or self.stage != "placement":
            raise ConfigError(
                f"this counterexample has no failures of its own to inject: {self.fault.why}"
            )
        ranks = tuple(node.replace("node", "rank") for node in self.fault.lost)
        return Scenario().add(NodesLoss(ranks), iteration=iteration)

    @property
    def placement(self) -> Placement | None:
        """The broken placement, if the answer is one that can be run."""
        return self.answer if isinstance(self.answer, Placement) else None

    @property
    def words(self) -> str:
        """The case and what is wrong with the answer, in one line."""
        return f"{self.case}: {self.fault.why}"

    def __str__(self) -> str:
        return in_lines(self.words)

    def __repr__(self) -> str:
        return f"<Counterexample: {self.words}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withstood:
    """No counterexample was found.

    Attributes:
        stage: Which stage it was attacked as.
        tried: Cases that it mastered.
        figures: How good it is, beside the reference and the optimum.
        scope: How large the cases are: what is larger was not tried.
        never_given: Parameters that it has and was not asked with.
        left: Cases that were not tried when time was up.
        case_s: What a case took, on average.
    """

    stage: Stage
    tried: int
    figures: tuple[BesideOurs, ...]
    scope: str
    never_given: tuple[str, ...] = ()
    left: int = 0
    case_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether all cases were tried, and time did not run out before."""
        return not self.left

    @property
    def holds(self) -> bool:
        """Whether what was attacked withstood: yes."""
        return True

    @property
    def words(self) -> str:
        """The tried cases, in one line."""
        if not self.is_complete:
            return (
                f"the first {self.tried:,} of {self.tried + self.left:,} cases ({self.scope}) did "
                f"not break it, at {format_seconds(self.case_s)} each, and then time was up"
            )
        left_out = f"; `{'` and `'.join(self.never_given)}` never given" if self.never_given else ""
        return f"{counted(self.tried, 'case')} tried, {self.scope}{left_out}: none broke it"

    def __str__(self) -> str:
        return in_lines(self.words)

    def __repr__(self) -> str:
        return f"<Withstood: {self.stage}, {self.words}>"


def counted(count: int, what: str) -> str:
    """`1 node`, `2 nodes`, `10,000 nodes`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
