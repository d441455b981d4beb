"""What a script carries by itself is named once it has changed; what it hands over is not."""

import gc
import random
import sys
import threading
import time
import weakref
from collections import deque
from functools import partial
from itertools import count, cycle, islice
from types import FunctionType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from gemini_lab.engine.own_code import is_own_file
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.engine.state.value_digest import digest
from gemini_lab.engine.unkept.script_values import ScriptValues, script_frames
from gemini_lab.engine.unkept.script_watch import ScriptWatch
from gemini_lab.engine.unkept.stray_loaders import StrayLoaders
from gemini_lab.shard.codec import encode


def ours():
    """What lives of this module: other tests' scripts may be there, too."""
    things = gc.get_objects()
    return [
        one
        for one in things
        if type(one).__module__ == __name__
        or (type(one) is FunctionType and one.__module__ == __name__)
    ]


class Fetching:
    """A thread of its own makes attributes of it, and lets others go."""

    def __init__(self):
        self.counts, self.is_over = [0] * 1000, threading.Event()

    def fetch(self):
        for number in count():
            setattr(self, f"part_{number}", [number])
            vars(self).pop(f"part_{number - 16}", None)
            self.counts[0] += 1
            if self.is_over.wait(0.0001):
                break


def test_objects_that_another_thread_changes_are_looked_at_all_the_same():
    fetching, before = Fetching(), sys.getswitchinterval()
    thread = threading.Thread(target=fetching.fetch)
    unkept = ScriptValues([], living=lambda: [fetching, Fetching.fetch])
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(200):
            unkept.changed(script_frames())
    finally:
        sys.setswitchinterval(before)
        fetching.is_over.set()
        thread.join()


def tops(unkept):
    """A loop's top, four times; gives what was named there."""
    for _ in range(4):
        frames = [one for one in script_frames() if one.f_code is not tops.__code__]
        yield unkept.changed(frames)


def patience(unkept, told):
    best, bad = 9.0, 0
    for found in tops(unkept):
        told.append(found)
        loss = random.random()
        best, bad = (loss, 0) if loss < best else (best, bad + 1)


def counting(unkept, told):
    """As a learning rate's function may count its calls."""
    calls = 0

    def decay():
        nonlocal calls
        calls += 1

    for found in tops(unkept):
        told.append(found)
        decay()


def hooked(unkept, told):
    """As a hook counts in a list around it; what it looks up is no value of its own."""
    count, window, known, losses = [0], [1.0], {}, []

    def hook():
        count[0] += 1
        window.append(1.0 / count[0])
        known[count[0]] = known.get(count[0], "said")
        losses.append(window[-1])

    for found in tops(unkept):
        told.append(found)
        hook()


TOTALS = {"loss": 0.0, "seen": 1}


def totals(unkept, told):
    """In a dict of the module."""

    def add():
        TOTALS["loss"] = TOTALS["loss"] * 0.9 + TOTALS["seen"]

    for found in tops(unkept):
        told.append(found)
        add()


def averaged(unkept, told):
    """Of weights, in a dict whose tensors are made anew each time."""
    mean = {"weight": torch.zeros(2), "bias": torch.zeros(1)}
    for found in tops(unkept):
        told.append(found)
        mean = {name: 0.9 * one + 0.1 for name, one in mean.items()}


def recurrent(unkept, told):
    """A state that one batch hands to the next, with the graph that made it."""
    weight, hidden = torch.ones(2, requires_grad=True), (torch.zeros(2), torch.zeros(2))
    for found in tops(unkept):
        told.append(found)
        hidden = tuple((one.detach() + 1) * weight for one in hidden)


def generator(unkept, told):
    """In the closure of a function."""
    own = np.random.default_rng(1)

    def noise():
        return own.random()

    for found in tops(unkept):
        told.append(found)
        noise()


def stream(unkept, told):
    """A generator function that counts epochs; the loop asks it for batches."""

    def endless():
        epoch = 0
        while True:
            yield epoch
            epoch += 1

    batches = endless()
    for found in tops(unkept):
        told.append(found)
        next(batches)


class Stopper:
    """Stops early."""

    def __init__(self):
        self.bad = self.last = 0
        self.losses = []

    def see(self, loss):
        self.bad += 1
        self.last = loss
        self.losses.append(loss)


def stopper(unkept, told):
    it = Stopper()
    for found in tops(unkept):
        told.append(found)
        it.see(1.0 + it.bad)


class Normaliser:
    """Of what an environment gives."""

    def __init__(self):
        self.mean = np.zeros(2)

    def see(self, seen):
        self.mean += (seen - self.mean) / 2


def normaliser(unkept, told):
    it = Normaliser()
    for found in tops(unkept):
        told.append(found)
        it.see(1.0)


def replay(unkept, told):
    buffer, own = deque(maxlen=2), torch.Generator()
    for found in tops(unkept):
        told.append(found)
        buffer.append(torch.rand((), generator=own).item())
        max(buffer)


class Buffer:
    """Draws from what it was given, within a comprehension."""

    def __init__(self):
        self.items = deque(maxlen=5)

    def push(self, item):
        self.items.append(item)

    def sample(self, count):
        return [random.choice(self.items) for _ in range(count)]


def sampled(unkept, told):
    it = Buffer()
    for found in tops(unkept):
        told.append(found)
        it.push(1.0)
        it.sample(2)


def ahead(unkept, told):
    """A batch that one pass fetches for the next."""
    batch = torch.rand(2)
    for found in tops(unkept):
        told.append(found)
        batch = torch.rand(2) + batch


STORIES = {
    patience: ["'bad' of patience()", "'best' of patience()"],
    counting: ["'calls' of counting.<locals>.decay()"],
    hooked: ["'count' of hooked.<locals>.hook()", "'window' of hooked.<locals>.hook()"],
    averaged: ["'mean' of averaged()"],
    recurrent: ["'hidden' of recurrent()"],
    totals: ["'TOTALS' of totals.<locals>.add()"],
    generator: ["'own' of generator.<locals>.noise()"],
    stream: ["'epoch' of stream.<locals>.endless()"],
    stopper: ["'bad' of a Stopper"],
    normaliser: ["'mean' of a Normaliser"],
    replay: ["'buffer' of replay()", "'own' of replay()"],
    sampled: ["'items' of a Buffer"],
    ahead: ["'batch' of ahead()"],
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_a_script_carries_by_itself_is_named_once_it_has_changed(story):
    told = []
    random.seed(1)
    story(ScriptValues([], living=ours), told)
    named = [name for carried, twofold in told for name in (*carried, *twofold)]
    assert told[0] == ([], [])
    assert sorted(named) == STORIES[story]


NORMS: list[float] = []
TOLD: list[float] = []


def note(norm):
    NORMS.append(norm)
    TOLD.append(norm)


def threshold():
    return np.percentile(NORMS, 10) + len([one for one in (1.0, 2.0) if one in NORMS])


def clipped(unkept, told):
    """By a history of the module's, which one function keeps and another reads."""
    for found in tops(unkept):
        told.append(found)
        note(1.0)
        threshold()


def clipped_within(unkept, told):
    """By one of its own, to which it adds, and which a function within it reads."""
    norms, shown = [], []

    def largest():
        return max(norms)

    for found in tops(unkept):
        told.append(found)
        norms.append(1.0)
        shown.append(largest())


@pytest.mark.parametrize(("story", "name"), [(clipped, "NORMS"), (clipped_within, "norms")])
def test_a_history_that_one_function_keeps_and_another_reads_is_named(story, name):
    told = []
    story(ScriptValues([], living=ours), told)
    ((found,),) = [names for names, _ in told if names]
    assert found.startswith(f"{name!r} of ")


def test_what_is_handed_over_or_told_or_written_anew_is_not_named():
    """A dict and a generator that a version has; a clock; a history; what a pass begins with."""
    counts, own = {"bad": 0, "seen": [1]}, random.Random(1)
    unkept, named = ScriptValues([counts, own], living=ours), []
    together = {"one": own}
    history, began_s, last = [], time.perf_counter(), 0.0
    for carried, twofold in tops(unkept):
        named += [*carried, *twofold]
        loss = together["one"].random()
        counts["bad"] += 1
        counts["seen"].append(loss)
        history.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        last = loss
    assert (len(history), last) != (0, 0.0)
    assert named == []


@pytest.mark.parametrize("is_told", [True, False])
def test_the_epoch_that_the_outer_loop_is_given_is_no_value_of_the_scripts_own(is_told):
    unkept, named = ScriptValues([], living=ours), []
    for epoch in range(3):
        for _ in range(2):
            frames = script_frames()[:1]
            named += unkept.changed(frames, epoch=epoch if is_told else None)[0]
            assert epoch < 3
    assert [name.split()[0] for name in named] == ([] if is_told else ["'epoch'"])


def test_what_a_dict_holds_and_the_script_knows_by_another_name_is_said():
    """After a failure the dict holds another list."""
    buffer = []
    unkept, found = ScriptValues([{"buffer": buffer, "other": []}], living=ours), []
    for carried, twofold in tops(unkept):
        found.append((carried, twofold))
        buffer.append(len(buffer))
        max(buffer)
    where = test_what_a_dict_holds_and_the_script_knows_by_another_name_is_said.__name__
    assert found[1] == ([], [f"'buffer' of {where}()"])


def test_a_name_that_is_taken_from_the_dict_afterwards_is_no_second_one():
    """So that it is the restored list."""
    state = {"buffer": []}
    unkept, named = ScriptValues([state], living=ours), []
    buffer = state["buffer"]
    for carried, twofold in tops(unkept):
        named += [*carried, *twofold]
        buffer.append(len(buffer))
        max(buffer)
    assert named == []


def test_what_is_looked_at_is_not_taken_for_what_a_version_had_before():
    """Tuples of a kept dict are gone, and others come to lie in their places."""
    state, options = {number: ([number], [number]) for number in range(500)}, {"name": [1, 2]}
    unkept, named = ScriptValues([state], living=ours), []
    for carried, twofold in tops(unkept):
        named += [*carried, *twofold]
        state.clear()
        max(options["name"])
    assert named == []


class Handed:
    """Counts how often it is used, and holds what it was given."""

    def __init__(self, given):
        self.given, self.used = given, 0

    def use(self):
        self.used += 1
        return sum(self.given)


def test_an_object_that_goes_changes_nothing_in_those_of_its_kind_that_stay():
    stays, goes = Handed([1]), [Handed([2]), Handed([3])]
    unkept, named = ScriptValues([], living=ours), []
    for carried, _ in tops(unkept):
        named += carried
        goes.clear()
    assert stays.used == 0
    assert [name for name in named if "Handed" in name] == []


def test_objects_of_a_kind_that_change_alike_are_named():
    alike, told = [Handed([1]), Handed([1])], []
    for carried, _ in tops(ScriptValues([], living=ours)):
        told.append(carried)
        assert [one.use() for one in alike] == [1, 1]
    assert told == [[], ["'used' of a Handed"], [], []]


def warm_up(unkept):
    """The first of a script's loops."""
    yield from tops(unkept)


def main_part(unkept):
    """The second one, with numbers of its own that stay as they are."""
    margin, edges = 0.5, [1.0, 2.0]
    for found in tops(unkept):
        yield found
        assert margin < max(edges)


def test_what_is_first_seen_later_is_named_once_it_has_changed_since():
    unkept = ScriptValues([], living=ours)
    told = [*warm_up(unkept), *main_part(unkept)]
    assert told == [([], [])] * 8


class Clock:
    """One that a test sets."""

    def __init__(self, now_s):
        self.now_s = now_s

    def read(self):
        return self.now_s


def test_numbers_that_a_clock_comes_to_are_not_taken_for_changed():
    """As where a machine's clock is at 10,000 s while it trains, and so is a model's option."""
    clock, told, shown = Clock(9_000.0), [], []
    options, began = {"theta": 10_000.0, "layers": 2}, {"at": 9_000.0}
    for found in tops(ScriptValues([], living=list, clocks=[clock.read])):
        told.append(found)
        shown.append(began["at"] + options["theta"])
        clock.now_s += 600.0
        began = {"at": clock.read()}
    assert told == [([], [])] * 4
    assert clock.now_s > options["theta"]


def test_a_set_that_is_made_anew_is_as_it_was():
    """Equal sets may give their elements in any order."""
    one, other = set[int](), set[int]()
    for number in (0, 8, 16):
        one.add(number)
        other.add(16 - number)
    assert [*one] != [*other]
    assert digest(one) == digest(other) != digest({0, 8})


def test_it_is_said_with_the_way_out_from_the_first_versions_on():
    script, said = ScriptState(), []
    answers = iter([((), ()), (["'bad' of main()"], ["'buffer' of main()"]), ((), ())])
    script.unkept = lambda: next(answers)
    watch = ScriptWatch(script, said.append)
    drawn = encode(script.drawn())
    for _ in range(4):
        watch.see_version(drawn, at_top=True, is_asked=True)
    carried, twofold = said
    assert "that no version has ('bad' of main()), and after a failure" in carried
    assert "protect(..., client_state=counts)" in carried
    assert "under a name of its own ('buffer' of main()): after a failure" in twofold


def test_what_cannot_be_read_disturbs_nobody():
    """A tensor without values, or what another thread changes meanwhile."""

    def loop(unkept, told):
        hollow, sparse = torch.empty(2, device="meta"), torch.eye(2).to_sparse()
        for found in tops(unkept):
            told.append(found)
            hollow, sparse = hollow + 1, sparse * 2

    told = []
    loop(ScriptValues([], living=list), told)
    assert told == [([], [])] * 4


def test_what_cycle_keeps_of_a_loader_is_said_once():
    loader = DataLoader([1, 2, 3])
    script, said = ScriptState(data=[loader]), []
    watch = ScriptWatch(script, said.append)
    batches = cycle(loader)
    for _ in range(4):
        next(batches)
        watch.see_version(encode(script.drawn()), at_top=True, is_asked=True)
    (text,) = said
    assert "itertools.cycle reads a loader" in text
    assert "`while True: yield from loader`" in text


class Averages(torch.nn.Module):
    """In a dict, of which torch's own `state_dict` says nothing."""

    def __init__(self):
        super().__init__()
        self.shadow, self.count = {"weight": torch.zeros(2)}, 0

    def update(self):
        self.shadow["weight"] = 0.9 * self.shadow["weight"] + 0.1
        self.count += 1


class SayingAverages(Averages):
    """With one of its own."""

    def state_dict(self, *_args, **_options):
        return {"shadow": self.shadow, "count": self.count}


@pytest.mark.parametrize("kind", [Averages, SayingAverages])
@pytest.mark.parametrize("is_told", [True, False])
def test_of_a_module_that_is_handed_over_what_its_state_dict_leaves_out_is_named(kind, is_told):
    averages, told = kind(), []
    unkept = ScriptValues([averages] if is_told else [], living=lambda: [averages, Averages.update])
    for carried, _ in tops(unkept):
        told.append(carried)
        averages.update()
    ends = ", which its state_dict leaves out" if is_told else ""
    names = [f"{name!r} of a {kind.__name__}{ends}" for name in ("count", "shadow")]
    assert [name for carried in told for name in carried] == (
        [] if is_told and kind is SayingAverages else names
    )


def train_an_epoch(unkept, epoch, rate):
    """Its own rate goes down; what epoch it is, it only reads."""
    for _ in range(2):
        yield from unkept.changed(script_frames(), epoch=epoch)[0]
        rate = 0.9 * rate + epoch


def test_an_argument_that_a_function_leaves_as_it_is_belongs_to_who_calls_it():
    """As in `for epoch in protected.epochs(90): train(loader, model, epoch)`."""
    unkept = ScriptValues([], living=ours)
    named = [name for epoch in range(3) for name in train_an_epoch(unkept, epoch, 0.1)]
    assert named == ["'rate' of train_an_epoch()"]


def in_epochs(loader, watch):
    """As a loop over `protected.epochs`: a version is sealed where the next batch is asked for."""
    watch_of_loader = loader.__dict__["_gemini_lab_watch"]
    watch_of_loader.on_fetch = lambda: watch.see_version(encode(DRAWN), at_top=True, is_asked=True)
    for i, batch in enumerate(loader):
        if i + 1 == len(loader):
            return
        str(f"{i} {batch}")


DRAWN = {"data": [], "client": None, "also": {}, "own": [], "random": 0}


def test_a_count_of_batches_by_enumerate_is_said_where_something_hangs_on_it():
    loader, remarks = DataLoader([1, 2, 3, 4]), []
    script = ScriptState(data=[loader])
    in_epochs(loader, ScriptWatch(script, remarks.append))
    (text,) = remarks
    assert "by `enumerate` ('i' of in_epochs()), which begins at 0 again" in text


@pytest.mark.parametrize(
    ("read", "is_told"),
    [
        (lambda loader: islice(loader, 6), True),
        (lambda loader: zip(range(6), loader, strict=False), True),
        (lambda loader: map(str, enumerate(zip(range(6), loader, strict=False))), True),
        (lambda loader: zip(loader, "abcdef", strict=False), False),
        (iter, False),
    ],
    ids=["islice", "zip", "zip within", "zip with a text", "itself"],
)
def test_what_takes_a_number_of_batches_is_said(read, *, is_told):
    loader, said = DataLoader([1, 2, 3, 4, 5, 6, 7]), []
    script = ScriptState(data=[loader])
    watch = ScriptWatch(script, said.append)
    batches = read(loader)
    for _ in range(4):
        next(batches)
        watch.see_version(encode(script.drawn()), at_top=False, is_asked=True)
    assert ["`zip` with a range" in text for text in said] == [True] * is_told


def endless(loader):
    while True:
        yield from loader


@pytest.mark.parametrize("kept", [True, False], ids=["handed over", "not handed over"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_read_from_one_iteration_to_the_next_is_said(workers, kept):
    """Beside it another is read to its end in each, as in an evaluation, and one is begun alone."""
    loader = DataLoader([1, 2, 3, 4, 5, 6], batch_size=2, num_workers=workers)
    script = ScriptState(data=[loader] if kept else [])
    said = []
    watch = ScriptWatch(script, said.append)
    batches, begun = endless(loader), iter(DataLoader([1, 2]))
    next(begun)
    for _ in range(4):
        next(batches)
        assert list(DataLoader([1, 2, 3]))
        watch.see_version(encode(script.drawn()), at_top=False, is_asked=True)
    told = [text for text in said if "has not handed over (a DataLoader of a list)" in text]
    assert len(told) == (not kept)


def test_an_iterator_that_could_not_be_made_is_none():
    """Its traceback, which somebody keeps, keeps it as far as it came."""

    class Broken(list):
        def __iter__(self):
            raise NotImplementedError

    strays = StrayLoaders([])
    with pytest.raises(NotImplementedError) as kept:
        iter(DataLoader([1, 2], batch_sampler=Broken()))
    strays.look()
    assert kept.traceback
    assert not strays.read_on()


def test_a_source_of_ones_own_may_read_a_loader():
    class Stream:
        state_dict = load_state_dict = None

    loader = DataLoader([1, 2, 3, 4])
    strays = StrayLoaders([Stream()], living=lambda: [batches])
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        strays.look()
    assert strays.read_on() == []


class Batch:
    """What an iteration computes with."""

    def __init__(self):
        self.tokens = torch.zeros(8)


class Sampling(torch.optim.SGD):
    """Adapts itself by what it has seen."""

    def __init__(self):
        super().__init__([torch.zeros(1, requires_grad=True)], lr=0.1)
        self.seen, self.taken = set(), 0

    def step(self, closure=None):
        self.taken += len(self.seen)
        self.seen.add(self.taken)
        return super().step(closure)


def test_a_set_of_an_optimizers_own_is_named_and_its_numbers_are_not():
    optimizer, told = Sampling(), []
    for found in tops(ScriptValues([optimizer], living=ours)):
        told.append(found)
        optimizer.step()
    assert [name for carried, _ in told for name in carried] == ["'seen' of a Sampling"]


def test_a_weak_proxy_of_what_is_gone_disturbs_nobody():
    owner, other, told = Stopper(), Stopper(), []
    other.owner = weakref.proxy(owner)
    unkept = ScriptValues([[other.owner]], living=ours)
    del owner
    for found in tops(unkept):
        told.append(found)
        other.see(1.0)
    assert told[1] == (["'bad' of a Stopper"], [])


def test_what_torch_compile_writes_is_not_the_scripts_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    assert not is_own_file(str(tmp_path / "compiled" / "ab" / "cab.py"))
    assert is_own_file(str(tmp_path / "train.py"))


def test_nothing_is_kept_alive():
    """A batch that was there at a look would stand in memory for the rest of the run."""
    batch, outputs = Batch(), torch.zeros(8)
    unkept = ScriptValues([], living=ours)
    for _ in range(2):
        unkept.changed(script_frames())
    held = [weakref.ref(batch), weakref.ref(batch.tokens), weakref.ref(outputs)]
    del batch, outputs
    assert [one() for one in held] == [None, None, None]


def test_who_looks_through_all_objects_lets_go_of_them():
    """A script may have switched the collector off, which alone takes cycles apart."""
    batch, strays = Batch(), StrayLoaders([])
    held = weakref.ref(batch)
    gc.disable()
    try:
        strays.look()
        del batch
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "look",
    [
        lambda living: StrayLoaders([], living).look(),
        lambda living: ScriptValues([], living).changed(script_frames()),
    ],
    ids=["loaders", "values"],
)
def test_who_is_watched_while_it_looks_through_all_objects_lets_go_of_them(look):
    """As by a profiler's thread: what holds the frame is among what the frame holds."""

    def living(batch):
        stack = [sys._getframe(1)]
        return [batch, stack]

    def script():
        batch = Batch()
        look(partial(living, batch))
        return weakref.ref(batch)

    gc.disable()
    try:
        assert script()() is None
    finally:
        gc.enable()


class Compared(type):
    """Classes that are compared with others, and have no hash."""

    __hash__ = None

    def __eq__(cls, other):
        return other is cls


def test_objects_whose_class_has_no_hash_are_looked_at():
    class Counts(metaclass=Compared):
        count = 0

    one = Counts()
    StrayLoaders([], living=lambda: [one]).look()
    unkept, told = ScriptValues([], living=lambda: [one]), []
    for found in tops(unkept):
        told.append(found)
        one.count += 1
    assert [name for carried, _ in told for name in carried] == ["'count' of a Counts"]


class Unsized(Sampler):
    """Its error knows where it was raised, for as long as it lives."""

    error = TypeError("a stream has no length")

    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        raise self.error


def test_what_an_error_of_a_samplers_holds_is_not_all_there_is():
    reads = iter(DataLoader(range(4), sampler=Unsized()))
    next(reads)
    batch, strays = Batch(), StrayLoaders([])
    held = weakref.ref(batch)
    strays.look()
    del batch
    assert held() is None
    assert Unsized.error.__traceback__ is not None


def test_a_function_keeps_what_it_had_of_its_variables():
    seed = 7
    config = locals()
    ScriptValues([], living=list).changed(script_frames())
    assert config["seed"] == seed
