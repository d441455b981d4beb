"""Schedules are drawn from a seed, kept in files, and shrunk to what still fails."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import FAILURES, BitFlip, LinkCut, WrongSums, meaning
from gemini_lab_bench.chaos.campaign import shrink
from gemini_lab_bench.chaos.command import parser, plan_of
from gemini_lab_bench.chaos.faults import Fault, Schedule, draw
from gemini_lab_bench.chaos.kinds import AIMED, KINDS, OF_SAVES, USUAL, named
from gemini_lab_bench.chaos.scene import Scene, stages_script
from gemini_lab_bench.chaos.suffer import job_of, run_command
from gemini_lab_bench.chaos.tier import BreakableTier

DRAWN = [
    "root_stop for 5.2 s, 2.11 s of calm",
    "node_loss of rank 3, 1.05 s of training",
    "bit_flip of rank 3, 0.01 s after the fault before",
    "root_stop for 8.7 s, 1.38 s of calm",
    "node_loss of rank 1, 0.50 s of training",
    "root_stop for 1.8 s, 0.09 s after the fault before",
    "node_loss of rank 0, 0.41 s of training",
    "node_loss of rank 3, 0.18 s of training",
    "owner_kill, 0.76 s of calm",
]
FORM = Schedule(seed=3, number=0, nodes=4, standbys=1, iterations=60, faults=())
forms = st.builds(
    Schedule,
    seed=st.integers(0, 99),
    number=st.integers(0, 99),
    nodes=st.integers(1, 6),
    standbys=st.integers(0, 2),
    iterations=st.integers(1, 99),
    faults=st.just(()),
)
kinds = st.lists(st.sampled_from(list(KINDS)), min_size=1, unique=True)


@given(form=forms, count=st.integers(0, 30), kinds=kinds)
def test_a_seed_and_a_number_always_give_the_same_schedule(form, count, kinds):
    drawn = draw(form, count, kinds=kinds)
    assert drawn == draw(form, count, kinds=kinds)
    beside = {other for kind in kinds for other in KINDS[kind].beside}
    assert {fault.kind for fault in drawn.faults} <= {*kinds, *beside}
    last = [kind for kind in kinds if KINDS[kind].ends_run or KINDS[kind].at == ("end",)]
    assert len(drawn.faults) == count or set(last) == set(kinds)
    assert all(fault.kind not in last for fault in drawn.faults[:-1])


def test_what_was_drawn_before_there_were_more_kinds_is_drawn_again():
    """A campaign that is told of by its seed and its kinds can be run again in later versions."""
    kinds = ["node_loss", "tier_away", "root_stop", "owner_kill", "bit_flip", "partition_in"]
    told = [str(fault) for fault in draw(FORM, 9, kinds=kinds).faults]
    assert told == DRAWN


def test_with_a_fault_that_is_hardly_felt_alone_mostly_comes_one_that_it_is_felt_with():
    drawn = draw(FORM, 400, kinds=["tier_unread"]).faults
    pairs = [fault for fault in drawn if fault.kind == "pair_kill"]
    assert len(pairs) > 100
    assert {fault.moment for fault in pairs} == {"together"}
    assert {fault.times for fault in drawn if fault.kind == "tier_unread"} == {1, 2, 3}
    assert {fault.times for fault in pairs} == {1}


def test_what_comes_as_a_version_is_saved_or_as_a_run_ends_comes_then():
    drawn = draw(FORM, 200, kinds=["save_kill", "link_flap", "end_kill"]).faults
    assert {fault.moment for fault in drawn if fault.kind == "save_kill"} == {
        "save",
        "commit",
        "together",
    }
    commits = [fault.after_s for fault in drawn if fault.moment == "commit"]
    assert max(commits) <= 0.05
    ends = [
        draw(Schedule(**{**FIELDS, "number": n}), 3, kinds=["save_kill", "end_kill"]).faults[-1]
        for n in range(20)
    ]
    assert {fault.moment for fault in ends if fault.kind == "end_kill"} == {"end"}
    assert all(fault.after_s <= 0.05 for fault in ends if fault.kind == "end_kill")


def test_a_pattern_names_all_kinds_that_it_fits_in_the_order_of_the_words():
    assert named(["hands", "tier_un*"]) == ("hands", "tier_unread", "tier_unlisted")
    assert named(["tier_away", "tier_*"])[0] == "tier_away"
    with pytest.raises(ConfigError, match=r"'sneeze_\*'.*worker_crash"):
        named(["tier_*", "sneeze_*"])


def test_the_guide_names_every_kind():
    """By its name, or by a pattern as `agent_*`."""
    text = (Path(__file__).parents[2] / "docs/evidence/chaos.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`([a-z_]+\*?)`", text))
    untold = [kind for kind in KINDS if not any(fnmatchcase(kind, word) for word in words)]
    assert untold == []


def test_other_seeds_and_other_runs_suffer_something_else():
    forms = [FORM, *(Schedule(**{**FIELDS, **other}) for other in ({"seed": 4}, {"number": 1}))]
    assert len({draw(form, 12, kinds=list(KINDS)).faults for form in forms}) == 3


FIELDS = {name: getattr(FORM, name) for name in FORM.__struct_fields__}


def test_every_kind_and_every_moment_is_drawn_in_time():
    drawn = [
        fault
        for number in range(60)
        for fault in draw(Schedule(**{**FIELDS, "number": number}), 12, kinds=list(KINDS)).faults
    ]
    assert {fault.kind for fault in drawn} == set(KINDS)
    assert {fault.moment for fault in drawn} == {
        "calm",
        "meanwhile",
        "together",
        "end",
        *AIMED,
        *OF_SAVES,
    }
    assert all(fault.after_s <= 0.1 for fault in drawn if fault.moment == "together")


def test_drawn_by_time_a_cheap_kind_comes_as_much_more_often_as_it_is_cheaper():
    cheap, dear = "bit_flip", "all_kill"
    drawn = draw(FORM, 4000, kinds=[cheap, dear], by_time=True).faults
    of_each = [sum(fault.kind == kind for fault in drawn) for kind in (cheap, dear)]
    expected = KINDS[dear].costs_s / KINDS[cheap].costs_s
    assert of_each[0] / of_each[1] == pytest.approx(expected, rel=0.25)  # of a fixed seed


@given(form=forms, count=st.integers(0, 12))
def test_a_schedule_comes_back_from_its_file(form, count, tmp_path_factory):
    path = tmp_path_factory.mktemp("schedules") / "schedule.json"
    drawn = draw(form, count, kinds=list(KINDS))
    drawn.save(path)
    assert Schedule.load(path) == drawn


@pytest.mark.parametrize(
    ("kinds", "verifies", "resizes"),
    [("wrong_sums,node_loss", True, False), ("resize", False, True), ("node_loss", False, False)],
)
def test_a_run_has_the_job_that_its_faults_are_for(kinds, verifies, resizes, tmp_path):
    plan = plan_of(parser().parse_args(["--kinds", kinds, "--folder", str(tmp_path)]))
    (schedule, *_) = plan.schedules()
    assert (schedule.verifies, schedule.resizes) == (verifies, resizes)
    job = " ".join(job_of(schedule).args)
    assert ('"verify_every": 1' in job) == verifies
    assert ("--global-batch 12 --dropout 0.0" in job) == resizes


def test_ranks_of_a_run_keep_their_process_where_that_is_asked_for(tmp_path):
    kept, anew = (
        plan_of(parser().parse_args([*asked, "--folder", str(tmp_path)]))
        for asked in (["--keep-processes"], [])
    )
    assert "ranks keep their process" in str(kept)
    assert "ranks keep" not in str(anew)
    with BreakableTier(tmp_path) as tier:
        commands = [
            " ".join(
                run_command(next(plan.schedules()), tmp_path, Scene(tier=tier, script=tmp_path))
            )
            for plan in (kept, anew)
        ]
    assert ["--set keep_processes=true" in command for command in commands] == [True, False]


def test_what_needs_a_job_of_its_own_is_drawn_where_it_is_named():
    assert {*KINDS} - {*USUAL} == {"wrong_sums", "resize"}
    plan = plan_of(parser().parse_args([]))
    assert not {*plan.kinds} & {"wrong_sums", "resize"}


HEAD = '{"seed": 0, "number": 0, "nodes": 2, "standbys": 0, "iterations": 9, "faults": '


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "seed"),
        (HEAD + "7}", "faults"),
        (HEAD + '[{"kind": "sneeze"}]}', "sneeze.*worker_crash"),
        (HEAD + '[{"kind": "node_loss", "rank": 2}]}', "rank 2.*2 ranks"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused_with_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        Schedule.load(path)


def test_an_unknown_kind_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"sneeze.*worker_crash"):
        draw(FORM, 3, kinds=["sneeze"])


@given(items=st.lists(st.integers(), unique=True, max_size=20), data=st.data())
def test_what_is_left_after_shrinking_is_what_the_failure_needs(items, data):
    needed = data.draw(st.sets(st.sampled_from(items))) if items else set()
    left = shrink(items, lambda some: needed <= set(some))
    assert left == tuple(item for item in items if item in needed)


@given(items=st.lists(st.integers(0, 9), max_size=20), least=st.integers(0, 60))
def test_no_single_one_of_what_is_left_can_go(items, least):
    """Also where no one item is to blame: a sum that is too large."""

    def fails(some):
        return sum(some) >= least

    if fails(items):
        left = shrink(items, fails)
        assert fails(left)
        assert not any(fails([*left[:n], *left[n + 1 :]]) for n in range(len(left)))


def test_what_is_gone_is_not_tried_again():
    tried = []

    def fails(some):
        tried.append(tuple(some))
        return 7 in some

    assert shrink(range(16), fails) == (7,)
    assert len(tried) == len(set(tried))
    assert len(tried) <= 12


def test_a_fault_says_what_it_does_where_and_when():
    fault = Fault(kind="node_stop", rank=2, lasts_s=4.25, moment="retrieve", after_s=0.1)
    assert str(fault) == "node_stop of rank 2 for 4.2 s, 0.10 s into retrieve"


def test_a_schedule_says_how_many_machines_it_can_take_and_what_its_run_must_have():
    kinds = ("node_loss", "all_kill", "rack_stop", "pair_kill", "etcd_kill", "partition")
    schedule = FORM.having([Fault(kind=kind) for kind in kinds])
    assert schedule.most_lost == 1 + 5 + 3 + 2 + 0 + 1
    assert schedule.needs == {"nothing", "network"}
    assert set(schedule.rack_of) == {f"node-{number}" for number in range(5)}
    assert len(set(schedule.rack_of.values())) == 2


def test_a_kind_that_the_injector_has_is_told_in_its_words():
    shared = (KINDS.keys() & FAILURES.keys()) - {"link_cut"}  # of which there are two kinds
    assert shared >= {"worker_crash", "worker_hang", "node_loss", "root_loss", "rack_loss"}
    for name in shared:
        assert KINDS[name].text.lower() == meaning(FAILURES[name]).rstrip(".").lower()


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("link_cut", LinkCut("rank-3")),
        ("worker_cut", LinkCut("rank-3", to="rank-0")),
        ("bit_flip", BitFlip("rank-3", 3)),
        ("wrong_sums", WrongSums("rank-3", "activation", seed=7)),
    ],
)
def test_what_a_run_is_asked_for_is_a_failure_of_the_injector(kind, failure):
    assert Fault(kind=kind, rank=3, bit=7).failure(ranks=4) == failure


def test_what_strikes_from_outside_is_asked_of_no_run():
    with pytest.raises(ConfigError, match="no node_loss; strike from outside"):
        Fault(kind="node_loss").failure(ranks=4)


def test_unlike_ranks_take_every_second_run_of_four_or_eight_machines(tmp_path):
    def differs(*options):
        plan = plan_of(parser().parse_args(["--faults", "36", *options]))
        return [schedule.differs for schedule in plan.schedules()]

    assert differs("--kinds", "node_loss") == [False, True, False]
    assert differs("--kinds", "node_loss", "--nodes", "8") == [False, True, False]
    assert differs("--kinds", "node_loss", "--nodes", "5") == [False] * 3
    assert differs("--kinds", "wrong_sums") == [False] * 3

    compile(stages_script(), "train.py", "exec")
    eight = msgspec.structs.replace(FORM, nodes=8, differs=True)
    with BreakableTier(tmp_path) as tier:
        told = run_command(eight, tmp_path, Scene(tier=tier, script=tmp_path / "train.py"))
    assert told[-4:] == ["--steps", "60", "--cut", "2"]
