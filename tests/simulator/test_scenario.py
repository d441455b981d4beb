"""Claims about scenarios in the simulator."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.injector import BitFlip, RackLoss, RootLoss, Scenario, WrongSums
from gemini_lab.simulator import outages_of, paper_workload

PAPER = paper_workload()


def test_a_scenario_is_played_in_order_of_time():
    scenario = (
        Scenario(seed=7)
        .lose(node=2, iteration=100)
        .crash(rank=17, at_s=50.0)
        .lose(node=[3, 4], at_s=70_000.0)
        .add(RootLoss(), at_s=80_000.0)
    )
    outages = outages_of(scenario, PAPER)
    assert [(o.at_s, o.kind, o.positions) for o in outages] == [
        (50.0, "software", (2,)),
        (6200.0, "hardware", (2,)),
        (70_000.0, "hardware", (3, 4)),
        (80_000.0, "hardware", (0,)),
    ]
    assert outages[1].cause == "node loss node-2"


def test_a_rack_takes_its_positions_with_it():
    racks = [f"r{i // 4}" for i in range(16)]
    scenario = Scenario().add(RackLoss("r2"), at_s=1.0)
    [outage] = outages_of(scenario, PAPER, racks=racks)
    assert (outage.kind, outage.positions) == ("rack", (8, 9, 10, 11))


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (Scenario().add(BitFlip("node-1"), at_s=1.0), "cannot play bit flip node-1"),
        (Scenario().add(WrongSums("node-1"), at_s=1.0), "cannot play wrong sums"),
        (Scenario().lose(node=16, at_s=1.0), r"positions \[16\]"),
        (Scenario().add(RackLoss("r2"), at_s=1.0), "`racks`"),
    ],
)
def test_what_cannot_be_played_is_refused(scenario, message):
    with pytest.raises(ConfigError, match=message):
        outages_of(scenario, PAPER)
