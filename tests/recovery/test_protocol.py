"""The real root agent in modelled labs: random faults at random moments, and what must hold then.

`python -m tests.recovery.protocol SECONDS [SEED]` explores for longer.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gemini_lab_course.model.world import World

from .protocol.explorer import FAULTS, SHAPES, explore, make_schedule, run, shrink
from .protocol.old_rules import OLD_RULES

NAMES = sorted(OLD_RULES)


def test_no_schedule_of_a_short_campaign_breaks_the_protocol():
    found, tried = explore(first_seed=1, schedules=250)
    assert found is None, shrink(found)
    assert tried == 250


def test_copies_that_are_placed_anew_cost_no_schedule_a_version():
    """Fewer copies than before are there at no moment at which others are not whole yet."""
    moved = 0
    for seed in range(1500, 1560):
        shape, schedule = make_schedule(seed)
        world = World(replace(shape, follows=True, iterations=16))
        for action in schedule:
            if not (world.told.done or world.told.failed):
                world.do(action)
        world.calm()
        moved += world.replaced
    assert moved > 10


@pytest.mark.parametrize("name", NAMES)
def test_the_explorer_finds_what_goes_wrong_by_an_old_rule(name):
    """Each of these was how the protocol worked once: losses, mixed states, failed runs."""
    rules, seed = OLD_RULES[name]
    found, _ = explore(first_seed=seed, schedules=600, rules=rules)
    assert found is not None
    assert run(found.shape, found.schedule) is None


def test_a_schedule_gives_the_same_end_every_time():
    rules, seed = OLD_RULES["nobody is waited for"]
    shape, schedule = make_schedule(seed)
    assert run(shape, schedule, rules) == run(shape, schedule, rules)


class Lab(RuleBasedStateMachine):
    """A lab to which hypothesis does what it likes; when it stops, the run must end."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(shape=st.sampled_from(SHAPES), seed=st.integers(0, 999))
    def begin(self, shape, seed):
        self.world = World(shape)
        self.world.do(("go", seed, 300))

    @rule(seed=st.integers(0, 999), moves=st.sampled_from((5, 20, 60, 120, 300)))
    def go_on(self, seed, moves):
        if not self.is_over:
            self.world.do(("go", seed, moves))

    @rule(fault=st.sampled_from(FAULTS), data=st.data())
    def fail(self, fault, data):
        kind, *limits = fault
        numbers = [data.draw(st.integers(0, limit - 1)) for limit in limits]
        if not self.is_over:
            self.world.do((kind, *numbers))

    @property
    def is_over(self) -> bool:
        return self.world.told.done or bool(self.world.told.failed)

    def teardown(self):
        self.world.calm()


Lab.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestLab = Lab.TestCase
