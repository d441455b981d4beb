"""Lines that are taken in as columns come to the very same as entries one by one."""

import random
from array import array
from collections.abc import Mapping

import numpy as np
import pytest

from gemini_lab.log import events, stretch
from gemini_lab.log.entry import Entry, encode_entry
from gemini_lab.log.file import LOG_FILE
from gemini_lab.log.follow import LogFeed
from gemini_lab.placement import plan_placement
from gemini_lab.report import reducer
from gemini_lab.report.pyramid import bars
from gemini_lab.report.pyramid.blocks import MemoryBlocks
from gemini_lab.report.reducer import Keep, RunReducer
from gemini_lab.settings import Settings

NODES = 3
KINDS = (
    (("all_gather", 1000), ("reduce_scatter", 2000)),
    (("all_reduce", 8), ("all_gather", 1000), ("barrier", 0)),
    (),
)


class Story:
    """A run as it never was: most of it is plain training, and now and then anything happens."""

    def __init__(self, seed):
        self.draws = random.Random(seed)
        self.per_node = self.draws.choice([1, 2])
        self.ranks = NODES * self.per_node
        self.scheme = self.draws.choice(["background", "blocking"])
        self.oddness = self.draws.choice([0.0, 0.0, 0.02, 0.1])
        self.now_s, self.epoch, self.number = 1.795e9, 1, 0
        self.members = [f"node-{n}" for n in range(NODES)]
        self.lines = []

    def say(self, node, event, at_s=None):
        entry = Entry(at_s=self.now_s if at_s is None else at_s, node=node, event=event)
        self.lines.append(encode_entry(entry))

    def tell(self, iterations):
        names = (*self.members, "spare-0", "spare-1")
        self.say("lab", events.LogOpened(schema=events.SCHEMA))
        self.say("lab", events.LabStarted(nodes=NODES, standbys=2, names=names, root="node-0"))
        job = events.RunStarted(
            name="odd",
            script="job.py",
            nodes=NODES,
            standbys=2,
            workers_per_node=self.per_node,
            settings={"scheme": self.scheme},
        )
        self.say("lab", job)
        self.start(0)
        for _ in range(iterations):
            self.iterate()
            if self.draws.random() < self.oddness:
                self.oddly()
            if self.draws.random() < 0.01:
                self.recover()
        return self.lines

    def start(self, recovery):
        plan = events.RecoveryPlanned(
            recovery=recovery,
            epoch=self.epoch,
            version=self.number,
            tier="memory" if self.number else "start",
            members=tuple(self.members),
            sources=(),
            transfers=(),
            reason="",
        )
        self.say("node-0", plan)
        for rank in range(self.ranks):
            protected = events.Protected(
                rank=rank,
                epoch=self.epoch,
                shard_bytes=1000,
                fingerprint="f",
                settings=Settings(scheme=self.scheme),
                placement=plan_placement(nodes=NODES),
            )
            self.say(self.node_of(rank), protected)

    def node_of(self, rank):
        return self.members[rank // self.per_node]

    def iterate(self):
        """All ranks tell an iteration, in any order among one another."""
        self.number += 1
        took_s = self.draws.choice([0.5, 1.0, 0.01]) * (1 + self.draws.random())
        began_s, self.now_s = self.now_s, self.now_s + took_s
        told = [self.of_rank(rank, began_s, took_s) for rank in range(self.ranks)]
        while told:
            each = self.draws.choice(told)
            self.say(*each.pop(0))
            told = [some for some in told if some]

    def of_rank(self, rank, began_s, took_s):
        draws, node, number = self.draws, self.node_of(rank), self.number
        who = {"rank": rank, "epoch": self.epoch}
        at_s = self.now_s + draws.choice([0.0, 0.001, -0.3])
        kinds = draws.choice(KINDS)
        calls = draws.choice([0, 1, 3, 8]) if kinds else 0
        sent_s = began_s + took_s * draws.uniform(-0.5, 1)
        lasts_s = took_s * draws.choice([0.0, 0.1, 0.7, 3.0])
        some = [
            events.IterationBegun(
                iteration=number, inputs=events.Inputs(batch="b", random={}), **who
            ),
            events.Collectives(
                iteration=number,
                began_s=began_s,
                kinds=kinds,
                order=tuple(draws.randrange(len(kinds)) for _ in range(calls)),
                gaps_us=tuple(draws.choice([0, 100, 200_000]) for _ in range(calls)),
                durations_us=tuple(draws.choice([0, 50, 300_000]) for _ in range(calls)),
                **who,
            ),
            events.Transfer(
                version=number - 1,
                span=draws.choice([None, 0, 3]),
                peer=(rank + 1) % self.ranks,
                sent_bytes=1000,
                start_s=sent_s,
                end_s=sent_s + lasts_s,
                **who,
            ),
            events.VersionComplete(
                version=number - 1,
                sent_bytes=draws.choice([1000, 0]),
                local_s=0.1,
                duration_s=0.3,
                next_version=number,
                whole_s=draws.choice([0.26, None]),
                **who,
            ),
        ]
        done = events.Iteration(
            iteration=number,
            duration_s=took_s,
            waited_s=draws.choice([0.0, 0.0, 1e-5, 0.02, took_s]),
            values=draws.choice([{"loss": draws.random()}, {"loss": float("nan"), "lr": 1.0}, {}]),
            **who,
        )
        kept = [one for one in some if draws.random() < 0.9]
        return [[node, one, at_s] for one in [*kept, done]]

    def oddly(self):
        """Something that no stretch has."""
        draws = self.draws
        last = self.lines[-1]
        match draws.randrange(8):
            case 0:
                self.lines.append(last)  # told twice
            case 1:
                self.lines.append(draws.choice([b"", b"no line", b'{"at_s":1}', last[:-9], b"{}"]))
            case 2:
                self.lines.append(draws.choice(self.lines))  # out of order
            case 3:
                rewound = events.Rewound(
                    rank=0,
                    epoch=self.epoch,
                    iteration=self.number,
                    version=self.number - 1,
                    rewinds=1,
                    skips=True,
                    cause="script",
                    duration_s=0.1,
                )
                self.say(self.node_of(0), rewound)
            case 4:
                self.members[0] = draws.choice(["node-0", "spare-0", "spare-1"])
            case 5:
                self.lines.append(last.replace(b'"epoch":', b'"epoch":1'))
            case 6:
                self.lines.append(last.replace(b'"rank":', b'"rank":9'))
            case 7:
                self.say("lab", events.Note(text="a remark"))

    def recover(self):
        self.epoch += 1
        started = events.RecoveryStarted(
            recovery=self.epoch,
            epoch=self.epoch,
            cause="worker_exited",
            lost=(),
            failed_at_s=self.now_s,
            iteration=self.number,
        )
        self.say("node-0", started)
        self.number = max(0, self.number - self.draws.randrange(3))
        self.start(self.epoch)


def plain(value):
    """All that a value holds, so that it can be compared to the bit."""
    match value:
        case float():
            return value.hex()
        case np.ndarray() | array():
            return value.tobytes()
        case Mapping():
            return sorted((repr(key), repr(plain(each))) for key, each in value.items())
        case set() | frozenset():
            return sorted(map(repr, value))
        case str() | bytes() | bytearray() | int() | None:
            return value
    if hasattr(value, "__struct_fields__"):
        return repr(value)
    if hasattr(value, "__iter__"):
        return [plain(each) for each in value]
    return state(value)


def state(part):
    slots = [name for base in type(part).__mro__ for name in getattr(base, "__slots__", ())]
    names = [*getattr(part, "__dict__", ()), *slots]
    left_out = {"_nodes", "_heaped", "_parts", "_readers", "_stretches", "_conditions"}
    values = {name: getattr(part, name) for name in names if name not in left_out}
    return {name: plain(each) for name, each in values.items() if not callable(each)}


def told(run):
    """Everything that a run came to, part by part."""
    run.traffic.bars.between(0, 0)  # writes what is to be written
    return state(run)


@pytest.fixture
def is_small(monkeypatch):
    """Stretches and batches so short that a little log has many of both."""
    monkeypatch.setattr(stretch, "FEWEST_LINES", 5)
    monkeypatch.setattr(reducer, "FEWEST_LINES", 5)
    monkeypatch.setattr(stretch, "MOST_LINES", 60)
    monkeypatch.setattr(stretch, "MOST_CALLS", 100)
    monkeypatch.setattr(bars, "BATCH", 64)


def reduced():
    blocks = MemoryBlocks()
    return RunReducer(
        blocks=blocks, keep=Keep(bars=256, recoveries=100, notes=5, ranks=False, levels=True)
    )


@pytest.mark.usefixtures("is_small")
@pytest.mark.parametrize("seed", range(40))
def test_any_log_comes_to_the_same(tmp_path, seed, monkeypatch):
    """Also while it grows, with lines that are cut short where a reader comes to them."""
    taken = []
    take = RunReducer._take_stretch
    monkeypatch.setattr(
        RunReducer, "_take_stretch", lambda run, one: taken.append(take(run, one)) or taken[-1]
    )
    draws, log = random.Random(seed), tmp_path / LOG_FILE
    data = b"\n".join(Story(seed).tell(draws.choice([20, 120]))) + b"\n"
    fast, slow = reduced(), reduced()
    feed, written = LogFeed(log), 0
    while written < len(data):
        more = draws.randrange(1, 100_000)
        with log.open("ab") as file:
            file.write(data[written : written + more])
        written += more
        while fast.read(feed, limit=draws.choice([7, 100, 10_000])):
            pass
    feed = LogFeed(log)
    while entries := feed.poll():
        slow.extend(entries)
    slow.unread += feed.bad_lines
    here, there = told(fast), told(slow)
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []
    assert sum(taken) >= 3
