"""What is asked of a run from a shell is followed until it is decided, and no longer than said."""

from queue import Empty

import pytest
from made import made

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.request_commands import (
    AwaitedDrain,
    AwaitedRewind,
    AwaitedSize,
    AwaitedStacks,
    follow,
)
from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    DrainWaiting,
    NodeDrained,
    NodeLost,
    Note,
    RecoveryFinished,
    ResizeRefused,
    ResizeWanted,
    RewindFailed,
    Rewound,
    StacksTaken,
)
from gemini_lab.recovery.discarded_versions import CANNOT_GO_BACK

WENT = made(Rewound, rewinds=1, cause="person", version=3, iteration=6, skips=True, duration_s=0.1)
ON = made(RecoveryFinished, epoch=2, version=5, iteration=6, duration_s=2.5)


class FollowedStandIn:
    """A run that says these events, and then nothing more."""

    name = "one"

    def __init__(self, *events, is_over=False):
        self.entries = [Entry(at_s=0.0, node="node-0", event=event) for event in events]
        self.is_over = is_over

    def get(self, *, timeout):
        assert timeout > 0
        if not self.entries:
            raise Empty
        return self.entries.pop(0)

    def is_over_within(self, _timeout_s):
        return self.is_over


def followed(awaited, *events, is_over=False, wait_s=60.0):
    run = FollowedStandIn(*events, is_over=is_over)
    return follow(run, run.get, awaited, wait_s=wait_s)


def test_a_drain_is_followed_past_other_nodes_until_its_own_has_no_ranks(capsys):
    ended = followed(
        AwaitedDrain("node-2"),
        NodeLost(name="node-1", cause="connection"),
        NodeDrained(name="node-1"),
        DrainWaiting(name="node-2", reason="no standby is there"),
        ON,
        NodeDrained(name="node-2"),
        NodeDrained(name="never heard"),
    )
    assert ended == Exit.FINISHED
    assert capsys.readouterr().out.splitlines() == [
        "node-2 trains on: no standby is there",
        "training goes on after 2.5 s, 0 iterations done again",
        "node-2 has no ranks left: its machine may be taken",
    ]


@pytest.mark.parametrize(
    "said",
    [
        NodeLost(name="node-2", cause="connection"),
        DrainWaiting(name="node-2", reason="ask once more", is_given_up=True),
    ],
)
def test_a_drain_that_comes_to_nothing_ends_at_once_and_may_be_tried_again(said):
    assert followed(AwaitedDrain("node-2"), said) == Exit.AGAIN


def test_a_size_on_the_way_that_the_script_refuses_is_said_and_the_wanted_one_ends_it(capsys):
    with pytest.raises(ConfigError, match="it cannot have 5 nodes: no sampler"):
        followed(
            AwaitedSize(5),
            ResizeWanted(nodes=5),
            ResizeRefused(nodes=4, reason="no sampler"),
            ON,
            ResizeRefused(nodes=5, reason="no sampler"),
        )
    assert capsys.readouterr().out.startswith(
        "not with 4 nodes on the way, it goes back: no sampler\n"
    )


def test_a_rewind_is_followed_until_training_went_back(capsys):
    assert followed(AwaitedRewind(), ON, WENT) == Exit.FINISHED
    assert capsys.readouterr().out == f"{WENT}, after 0.100 s\n"
    refused = made(RewindFailed, iteration=6, cause="person", reason="keeps no such")
    with pytest.raises(ConfigError, match="keeps no such"):
        followed(AwaitedRewind(), refused)
    assert followed(AwaitedRewind(), Note(text=CANNOT_GO_BACK)) == Exit.AGAIN


def stack(rank):
    return StacksTaken(rank=rank, epoch=1, pid=7, how="by its own thread", lines=("at x", "", "y"))


def test_the_stacks_of_those_asked_for_are_printed_once_each(capsys):
    assert followed(AwaitedStacks([2, 0]), stack(0), stack(1), stack(0), stack(2)) == Exit.FINISHED
    printed = capsys.readouterr().out
    assert printed.count("rank 0, process 7 (by its own thread)\n  at x\n\n  y\n") == 1
    assert "rank 2" in printed
    assert "rank 1" not in printed


def test_ranks_of_which_no_stack_comes_are_named(capsys):
    assert followed(AwaitedStacks([2, 0]), stack(0), wait_s=0.01) == Exit.LATE
    assert "nothing was heard within 0 s (--wait) of ranks 2" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="is over, and its workers have ended"):
        followed(AwaitedStacks([2]), is_over=True)


def test_the_end_of_a_run_is_said():
    assert followed(AwaitedDrain("node-2"), is_over=True) == Exit.FINISHED
    with pytest.raises(ConfigError, match="one is over, and did not go back"):
        followed(AwaitedRewind(), is_over=True)


@pytest.mark.parametrize(
    ("awaited", "said"),
    [
        (AwaitedDrain("node-2"), "node-2 still has ranks after 0 s (--wait); they move as soon as"),
        (
            AwaitedSize(3),
            "one still has 0 nodes after 0 s (--wait); it continues with 3 as soon as it can",
        ),
        (AwaitedRewind(), "one has not gone back after 0 s (--wait); it does so at the end of an"),
    ],
)
def test_what_is_only_late_is_no_error_and_ends_in_a_way_of_its_own(awaited, said, capsys):
    assert followed(awaited, wait_s=0.0) == Exit.LATE
    assert capsys.readouterr().out.startswith(said)
