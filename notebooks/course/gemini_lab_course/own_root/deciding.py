"""The events that `decide` is told and the actions that it answers.

`lab.train(job, root=decide)` calls it as `decide(state, event, cluster)` for each event from a
failure until training goes on; see `GuidedRoot`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from gemini_lab.errors import GeminiError, kind_of

MOST_STATE: Final = 1 << 17
"""Characters of `state`: all that is stored of a run is one record, which the store has to take."""


class Kept(NamedTuple):
    """A whole copy in a node's memory.

    Attributes:
        shard: Of which rank.
        version: After which iteration.
        epoch: Which start of the workers made it: the same version of two epochs may differ.
    """

    shard: int
    version: int
    epoch: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Training stands still, or a recovery from that failed.

    Attributes:
        cause: How it was noticed, such as `"node_lost"`, `"worker_exited"` or `"root_lost"`.
        lost: The nodes that went, if any did.
    """

    cause: str
    lost: tuple[str, ...] = ()


class Joined(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node is there that was not: a new one, or one that had fallen silent."""

    node: str


class Fenced(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node has ended its workers, so that its memory stays as it is."""

    node: str


class Told(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a node has in memory, as it was asked."""

    node: str
    copies: tuple[Kept, ...]


class Changed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A silent node will not return: it is dead, or the user gave it up."""


Event = Failed | Joined | Fenced | Told | Changed


class Fence(msgspec.Struct, frozen=True, tag=True):
    """Begin again, with the next epoch: every living node ends its workers, and says `Fenced`."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Ask every living node what it has in memory; each says `Told`."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start workers on every position; they load this version, or start over with `None`."""

    version: int | None


class Wait(msgspec.Struct, frozen=True, tag=True):
    """Start nothing yet, and say why; machines that are missing are asked for."""

    why: str


Action = Fence | Ask | Start | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a root agent knows without asking.

    Attributes:
        members: The node that trains on each position from now on, by what was heard so far;
            `None` where there is no machine. Only what they have in memory can be loaded.
        keeps: The shards that each position has room for. What else its node has, from when it
            trained on another one, cannot be loaded.
        living: The nodes that are connected, standbys among them.
        silent: Nodes that went without a sign that their memory is gone: they may come back.
        newest: The newest version that is known to have been whole, 0 for none; `None` if a
            root agent fell silent together with nodes, so that it is unknown.
        has_given_up: Whether the user would rather go on than wait for silent nodes.
    """

    members: tuple[str | None, ...]
    keeps: tuple[tuple[int, ...], ...]
    living: tuple[str, ...]
    silent: tuple[str, ...]
    newest: int | None
    has_given_up: bool


Decide = Callable[[dict[str, object], Event, Cluster], object]
"""What is asked. The dictionary outlives the root agent: the next one gets it as it was left."""


class GuideError(GeminiError):
    """What `decide` answered cannot be done; the message says why."""


def as_actions(answer: object) -> tuple[Action, ...]:
    """Return what `decide` answered: nothing, an action, or several.

    Raises:
        GuideError: It is something else.
    """
    if answer is None:
        return ()
    actions = answer if isinstance(answer, (list, tuple)) else (answer,)
    for each in actions:
        if not isinstance(each, Action):
            raise GuideError(
                "its answer has to be Fence(), Ask(), Start(version), Wait(why), a list of them, "
                f"or nothing, and it {'has' if each is not answer else 'is'} {_kind(each)}"
            )
        if isinstance(each, Start) and type(each.version) not in {int, type(None)}:
            raise GuideError(f"Start takes a version or None, and was given {each.version!r}")
    return tuple(actions)


def _kind(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return kind_of(value)


def as_text(state: dict[str, object]) -> str:
    """Return what `decide` wants to keep, as it is stored.

    Raises:
        GuideError: It holds what JSON has no form for, or more than can be stored.
    """
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise GuideError(
            f"`state` may hold numbers, texts, lists and dictionaries with text keys ({error})"
        ) from None
    if len(text) > MOST_STATE:
        raise GuideError(
            f"`state` takes {len(text):,} characters, and at most {MOST_STATE:,} can be stored"
        )
    return text


def told(said: Event | Action) -> str:
    """Return an event or an action in a few words, such as `Fenced(node-1)`."""
    match said:
        case Failed():
            return f"Failed({', '.join((said.cause, *said.lost))})"
        case Told():
            versions = sorted({copy.version for copy in said.copies})
            of = f"versions {', '.join(map(str, versions))}" if versions else "nothing"
            return f"Told({said.node}: {of})"
        case _:
            values = (str(getattr(said, name)) for name in said.__struct_fields__)
            return f"{type(said).__name__}({', '.join(values)})"
