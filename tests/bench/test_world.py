"""The real agents in simulated worlds: what holds in all, and what was found there."""

import os
import signal
import subprocess
import sys

import pytest

from gemini_lab.log import events
from gemini_lab.node import root_shell
from gemini_lab_bench.chaos.command import parser
from gemini_lab_bench.world import seeds
from gemini_lab_bench.world.coverage import Coverage, all_marks
from gemini_lab_bench.world.schedule import LONG_S, BefallenWorld, draw, is_long
from gemini_lab_bench.world.seeds import explore, run, run_seed, run_world, shrink
from gemini_lab_bench.world.world import WorldShape
from tests.bench.old_rules import OLD_RULES, WaitsForNobody
from tests.bench.real_turns import real_turns, simulated_turns

SEEDS = 300


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_whatever_befalls_a_lab_everything_holds(first):
    tried = [seed for seed in range(first, first + 50) if not is_long(seed)]
    assert {seed: wrong for seed in tried if (wrong := run_seed(seed).wrong)} == {}


@pytest.mark.parametrize(
    "seed", [19, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(39, 200, 20))]
)
def test_everything_holds_in_a_lab_that_trains_for_forty_minutes(seed):
    ran = run_seed(seed)
    assert ran.wrong == ()
    assert ran.virtual_s > LONG_S


def test_a_seed_means_the_same_in_another_interpreter():
    """No order of a set and no real clock decides anything."""
    text = (
        "from gemini_lab_bench.world.seeds import run_seed; "
        "print([run_seed(seed).digest for seed in (3, 5, 40, 206)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    "name", [name for name, rule in OLD_RULES.items() if rule.seed is not None]
)
def test_a_world_finds_what_goes_wrong_by_an_old_rule(name):
    """Each of these was how agents worked once: losses, mixed states, runs that never ended."""
    rule = OLD_RULES[name]
    seed = rule.seed_that_breaks()
    assert seed is not None
    assert rule.wrong(seed) == ()


def test_a_run_that_waits_passes_through_no_more_root_agents_than_there_is_use_for():
    """Two of twenty machines reach the store alone, and have what the run waits for."""
    cut = ((20.0, "part", 0, 1), (0.0, "part", 1, 1), (900.0, "tier_up"))
    one = BefallenWorld(0, WorldShape(nodes=2, standbys=18, has_tier=False), cut)
    turns = []

    def hear(machine, event, _term):
        if isinstance(event, events.Note) and "because the run may wait for them" in event.text:
            turns.append((one.world.loop.time(), machine.name))

    one.world.judge.on_event = hear
    assert run_world(one).wrong == ()
    in_wait = {name for at_s, name in turns if at_s < 920}
    assert len(in_wait) == root_shell.MOST_ROOTS < 18


def test_a_root_agent_that_waits_for_nobody_is_found_by_the_smallest_schedule(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(root_shell, "RootAgent", WaitsForNobody)
    silent = (12.0, "freeze_group", 0)
    found = run(5, WorldShape(has_tier=False), (silent, (0.5, "clock", 1, 1), (0.1, "tier_up")))
    assert "though version" in found.wrong[0]
    assert shrink(found).schedule == (silent,)
    monkeypatch.setattr(seeds, "run_seed", lambda _: found)
    assert not explore([5], folder=tmp_path)
    assert f"drawn in {tmp_path / 'seed-5.html'}" in capsys.readouterr().out
    page = (tmp_path / "seed-5.html").read_text()
    for told in ("node-1 falls silent", "takes over → Fence(4 nodes)", "though version 15 exists"):
        assert told in page


def test_a_command_runs_seeds_and_says_which_break(capsys, tmp_path):
    assert parser().parse_args(["--simulated", "0:3"]).simulated == range(3)
    assert parser().parse_args(["--simulated", "7"]).simulated == range(7, 8)
    for text in ("5:2", "x", "", ":"):
        with pytest.raises(SystemExit):
            parser().parse_args(["--simulated", text])
    assert explore(range(2), folder=tmp_path, covers=True)
    said = capsys.readouterr().out
    assert "2 seeds" in said
    assert "no root" in said
    assert "marks were reached; never:" in said
    assert parser().parse_args(["--simulated", "4:"]).simulated[:2] == range(4, 6)


def test_the_seed_under_way_ends_before_ctrl_c_ends_the_others(monkeypatch, capsys, tmp_path):
    """An interrupt within a world would reach one of its tasks, and leave its slabs."""

    def interrupted(seed):
        os.kill(os.getpid(), signal.SIGINT)
        return run_seed(seed)

    monkeypatch.setattr(seeds, "run_seed", interrupted)
    assert explore(range(3), folder=tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 seeds")


def test_what_seeds_reach_is_counted_among_all_marks_that_there_are():
    """A mark that no list has could never count as missing."""
    reached = Coverage()
    for seed in range(19):
        reached.add(run_seed(seed).coverage)
    assert {*reached.marks} <= {*all_marks()}
    assert "order StartWorkers" in reached.marks
    missing = set(reached.missing())
    assert not missing & {
        *(f"order {kind}" for kind in ("Fence", "TakeInventory", "Persist", "Commit")),
        "a root agent is elected while the run is running",
        "lost (connection) while running",
    }
    assert reached.marks.keys().isdisjoint(missing)


def test_simulated_labs_explain_the_log_of_a_real_one():
    """What a model never says in this order, it does not model: a version was whole too early."""
    unexplained = real_turns()
    assert len(unexplained) > 15
    for seed in range(60):
        unexplained -= simulated_turns(seed)
        if not unexplained:
            break
    assert unexplained == set()


def test_schedules_are_drawn_from_their_seed():
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
