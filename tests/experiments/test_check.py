"""`gemini-lab check`: what it breaks when, what it compares, and what it says of that."""

import json
from dataclasses import replace

import pytest

from gemini_lab.cli.check import render
from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import main
from gemini_lab.experiments.check import Checked, Disturbance, Recovered
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Inputs, Iteration, IterationBegun, Note, RecoveryFinished
from gemini_lab.report.twice import accounts, compare

SAME = Inputs(batch="a", random={"torch": "r"}, learning_rate=0.1)


def done(number: int, *, rank: int = 0, epoch: int = 1, loss: float | None = None, **more):
    """How an iteration ended."""
    values = {"loss": 1 / number if loss is None else loss}
    event = Iteration(
        rank=rank,
        epoch=epoch,
        iteration=number,
        duration_s=1.0,
        waited_s=0.0,
        **{"values": values, **more},
    )
    return Entry(at_s=float(number), node=f"node-{rank}", event=event)


def begun(number: int, *, rank: int = 0, inputs: Inputs = SAME):
    event = IterationBegun(rank=rank, epoch=1, iteration=number, inputs=inputs)
    return Entry(at_s=float(number), node=f"node-{rank}", event=event)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--iterations 5", "5 iterations leave no room; give at least 6"),
        ("--nodes 1", "another one has to keep its shards; give at least 2 nodes (got 1)"),
    ],
)
def test_a_check_without_room_for_two_failures_starts_nothing(
    asked, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["check", *asked.split(), "train.py"]) == Exit.REFUSED
    told = capsys.readouterr().err
    assert said in told
    assert "starting" not in told


def run(*, change: int = 100, inputs: Inputs = SAME, loss: float | None = None):
    """Eight iterations of two ranks, from `change` on otherwise on rank 1."""
    log = []
    for number in range(1, 9):
        for rank in (0, 1):
            is_other = rank == 1 and number >= change
            log.append(begun(number, rank=rank, inputs=inputs if is_other else SAME))
            log.append(done(number, rank=rank, loss=loss if is_other else None))
    return log


def both(other, **more):
    return compare(accounts(run()), accounts(other, **more))


CHECKED = Checked(
    script="train.py",
    nodes=2,
    ranks=2,
    iterations=8,
    recovered=(
        Recovered(failure="worker crash rank-1", iteration=3, version=3, duration_s=1.0),
        Recovered(failure="node loss rank-1", iteration=6, version=5, duration_s=2.0),
    ),
    twice=both(run()),
    remarks=(),
)


def test_two_equal_runs_are_the_same():
    twice = both(run())
    assert (twice.is_same, twice.compared, twice.with_values) == (True, 16, 16)
    assert (twice.first, twice.silent) == (None, None)


def test_what_differs_first_is_found_with_its_iteration_and_rank():
    first = both(run(change=6, loss=9.0)).first
    assert (first.iteration, first.rank, first.what) == (6, 1, "loss")
    assert (first.undisturbed, first.disturbed) == (repr(1 / 6), "9.0")


def test_what_changed_before_any_loss_did_is_what_differs_first():
    """Dropout follows other numbers from iteration 4 on; it is used in iteration 6."""
    other = Inputs(batch="a", random={"torch": "x"}, learning_rate=0.1)
    log = [*run(change=4, inputs=other), done(6, rank=1, loss=9.0)]
    first = both(log).first
    assert (first.iteration, first.rank, first.what) == (4, 1, "random")


def test_a_generator_that_was_never_seeded_is_not_what_differs():
    """Python's own is in another state in each run; what differs is the loss, and weights."""
    start, other = ({"torch": "r", "python": state} for state in ("x", "y"))
    logs = [
        [begun(n, inputs=Inputs(batch="a", random=state)) for n in (1, 2)] + ends
        for state, ends in ((start, [done(1), done(2)]), (other, [done(1), done(2, loss=9.0)]))
    ]
    twice = compare(*map(accounts, logs))
    assert (twice.first.iteration, twice.first.what) == (2, "loss")


def test_what_has_had_no_effect_is_told_beside_an_equal_result():
    twice = both(run(change=4, inputs=Inputs(batch="a", random={"torch": "x"}, learning_rate=0.1)))
    assert twice.is_same
    assert (twice.silent.iteration, twice.silent.what) == (4, "random")


def test_of_an_iteration_that_was_done_again_the_newest_try_counts_and_its_last_word():
    log = [done(3, loss=9.0), *run(), done(3, epoch=2, loss=0.5), done(3, epoch=2, restored=True)]
    assert accounts(log)[3, 0].values["loss"] == 0.5
    assert accounts([done(3, epoch=2, restored=True), done(3, epoch=2)])[3, 0].restored is False
    assert accounts([begun(3), done(3, epoch=2, restored=True)])[3, 0].restored is True
    assert accounts([begun(3)]) == {}
    assert max(number for number, _ in accounts(log, until=5)) == 5


def test_iterations_without_numbers_prove_nothing():
    silent = [done(1, values={})]
    twice = compare(accounts(silent), accounts(silent))
    assert (twice.is_same, twice.compared, twice.with_values) == (False, 1, 0)


def back(iteration: int, *, version: int) -> RecoveryFinished:
    return RecoveryFinished(
        recovery=1,
        epoch=2,
        version=version,
        iteration=iteration,
        duration_s=1.0,
        lost_iterations=0,
    )


def test_a_worker_and_then_a_node_are_killed_each_when_training_is_well_under_way():
    told = Disturbance(iterations=12, ranks=2)
    note = Note(text="anything")
    at = [told.take(note, iteration=number) for number in (1, 3, 4, 5)]
    assert at == [None, None, WorkerCrash("rank-1"), None]
    assert told.take(back(5, version=4), iteration=5) is None
    assert [told.take(note, iteration=number) for number in (6, 7, 8)] == [
        None,
        None,
        NodeLoss("rank-1"),
    ]
    assert not told.is_survived
    told.take(back(9, version=8), iteration=9)
    assert told.is_survived
    assert told.take(note, iteration=11) is None
    assert not told.is_over
    told.take(note, iteration=12)
    assert told.is_over
    assert [(one.iteration, one.version) for one in told.recovered] == [(4, 4), (8, 8)]


def test_a_script_that_runs_faster_than_it_is_killed_gets_its_iterations_after_each_recovery():
    told = Disturbance(iterations=12, ranks=2)
    note = Note(text="anything")
    assert told.take(note, iteration=40) == WorkerCrash("rank-1")
    told.take(back(41, version=40), iteration=41)
    assert [told.take(note, iteration=n) for n in (42, 43)] == [None, NodeLoss("rank-1")]
    told.take(back(44, version=43), iteration=44)
    told.take(note, iteration=45)
    assert not told.is_over
    told.take(note, iteration=46)
    assert told.is_over


def test_a_job_of_one_rank_loses_that_one():
    told = Disturbance(iterations=6, ranks=1)
    assert told.take(Note(text=""), iteration=2) == WorkerCrash("rank-0")


@pytest.mark.parametrize(
    ("log", "verdict", "said"),
    [
        (run(), "bit-identical", "16 losses or gradient norms compared, none differs"),
        (run(change=6, loss=9.0), "differs", "node loss rank-1 at iteration 6"),
        (run(change=4, loss=9.0), "differs", "worker crash rank-1 at iteration 3"),
        (run(change=2, loss=9.0), "not repeatable", "seed its random generators"),
        ([done(1, values={})], "nothing to compare", "protected.log(loss="),
    ],
    ids=str,
)
def test_the_verdict_says_what_to_do(log, verdict, said):
    checked = replace(CHECKED, twice=both(log))
    assert checked.verdict == verdict
    text = "\n".join(render(checked))
    assert said in " ".join(text.split())
    assert all(len(line) <= 100 for line in text.splitlines())
    assert json.loads(json.dumps(checked.to_json()))["verdict"] == verdict


def test_remarks_and_what_had_no_effect_are_told_beside_a_good_verdict():
    other = Inputs(batch="a", random={"torch": "x"}, learning_rate=0.1)
    twice = both(run(change=7, inputs=other))
    text = "\n".join(render(replace(CHECKED, twice=twice, remarks=("a remark",))))
    assert text.startswith("BIT-IDENTICAL")
    assert "beware: the random state of rank 1 in iteration 7 differs, without effect" in text
    assert "beware: a remark" in text
