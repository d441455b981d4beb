"""An agent tells the log all, the root agent what it decides on, and nobody a thing twice."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from made import made

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.node.lab_link import HOLD_S, RootLink
from gemini_lab.node.listener import WorkerHistory, told_of
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.messages import (
    EndReached,
    EventSaid,
    Message,
    RankProtected,
    ScriptFinished,
    Severed,
    WordsSaid,
)
from gemini_lab.settings import Settings


def entry(event: events.AnyEvent) -> Entry:
    return Entry(at_s=1.0, node="node-1", event=event)


def protected(rank: int) -> Entry:
    return entry(
        made(
            events.Protected,
            rank=rank,
            fingerprint="same",
            settings=Settings(),
            placement=plan_placement(nodes=4),
        )
    )


SEVERED = Severed(rank=0, epoch=1)
ITERATION = made(events.Iteration, rank=1, iteration=1, duration_s=1.0)
COLLECTIVES = events.Collectives.of([], rank=1, epoch=1, iteration=1, began_s=0.0)


@pytest.mark.parametrize(("event", "is_heard"), [(ITERATION, True), (COLLECTIVES, False)])
def test_the_root_agent_hears_only_what_it_decides_on(event, is_heard):
    to_log, to_root = told_of(entry(event), is_placed=True)
    assert to_log == entry(event)
    assert to_root == (EventSaid(entry=entry(event)) if is_heard else None)


def test_the_log_has_the_placement_from_rank_0_alone():
    assert told_of(protected(0), is_placed=True)[0] == protected(0)
    brief, _ = told_of(protected(1), is_placed=True)
    assert isinstance(brief.event, events.Protected)
    assert (brief.event.placement, brief.event.settings) == (None, Settings())


def test_a_root_that_does_not_know_settings_and_placement_hears_them_from_rank_0():
    """Of a thousand ranks each would send the same 26 kB, and have the root agent read them."""
    assert told_of(protected(0), is_placed=False)[1] == EventSaid(entry=protected(0))
    _, known = told_of(protected(0), is_placed=True)
    assert isinstance(known, EventSaid)
    assert isinstance(known.entry.event, events.Protected)
    assert known.entry.event.placement is None
    for is_placed in (False, True):
        brief = RankProtected(rank=3, epoch=1, fingerprint="same")
        assert told_of(protected(3), is_placed=is_placed)[1] == brief


def test_what_a_root_agent_waits_for_is_kept_to_be_said_again_after_a_cut_link():
    """Of each rank the newest; of the epoch in hand alone."""
    history = WorkerHistory()
    history.begin(7)

    def whole(rank: int, version: int, epoch: int = 2) -> Entry:
        return entry(
            made(
                events.VersionComplete,
                rank=rank,
                epoch=epoch,
                version=version,
                next_version=version + 1,
            )
        )

    for said in (whole(0, 1, epoch=1), whole(1, 8), whole(1, 9), protected(1), entry(ITERATION)):
        history.take(said)
    assert history.decisive(2) == [whole(1, 9)]
    assert history.decisive(1) == [whole(0, 1, epoch=1), protected(1)]
    history.begin(7)
    assert history.decisive(2) == []


def test_ends_are_said_again_in_order_until_the_rank_does_another_iteration_or_goes_back():
    history = WorkerHistory()
    history.begin(7)
    inputs = events.Inputs(batch="", random={}, learning_rate=None)
    begun, done = (
        events.IterationBegun(rank=1, epoch=1, iteration=1, inputs=inputs),
        msgspec.structs.replace(ITERATION, iteration=1),
    )
    loop, script = (made(EndReached, rank=1, what=w) for w in ("loop", "script"))
    finished = ScriptFinished(rank=1, epoch=1)
    history.end(loop)
    history.take(entry(begun))
    assert history.decisive(1) == [loop, entry(begun)]
    history.take(entry(done))
    assert history.decisive(1) == [entry(begun)]
    for said in (loop, script, loop, finished):
        history.end(said)
    assert history.decisive(1) == [entry(begun), script, loop, finished]
    back = made(events.Rewound, rank=1, iteration=1, rewinds=1, duration_s=0.1)
    history.take(entry(back))
    assert history.decisive(1) == [finished]


def test_all_that_a_rank_executes_is_said_again_also_where_it_said_so_in_several_words():
    """As a rank does that imports while it trains."""
    history = WorkerHistory()
    history.begin(7)
    for epoch, files in ((1, {"old.py": "o"}), (2, {"train.py": "a"}), (2, {"late.py": "b"})):
        history.take(entry(events.CodeSeen(rank=0, epoch=epoch, files=files)))
    (again,) = history.decisive(2)
    assert again.event.files == {"train.py": "a", "late.py": "b"}


def test_what_another_run_executed_is_nothing_that_this_one_did():
    """A run's first inventory is taken before its workers start, when the last one's are gone."""
    history = WorkerHistory()
    history.begin(1)
    seen = made(events.CodeSeen, files={"train.py": "a"})
    history.take(Entry(at_s=0.0, node="node-0", event=seen))
    assert history.code(1) == {"train.py": (1, "a")}
    assert history.code(2) == {}
    history.begin(2)
    assert (history.code(1), history.code(2)) == ({}, {})


def test_of_iterations_only_those_are_said_again_that_are_asked_for():
    history = WorkerHistory()
    history.begin(7)
    for number in range(1, 5):
        history.take(entry(made(events.Iteration, rank=1, iteration=number, duration_s=1.0)))
    assert [one.iteration for one in history.iterations(7, after=2)] == [3, 4]
    assert history.iterations(8, after=0) == []


class Root:
    """A root agent's end of a connection, which keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.link = RootLink(pytest.fail)
        self.link.open(SimpleNamespace(send=self.heard.append, close=lambda: None))

    def say(self, *words: events.AnyEvent) -> list[list[tuple[str, int]]]:
        """Have workers say these; return the messages that this brings, as kinds and ranks."""
        before = len(self.heard)
        for word in words:
            self.link.send(EventSaid(entry=entry(word)))
        said = [one for one in self.heard[before:] if isinstance(one, WordsSaid)]
        return [[(word.kind, word.rank) for word in one.words] for one in said]


def iterated(rank: int, iteration: int, *, epoch: int = 1) -> tuple[events.AnyEvent, ...]:
    """Return what a rank says from the end of an iteration until its version is whole."""
    said = {"rank": rank, "epoch": epoch}
    return (
        made(events.Iteration, iteration=iteration, duration_s=1.0, **said),
        made(events.IterationBegun, iteration=iteration + 1, **said),
        made(events.VersionComplete, version=iteration, next_version=iteration + 1, **said),
    )


async def test_what_all_ranks_of_a_node_say_of_an_iteration_goes_to_the_root_in_one_message():
    root = Root()
    assert len(root.say(*iterated(0, 1), *iterated(1, 1))) == 6  # what ends a recovery goes at once
    both = zip(iterated(0, 2), iterated(1, 2), strict=True)
    (words,) = root.say(*(word for pair in both for word in pair))
    kinds = ["iteration", "iteration_begun", "version_complete"]
    assert words == [(kind, rank) for kind in kinds for rank in (0, 1)]
    assert len(root.say(*iterated(0, 3, epoch=2))) == 3  # and so does that of the next start


async def test_nothing_overtakes_words_that_wait_and_they_do_not_wait_for_ever():
    root = Root()
    root.say(*iterated(0, 1))
    done, *_ = iterated(0, 2)
    assert root.say(done) == []
    root.link.send(SEVERED)
    assert [type(one) for one in root.heard[-2:]] == [WordsSaid, Severed]
    assert root.say(done) == []
    async with asyncio.timeout(60):
        while not isinstance(root.heard[-1], WordsSaid):
            await asyncio.sleep(HOLD_S)


async def test_words_that_waited_for_a_root_agent_are_not_sent_to_the_next():
    """It asks for what it has missed; an older word after a newer one would take it back."""
    root = Root()
    root.say(*iterated(0, 1))
    root.say(iterated(0, 2)[0])
    root.heard.clear()
    root.link.open(SimpleNamespace(send=root.heard.append, close=lambda: None))
    root.link.send(SEVERED)
    assert root.heard == [SEVERED]
