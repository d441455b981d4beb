"""Real ranks go back, and their numbers are those of a run that never saw what they left."""

import pytest

GUARDED = {"how": "guard", "bad": [4]}


@pytest.fixture
def run(server, tmp_path):
    def request(**case):
        return server.run(tmp_path, loop="rewound", case=case)

    return request


@pytest.mark.parametrize(
    "case",
    [
        {"engine": "ZeRO-1", **GUARDED},
        {"engine": "ZeRO-2", **GUARDED, "accumulation": 2},
        {"engine": "ZeRO-3", **GUARDED},
        {"engine": "ZeRO-3", "how": "script", "bad": [4], "config": {"bf16": {"enabled": True}}},
        {"engine": "DDP", **GUARDED},
        {"engine": "DDP", "how": "script", "bad": [4, 6]},
        {"engine": "FSDP2", **GUARDED},
    ],
    ids=lambda case: "-".join(str(value) for value in case.values()),
)
def test_a_run_without_the_bad_batches_has_the_same_numbers(run, case):
    left = case["bad"] if case.get("accumulation", 1) == 1 else [4, 5]
    went_back = run(**case)
    never_saw = run(**{**case, "bad": [], "without": left})
    for one, other in zip(went_back, never_saw, strict=True):
        assert len(one["losses"]) == 9
        assert one["losses"] == other["losses"]
        assert len(one["rewinds"]) == len(case["bad"])
        assert other["rewinds"] == []


def test_trouble_that_stays_goes_one_version_further_back_each_time(run):
    """Batch 5 comes in the place of batch 4, and is as bad: so version 4 may be what is wrong."""
    case = {"engine": "ZeRO-3", "how": "guard", "keep": 3}
    went_back = run(**case, bad=[4, 5])
    never_saw = run(**case, without=[3, 4, 5])
    for one, other in zip(went_back, never_saw, strict=True):
        assert one["rewinds"] == [[5, 4], [5, 3]]
        assert one["losses"] == other["losses"]


def test_where_nothing_helps_and_memory_has_no_older_version_the_run_ends(run):
    with pytest.raises(RuntimeError) as caught:
        run(engine="DDP", how="guard", bad=[*range(4, 24)], keep=1)
    words = str(caught.value)
    assert "iteration 4: the loss of rank 0 is nan, but no version up to 2" in words
    assert "raise keep_in_memory" in words


@pytest.mark.parametrize("engine", ["ZeRO-3", "DDP"])
def test_batches_that_come_back_give_the_same_numbers_again(run, engine):
    again = run(engine=engine, how="return", keep=3)
    never = run(engine=engine, how="none", keep=3)
    for one, other in zip(again, never, strict=True):
        assert one["rewinds"] == [[6, 4]]
        assert one["passes"] == other["passes"] + 2
        assert one["losses"] == other["losses"]


def test_on_a_persons_word_training_goes_back_at_the_end_of_the_iteration_under_way(run):
    case = {"engine": "FSDP2", "how": "person", "keep": 3}
    asked = run(**case, steps=2)
    never = run(**{**case, "how": "none"}, without=[4, 5])
    for one, other in zip(asked, never, strict=True):
        assert one["rewinds"] == [[6, 4]]
        assert one["losses"] == other["losses"]


def test_training_goes_on_where_a_person_asks_for_what_no_memory_has(run):
    asked = run(engine="DDP", how="person", keep=1, steps=4)
    never = run(engine="DDP", how="none", keep=1)
    for one, other in zip(asked, never, strict=True):
        assert one["rewinds"] == []
        assert one["refusals"] == ["person"]
        assert one["losses"] == other["losses"]
