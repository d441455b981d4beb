"""Root agents of one's own in simulated labs: what breaks them, and what does not."""

import asyncio
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress

import pytest
from gemini_lab_widgets.pictures import view

from gemini_lab.errors import ConfigError
from gemini_lab.lab.submission import TooLong, limit
from gemini_lab_bench.world.schedule import PHASES
from gemini_lab_course import WrongAnswerError
from gemini_lab_course.attacks import attack
from gemini_lab_course.attacks.roots import ALONE, GROUPS, LONG, RETURN, SMALL, SPARE, cases
from gemini_lab_course.attacks.stories import of_function, of_the_lab, tell
from gemini_lab_course.own_root.deciding import (
    Ask,
    Cluster,
    Failed,
    Fence,
    Fenced,
    GuideError,
    Start,
    Told,
    Wait,
)
from gemini_lab_course.own_root.process import MOST_BYTES, loaded, packed

TRAINS, HALF = (0.0, "at", PHASES.index("running")), (0.0, "at", PHASES.index("halfway"))
CRASH = (TRAINS, (0.5, "kill_rank", 0))
HEARD_LATE = (TRAINS, (0.13, "kill_rank", 0))
TWO_LOST = (TRAINS, (0.7, "kill", 1, 1), (1.6, "kill", 0, 1))
FALL_SILENT = (
    *(TRAINS, (0.1, "freeze", 0), (4.5, "thaw_all")),
    *(TRAINS, (0.5, "freeze_group", 0), (4.5, "thaw_all")),
)
LATE_ANSWER = (TRAINS, (0.415, "kill", 1, 1))
COMES_BACK = (
    *(HALF, (0.0, "freeze", 1), (0.01, "kill_rank", 2)),
    *(HALF, (0.0, "thaw", 1), (0.0, "kill_rank", 2), (0.0, "kill", 3, 1)),
)
ELSEWHERE = (HALF, (0.0, "freeze", 3), (4.0, "thaw", 3), (2.0, "kill", 1, 1))
SCHEDULES = [
    TWO_LOST,
    FALL_SILENT,
    CRASH,
    (TRAINS, (0.7, "kill", 1, 1), (0.04, "kill", 2, 1)),
    (TRAINS, (0.7, "fuse", 1, 0), (0.0, "kill_rank", 0)),
    (TRAINS, (0.2, "freeze_group", 0), (4.5, "thaw_all")),
]


def make(
    *,
    asks_all=True,
    needs_whole=True,
    waits=True,
    counts_machines=True,
    ends_old=True,
    knows_epochs=True,
    knows_who=True,
    knows_seats=True,
):
    """A root agent's decisions, with what it takes care of."""

    def choose(told, cluster):
        shards = defaultdict(set)
        for node, keeps in zip(cluster.members, cluster.keeps, strict=True):
            for shard, version, epoch in told.get(node, ()):
                if shard in keeps or not knows_seats:
                    shards[version, epoch if knows_epochs else 0].add(shard)
        least = len(cluster.members) if needs_whole else 1
        whole = max((v for (v, _), has in shards.items() if len(has) >= least), default=None)
        if counts_machines and None in cluster.members:
            return Wait("machines")
        is_newest = cluster.newest is not None and (whole or 0) >= cluster.newest
        if waits and cluster.silent and not is_newest and not cluster.has_given_up:
            return Wait("who is silent")
        return Start(whole)

    def decide(state, event, cluster):
        match event:
            case Fenced(node=node):
                state["fenced"].append(node)
                return Ask() if {*state["fenced"]} >= {*cluster.living} else None
            case Told(node=node, copies=copies):
                state["told"][node] = copies
                has_all = {*state["told"]} >= {*cluster.living}
                if not knows_who:  # as many answers as there are places, whoever gave them
                    has_all = len(state["told"]) >= len(cluster.members)
                is_enough = has_all or not asks_all
                return choose(state["told"], cluster) if is_enough else None
            case _:
                state.update(fenced=[], told={})
                return Fence() if ends_old else Ask()

    return decide


right = make()


def told_of(decide, schedule, shape=SMALL, *, seed=1):
    return tell(shape, schedule, of_function(packed(decide)), seed=seed)


# -- what withstands, and what does not ------------------------------------------------------------


def test_a_right_one_withstands_what_is_tried_and_gets_its_figures_beside_the_labs():
    result = attack(right, within_s=2)
    assert result.holds
    recoveries, orders, iterations = result.figures
    assert recoveries.yours == recoveries.reference == recoveries.optimum == 20
    assert orders.yours == orders.reference
    assert iterations.yours >= iterations.optimum


@pytest.mark.long
def test_a_right_one_withstands_everything():
    result = attack(right, within_s=550)
    assert result.holds
    assert result.is_complete


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_right_one_brings_the_run_back_as_the_labs_own_does(schedule):
    assert told_of(right, schedule, SPARE).broken == ""
    assert tell(SPARE, schedule, of_the_lab).broken == ""


@pytest.mark.parametrize(
    ("wrong", "schedule", "shape", "why"),
    [
        ({"ends_old": False}, CRASH, SMALL, "has not said yet that it ended its old ones"),
        ({"asks_all": False}, HEARD_LATE, SMALL, "progress is thrown away"),
        ({"counts_machines": False}, TWO_LOST, SMALL, "has no machine"),
        ({"waits": False}, FALL_SILENT, SPARE, "progress is thrown away: training goes on from"),
        ({"knows_who": False}, LATE_ANSWER, SMALL, "progress is thrown away: training goes on"),
        ({"knows_epochs": False}, COMES_BACK, RETURN, "shards are of different epochs and do not"),
    ],
)
def test_each_thing_that_is_not_taken_care_of_breaks_a_run(wrong, schedule, shape, why):
    assert why in told_of(make(**wrong), schedule, shape).broken


@pytest.mark.parametrize("knows_seats", [True, False])
def test_who_comes_back_sits_where_what_it_has_is_loaded(knows_seats):
    """Its place was taken meanwhile; without it, an older version would be the newest."""
    story = told_of(make(knows_seats=knows_seats), ELSEWHERE, GROUPS)
    assert story.broken == ""
    (*_, last) = [moment.text for moment in story.moments if "Start" in moment.text]
    assert last.endswith("Start(1)")


def first_recoveries(state, event, cluster):
    state["failures"] = state.get("failures", 0) + isinstance(event, Failed)
    return Wait("enough") if state["failures"] > 6 else right(state, event, cluster)


def tires_of_waiting(state, event, cluster):
    answer = right(state, event, cluster)
    state["waits"] = state.get("waits", 0) + isinstance(answer, Wait)
    return Start(None) if state["waits"] > 3 else answer


def overlooks_the_second(state, event, cluster):
    """Whoever was there at the failure has to answer, though one of them is lost since."""
    match event:
        case Failed(cause="node_lost") if state.get("all"):
            return None
        case Fenced(node=node):
            state["fenced"].append(node)
            return Ask() if {*state["fenced"]} >= {*state["all"]} else None
        case Told():
            answer = right(state, event, cluster) if {*state["all"]} <= {*cluster.living} else None
            state["all"] = [] if isinstance(answer, Start) else state["all"]
            return answer
        case _:
            state["all"] = list(cluster.living)
            return right(state, event, cluster)


@pytest.mark.parametrize(
    ("wrong", "shape", "why"),
    [
        (first_recoveries, LONG, "the root waits though the newest version is at hand"),
        (tires_of_waiting, SPARE, "your function starts workers, and position 1 has no machine"),
        (overlooks_the_second, ALONE, "the run never ends"),
    ],
)
def test_what_shows_only_late_or_where_nobody_comes_is_among_the_cases(wrong, shape, why):
    those = [case for case in cases() if case.shape == shape][::-1]  # the longest story first
    told = ((c, told_of(wrong, c.schedule, shape, seed=c.seed).broken) for c in those)
    found = next(case for case, broken in told if broken.startswith(why))
    assert not told_of(right, found.schedule, shape, seed=found.seed).broken


def test_a_version_of_which_a_shard_is_missing_is_never_loaded():
    def newest(state, event, _):
        match event:
            case Told(copies=copies):
                state["told"] = [*state.get("told", []), *copies]
                return Start(9)
            case Fenced():
                return Ask()
        return Fence()

    assert "starts from version 9, and no node that trains" in told_of(newest, CRASH).broken


def test_what_it_did_not_store_is_gone_with_its_node():
    """Every root agent has the function anew, as on another node."""
    first = loaded(packed(lambda state, *_: state.setdefault("calls", []).append(1)))
    kept: dict[str, object] = {}
    cluster = Cluster(members=(), keeps=(), living=(), silent=(), newest=0, has_given_up=False)
    first(kept, Failed(cause="node_lost"), cluster)
    assert kept == {"calls": [1]}
    world = {"__name__": "__main__"}
    source = (
        "seen = []\ndef decide(state, event, cluster):\n    seen.append(1)\n    return len(seen)"
    )
    exec(source, world)
    text = packed(world["decide"])
    assert [loaded(text)({}, Failed(cause=""), cluster) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(("schedule", "shape"), [(COMES_BACK, RETURN), (ELSEWHERE, GROUPS)])
def test_what_the_rare_moments_ask_is_among_the_cases_and_a_right_one_knows_it(schedule, shape):
    assert schedule in [case.schedule for case in cases() if case.shape == shape]
    assert told_of(right, schedule, shape).broken == ""
    assert tell(shape, schedule, of_the_lab).broken == ""


# -- what is found ---------------------------------------------------------------------------------


def test_the_smallest_is_found_drawn_and_replayed_until_it_is_mended():
    found = attack(make(asks_all=False), within_s=100)
    assert len([each for each in found.case.schedule if each[1] != "at"]) == 1
    assert found.replay(right) is None
    again = found.replay(make(asks_all=False))
    assert (again.case, again.fault) == (found.case, found.fault)
    drawn = view(found).bundle()["text/html"]
    assert "Broken: root" in drawn
    assert "Failed(node_lost, node-1)" in drawn
    with pytest.raises(ConfigError, match="no failures of its own"):
        found.scenario(iteration=1)


def test_a_cell_may_attack_although_its_kernel_runs_an_event_loop():
    """JupyterLab calls cells from a task of its own loop, which goes on afterwards."""

    async def cell():
        before = asyncio.current_task()
        found = attack(lambda state, event, cluster: None, stage="root", within_s=60.0)  # noqa: ARG005
        assert asyncio.current_task() is before
        await asyncio.sleep(0)
        return found

    assert not asyncio.run(cell()).holds


def test_a_later_run_draws_other_failures():
    first, second = ([(case.seed, case.schedule) for case in cases(run)] for run in (0, 1))
    assert len(second) == 200
    assert not {*first} & {*second}


def test_the_smallest_cases_come_first():
    struck = [sum(fate[1] in {"kill", "kill_rank"} for fate in case.schedule) for case in cases()]
    assert struck[0] == 0
    assert struck.index(2) > struck.index(1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "it raised ZeroDivisionError"),
        ("raise SystemExit('no')", "it raised SystemExit: no"),
        ("raise GeneratorExit('no')", "it raised GeneratorExit: no"),
        ("state['log'] = 'x' * 200_000; return Fence()", "`state` takes 200,011 characters"),
        ("return 'Fence'", "or nothing, and it is a str"),
        ("return [Fence(), 3]", "or nothing, and it has an int"),
        ("return Fence", "and it is the class Fence itself"),
        ("return Start('8')", "Start takes a version or None"),
        ("state['x'] = {1}; return Fence()", "`state` may hold numbers, texts"),
        ("return Start(None)", "although those of epoch 1 were not ended"),
        ("return None", "there is no answer: it returns nothing"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(body, said):
    names = {"Fence": Fence, "Start": Start, "__name__": "__main__"}
    exec(f"def decide(state, event, cluster):\n    {body}", names)
    found = attack(names["decide"], within_s=100)
    assert said in found.fault.why
    assert "\n" not in found.fault.why


def test_one_that_never_answers_is_stopped():
    def forever(*_):
        while True:
            pass

    assert "there is no answer after 2 s" in told_of(forever, CRASH).broken


@pytest.mark.parametrize("naps_s", [0.01, 0])
def test_one_that_catches_everything_is_stopped(naps_s):
    def stubborn():
        while True:
            with suppress(BaseException):
                time.sleep(naps_s)

    begun_s = time.monotonic()
    for _ in range(3):
        with pytest.raises(TooLong), limit(0.05):
            stubborn()
    assert time.monotonic() - begun_s < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_one_that_returns_after_it_was_stopped_is_too_late():
    def sly():
        try:
            while True:
                pass
        except:  # noqa: E722 - as it is written
            return 1

    with pytest.raises(TooLong), limit(0.05):
        sly()


# -- how it comes to the nodes ---------------------------------------------------------------------


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(ConfigError, match="has to be a function"):
        packed(7)
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="uses what cannot be sent"):
        packed(lambda *_: lock)
    large = b"x" * MOST_BYTES
    with pytest.raises(ConfigError, match="at most"):
        packed(lambda *_: large)


def test_an_attack_on_what_cannot_be_sent_is_a_sentence():
    lock = threading.Lock()
    with pytest.raises(WrongAnswerError, match="cannot be sent"):
        attack(lambda *_: lock, stage="root", within_s=1)


def test_what_a_node_cannot_read_ends_the_run_with_a_reason():
    unreadable = loaded("AAAA")
    with pytest.raises(GuideError, match="cannot be read on this node"):
        unreadable({}, Failed(cause=""), None)
