# ruff: noqa: ARG001, ARG005 - an attack calls a planner by its parameters' names
"""An attack finds the smallest case that breaks a stage, tells it in a sentence, and ends."""

import collections
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gemini_lab import Placement, attack, plan_placement
from gemini_lab.errors import WIDE
from gemini_lab.pipeliner import plan_chunks
from gemini_lab.pipeliner.schedule import Chunk
from gemini_lab.placement.own import by_name
from gemini_lab.recovery.plan import RecoveryPlan, plan_recovery
from gemini_lab.units import format_seconds
from gemini_lab_course import WrongAnswerError
from gemini_lab_course.attacks import chunks, placements, recoveries, withstood
from gemini_lab_course.attacks.divisions import divided
from gemini_lab_course.attacks.search import Patience

# -- planners that are wrong ----------------------------------------------------------------------


def ring(nodes, replicas):
    return plan_placement(nodes=nodes, replicas=replicas, strategy="ring")


def one_short(nodes, replicas):
    """Distances that meet the owner again where few nodes are."""
    return [[(owner + 2 * k) % nodes for k in range(replicas)] for owner in range(nodes)]


def all_on_the_first(nodes, replicas):
    return [
        [owner, *[n for n in range(nodes) if n != owner][: replicas - 1]] for owner in range(nodes)
    ]


def generous(nodes, replicas):
    return [[owner, *(n for n in range(nodes) if n != owner)] for owner in range(nodes)]


def cut(checkpoint_bytes, part_bytes, span, replica=1):
    for at_bytes in range(0, checkpoint_bytes, part_bytes):
        size_bytes = min(part_bytes, checkpoint_bytes - at_bytes)
        yield Chunk(span=span, replica=replica, offset_bytes=at_bytes, size_bytes=size_bytes)


def lazy(profile, checkpoint_bytes, replicas, buffer_bytes, sub_buffers):
    """Leaves everything over."""
    for replica in range(1, replicas):
        yield from cut(checkpoint_bytes, buffer_bytes // sub_buffers, None, replica)


def first_span(profile, checkpoint_bytes, replicas, buffer_bytes, sub_buffers):
    """Puts everything into the first span, however short that is."""
    span = 0 if any(each.before_update for each in profile.idle_spans) else None
    for replica in range(1, replicas):
        yield from cut(checkpoint_bytes, buffer_bytes // sub_buffers, span, replica)


def one_byte_a_second(**given):
    """Takes every link for the same."""
    return plan_chunks(**{**given, "bandwidth_bytes_per_s": 1.0})


def rounds_up(**given):
    """Takes a part of a buffer for larger than it is."""
    parts = given["sub_buffers"]
    return plan_chunks(**{**given, "buffer_bytes": -(-given["buffer_bytes"] // parts) * parts})


def few_bytes_only(**given):
    if given["checkpoint_bytes"] > 5:
        raise IndexError("a sixth byte")
    return plan_chunks(**given)


def whole_buffer(profile, checkpoint_bytes, replicas, buffer_bytes):
    for replica in range(1, replicas):
        yield from cut(checkpoint_bytes, buffer_bytes, None, replica)


def late_spans_too(profile, **given):
    usable = tuple(replace(span, before_update=True) for span in profile.idle_spans)
    return plan_chunks(replace(profile, idle_spans=usable), **given)


def ends_never(profile):
    while True:
        pass


def changed(**more) -> Callable[..., RecoveryPlan]:
    """The reference's plan with something else in it."""
    return lambda **given: replace(plan_recovery(**given), **more)


def newest_of_all(**given):
    """Takes the newest version that it hears of, whole or not."""
    newest = max(copy.version for copy in given["copies"])
    if any(one.version > newest for one in given["persistent"]):
        return plan_recovery(**given)
    return replace(plan_recovery(**given), version=newest, tier="memory")


def forgets_the_dead(**given):
    """Counts copies of lost nodes."""
    every = {copy.node for copy in given["copies"]} | given["living"]
    return plan_recovery(**{**given, "living": every})


def loads_only(**given):
    """Makes no replica anew."""
    plan = plan_recovery(**given)
    owners = {(s.shard, plan.members[s.shard]) for s in plan.sources}
    needed = tuple(t for t in plan.transfers if (t.shard, t.receiver) in owners)
    return replace(plan, transfers=needed)


def seats_the_dead(**given):
    """Takes whoever waited before."""
    return plan_recovery(**{**given, "living": {*given["living"], *given["standbys"]}})


def first_stored(**given):
    """Takes the first version that is stored."""
    return plan_recovery(**{**given, "persistent": given["persistent"][:1]})


def four_nodes_at_most(**given):
    if len(given["members"]) > 4:
        raise KeyError("node-4")
    return plan_recovery(**given)


def keeps_all(held):
    return held


def first_holder_keeps(held):
    """Leaves each piece to the first rank that has it."""
    seen = set()
    for pieces in held:
        for piece in seen & pieces.keys():
            del pieces[piece]
        seen |= pieces.keys()
    return held


def rounds_down(held):
    """Loses what does not divide."""
    count = collections.Counter(piece for pieces in held for piece in pieces)
    return [{piece: size // count[piece] for piece, size in pieces.items()} for pieces in held]


class Once:
    """A planner that answers as long as it was not called so many times."""

    def __init__(self, plan, calls):
        self.plan, self.left = plan, calls

    def __call__(self, nodes, replicas):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("not again")
        return self.plan(nodes=nodes, replicas=replicas)


class Fickle:
    """A planner whose answers are all right, and each another one."""

    def __init__(self):
        self.calls = 0

    def __call__(self, nodes, replicas):
        self.calls += 1
        holders = plan_placement(nodes=nodes, replicas=replicas).holders
        return [(kept[0], *kept[1:][:: (-1) ** self.calls]) for kept in holders]


def even_only(nodes, replicas):
    """Forgets who is left over."""
    last = nodes - nodes % replicas
    pairs = [range(i, i + replicas) for i in range(0, last, replicas)]
    return [[n, *(o for o in pair if o != n)] for pair in pairs for n in pair]


def until_three(nodes, replicas):
    """Keeps three copies at most."""
    return plan_placement(nodes=nodes, replicas=min(replicas, 3)).holders


def waits(**given):
    return plan_recovery(**{**given, "standbys": ()})


def from_storage(**given):
    """Goes to the persistent tier at once."""
    if not given["persistent"]:
        return plan_recovery(**given)
    return plan_recovery(**{**given, "copies": ()})


WRONG = [
    ("placement", ring, "4 nodes, 2 replicas", "4 of the 6 sets"),
    ("placement", one_short, "2 nodes, 2 replicas", "lose node-0, and shard 0 is gone"),
    ("placement", all_on_the_first, "4 nodes, 2 replicas", "3 of the 6 sets"),
    ("placement", generous, "2 nodes, 1 replica", "is kept 2 times"),
    ("placement", lambda nodes: [[0]] * nodes, "2 nodes, 1 replica", "name its owner first"),
    ("placement", lambda nodes: [[n + 1] for n in range(nodes)], "1 node", "to lie on node 1"),
    ("placement", lambda nodes: [[0]], "2 nodes, 1 replica", "there are 2 shards"),
    ("placement", lambda nodes: 1 // (nodes - 1), "1 node", "raises ZeroDivisionError"),
    ("placement", lambda nodes: None, "1 node", "it returns nothing"),
    ("placement", lambda nodes: "01", "1 node", "and it is a str"),
    ("placement", lambda nodes: 7, "1 node", "and it is an int"),
    ("placement", lambda nodes: [0] * nodes, "1 node", "and it has an int in it"),
    ("placement", lambda nodes: [[n / 1] for n in range(nodes)], "1 node", "has a float in it"),
    ("placement", even_only, "3 nodes, 2 replicas", "there are 3 shards"),
    ("placement", until_three, "4 nodes, 4 replicas", "4 were asked for"),
    ("placement", Once(plan_placement, 1), "1 node", "asked the same again: it raises Runtime"),
    ("placement", Once(plan_placement, 40), "7 nodes", "it raises RuntimeError: not again"),
    ("placement", Fickle(), "3 nodes, 3 replicas", "asked the same again, it answers something"),
    ("placement", lambda nodes: sys.exit(1), "1 node", "raises SystemExit"),
    (
        "placement",
        lambda nodes, magic: [],
        "1 node",
        "it wants `magic`, and is called with nodes, replicas",
    ),
    ("chunks", lazy, "1 byte, 2 replicas", "idle span 0 has room"),
    ("chunks", first_span, "1 byte, 2 replicas", "training's next collective waits"),
    ("chunks", whole_buffer, "2 bytes, 2 replicas", "no room at its receiver"),
    ("chunks", late_spans_too, "1 byte, 2 replicas", "the state is already changed"),
    ("chunks", lambda profile: [], "1 byte, 2 replicas", "0 of the 1 bytes are sent"),
    ("chunks", one_byte_a_second, "1 byte, 2 replicas, 2 B/s", "idle span 0 has room"),
    ("chunks", rounds_up, "3 bytes, 2 replicas", "a chunk of 3 bytes has no room"),
    ("chunks", few_bytes_only, "400 bytes", "it raises IndexError: a sixth byte"),
    ("chunks", lambda profile: ["chunk"], "0 bytes", "there is a str"),
    ("chunks", lambda profile: 7, "0 bytes", "and it is an int"),
    ("chunks", ends_never, "0 bytes", "no answer after 2 s"),
    ("recovery", newest_of_all, "1 node", "no living node has shard 0 of it"),
    ("recovery", forgets_the_dead, "1 node", "is not alive"),
    ("recovery", loads_only, "2 nodes, 2 replicas, no node lost", "is sent no copy"),
    ("recovery", waits, "1 node, 1 replica, node-0 lost, 1 standby", "stays empty although"),
    ("recovery", from_storage, "1 node", "although a newer one is whole"),
    ("recovery", changed(version=None), "1 node", "training starts over although"),
    ("recovery", changed(sources=()), "1 node", "needs one source"),
    ("recovery", changed(transfers=(), tier="peer"), "1 node", "not in the tier"),
    ("recovery", seats_the_dead, "1 node, 1 replica, node-0, node-1 lost", "is not alive"),
    ("recovery", first_stored, "1 node", "although a newer one is whole"),
    ("recovery", four_nodes_at_most, "8 nodes", "it raises KeyError: 'node-4'"),
    ("recovery", lambda copies: "go on", "1 node", "and it is a str"),
    ("recovery", changed(members=None), "1 node", "the members cannot be a NoneType"),
    ("recovery", changed(members=(0,)), "1 node", "one of the members cannot be an int"),
    ("recovery", changed(sources=[["local"]]), "1 node", "one of the sources cannot be a list"),
    ("recovery", changed(version="7"), "1 node", "the version cannot be a str"),
    ("division", keeps_all, "2 ranks, a (12 bytes) on ranks 0, 1", "and 24 are kept in all"),
    ("division", first_holder_keeps, "2 ranks, a (12", "rank 0 keeps 12, and rank 1 only 0"),
    ("division", rounds_down, "2 ranks, a (12 bytes) on rank 0, b", "7 bytes, and 6 are kept"),
    ("division", lambda held: [], "1 rank", "the case has 1 rank, and the answer has 0"),
    ("division", lambda held: [{"b": 7}] * len(held), "1 rank", "is to keep 'b', and has none"),
    ("division", lambda held: [{"a": 12.0}], "1 rank", "a number of bytes is whole"),
    ("division", lambda held: [{"a": -1}], "1 rank", "a number of bytes is whole"),
    ("division", lambda held: 7, "1 rank", "the answer has to be a list with a dictionary"),
]


@pytest.mark.parametrize(("stage", "mine", "case", "why"), WRONG)
def test_a_wrong_stage_is_told_its_smallest_case_in_a_sentence(stage, mine, case, why):
    found = attack(mine, stage=stage)
    assert not found.holds
    assert str(found.case).startswith(case)
    assert why in found.fault.why
    assert "\n" not in repr(found)


@pytest.mark.parametrize("mine", [plan_placement, plan_chunks, plan_recovery, divided])
def test_the_packages_own_stages_withstand(mine):
    result = attack(mine)
    assert result.holds
    assert result.is_complete
    assert result.figures
    for figure in result.figures:
        assert figure.yours == figure.reference


# -- planners that are right in another way -------------------------------------------------------


def in_numpy(nodes, replicas):
    return np.array(plan_placement(nodes=nodes, replicas=replicas).holders)


def as_generators(nodes, replicas):
    for kept in plan_placement(nodes=nodes, replicas=replicas).holders:
        yield (node for node in kept)


LISTED = []


def in_the_same_list(nodes, replicas):
    LISTED[:] = plan_placement(nodes=nodes, replicas=replicas).holders
    return LISTED


def with_floats(**given):
    """Bytes as numbers of other kinds."""
    for chunk in plan_chunks(**given).chunks:
        size, at = float(chunk.size_bytes), np.int64(chunk.offset_bytes)
        yield replace(chunk, size_bytes=size, offset_bytes=at)


def with_lists(**given):
    plan = plan_recovery(**given)
    transfers, sources = [*plan.transfers], (each for each in plan.sources)
    return replace(plan, members=[*plan.members], sources=sources, transfers=transfers)


@pytest.mark.parametrize(
    ("stage", "mine"),
    [
        ("placement", in_numpy),
        ("placement", as_generators),
        ("placement", in_the_same_list),
        ("chunks", with_floats),
        ("recovery", with_lists),
    ],
)
def test_the_same_answer_in_another_form_withstands(stage, mine):
    result = attack(mine, stage=stage)
    assert result.holds, result
    assert result.is_complete


@pytest.mark.parametrize("size", [2.5, "4", float("nan")])
def test_a_chunk_of_no_whole_number_is_told_so(size):
    whole = {"span": None, "replica": 1, "offset_bytes": 0, "size_bytes": size}
    found = attack(lambda profile: [Chunk(**whole)], stage="chunks")
    assert "size_bytes has to be a whole number" in found.fault.why


def test_a_planner_cannot_change_what_it_is_asked():
    def greedy(profile, **given):
        profile.idle_spans = ()

    assert "it raises FrozenInstanceError" in attack(greedy, stage="chunks").words


def test_what_withstood_says_what_was_not_tried():
    result = attack(plan_placement)
    assert "up to 16 nodes and 4 replicas, as many nodes lost as replicas" in result.words
    assert "`strategy` and `racks`" in result.words
    assert "never given" not in attack(with_floats, stage="chunks").words
    assert "up to 4 nodes, and 8 that lose 3" in attack(plan_recovery, within_s=1e3).words


# -- what a counterexample is ---------------------------------------------------------------------

STAGES = {
    "placement": (placements.PLACEMENT, placements.cases),
    "chunks": (chunks.CHUNKS, chunks.cases),
    "recovery": (recoveries.RECOVERY, recoveries.cases),
}


@pytest.mark.parametrize(
    ("name", "mine"), [("placement", ring), ("chunks", first_span), ("recovery", loads_only)]
)
def test_no_smaller_case_breaks_the_stage(name, mine):
    found = attack(mine, stage=name)
    stage, cases = STAGES[name]
    before = list(itertools.islice(cases(), found.tried))
    assert all(stage.judge(case, by_name(mine), tried=0) is None for case in before)
    smaller = [case for case in cases() if size(case) < size(found.case)]
    assert set(map(str, smaller)) <= set(map(str, before))


def size(case: object) -> tuple[int, ...]:
    """What the order of cases promises: fewest nodes, then fewest failures."""
    match case:
        case placements.PlacementCase(nodes=nodes, replicas=replicas):
            return nodes, replicas
        case chunks.ChunkCase(spans_s=spans_s, checkpoint_bytes=checkpoint_bytes):
            return len(spans_s), checkpoint_bytes
        case recoveries.RecoveryCase(placement=placement, lost=lost):
            return placement.nodes, placement.replicas, len({*placement.groups}), len(lost)
    raise AssertionError(case)


def test_the_failures_that_are_named_do_lose_a_shard():
    found = attack(ring)
    lost = [int(node.removeprefix("node-")) for node in found.fault.lost]
    assert not found.placement.survives(lost)
    assert all(found.placement.survives(some) for some in itertools.combinations(lost, 1))
    (planned,) = found.scenario(iteration=3).planned
    assert planned.iteration == 3
    assert planned.failure.places == ("rank-0", "rank-1")


def test_theorem_1_allows_what_algorithm_1_does():
    for nodes in range(1, 17):
        for replicas in range(1, min(nodes, 4) + 1):
            made = plan_placement(nodes=nodes, replicas=replicas)
            allowed = placements.fatal_sets_allowed(nodes, replicas)
            assert len({frozenset(kept) for kept in made.holders}) <= allowed


def test_a_counterexample_is_replayed_until_it_is_mended():
    found = attack(ring)
    again = found.replay(ring)
    assert (again.case, again.fault) == (found.case, found.fault)
    assert found.replay(plan_placement) is None
    assert found.replay(lambda nodes: None).fault.why.startswith("there is no answer")


def test_a_placement_is_attacked_for_its_own_size():
    five = Placement(
        nodes=5,
        replicas=2,
        strategy="mine",
        groups=(),
        holders=((0, 1), (1, 0), (2, 3), (3, 2), (4, 0)),
    )
    figures = attack(five).figures
    assert (figures[0].yours, figures[0].reference, figures[0].optimum) == (0.7, 0.6, 0.7)
    assert (figures[1].yours, figures[1].reference) == (3, 2)
    assert "5 of the 10 sets" in attack(ring(5, 2)).words


# -- what cannot be attacked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (None, "no answer yet: make `mine`"),
        (7, "yours is an int"),
        (list, "has to take its stage's arguments by their names"),
    ],
)
def test_what_is_no_stage_is_asked_for_in_a_sentence(mine, said):
    with pytest.raises(WrongAnswerError, match=said) as raised:
        attack(mine)
    (shown,) = raised.value._render_traceback_()
    assert shown.split() == str(raised.value).split()
    assert max(map(len, shown.splitlines())) <= WIDE


def test_another_stage_than_there_are_is_refused_with_the_choices():
    with pytest.raises(WrongAnswerError, match="root, chunks, recovery, placement"):
        attack(ring, stage="injector")


def test_an_attack_ends_when_its_time_is_up_and_says_so():
    began_s = time.monotonic()
    result = attack(plan_recovery, within_s=0.2)
    assert time.monotonic() - began_s < 30
    assert result.holds
    assert not result.is_complete
    assert "time was up" in result.words


def test_what_was_not_attacked_to_the_end_is_not_called_right():
    asked = {"name": "mine", "stage": "recovery", "words": "a function"}
    with pytest.raises(WrongAnswerError, match=r"not judged to the end: the first .* time was up"):
        withstood(plan_recovery, **asked, within_s=0.2)


@pytest.mark.parametrize(("stage", "mine"), [("chunks", plan_chunks), ("recovery", plan_recovery)])
def test_of_a_slow_stage_it_is_said_what_was_tried_and_what_a_case_took(stage, mine):
    def slow(**given):
        time.sleep(0.05)
        return mine(**given)

    every = sum(1 for _ in STAGES[stage][1]())
    result = attack(slow, stage=stage, within_s=0.1)
    assert result.tried + result.left == every > result.tried > 0
    assert result.case_s >= 0.1  # each is asked twice
    said = f"the first {result.tried:,} of {every:,} cases (up to 4 "
    assert result.words.startswith(said)
    assert f"at {format_seconds(result.case_s)} each, and then time was up" in result.words


def test_a_search_ends_by_its_own_work_and_not_by_what_others_do():
    patience = Patience(0.2)
    time.sleep(0.3)
    assert not patience.is_over
    while not patience.is_over:
        pass
    assert time.process_time() >= 0.2


def test_an_interrupt_is_no_counterexample():
    def interrupted(nodes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack(interrupted)


def test_a_case_of_chunks_says_what_its_buffer_is_cut_into():
    assert "a buffer of 128 bytes in 4 sub-buffers, idle for" in str(chunks.LARGE)
