"""`gemini-lab check`: what it breaks when, what it compares, and what it says of that."""

import json
from dataclasses import replace

import pytest

from gemini_lab.cli.check_command import render
from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import main
from gemini_lab.lab.check import Checked, Compared, Recovered
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Inputs, Iteration, IterationBegun
from gemini_lab.log.witnessed import Kill, StateSeen, compare_states
from gemini_lab.report.compare_runs import accounts, compare

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


def states(*, change: int = 100, name: str = "weight a", epoch: int = 1, is_end: bool = False):
    """Of eight versions of two ranks, from `change` on otherwise on rank 1."""
    found = []
    for version in range(9):
        for rank in (0, 1):
            told = {"weight a": f"{version}", "generator torch": f"g{version}"}
            if rank == 1 and version >= change:
                told[name] = "other"
            found.append(
                StateSeen(rank=rank, epoch=epoch, version=version, is_end=is_end, digests=told)
            )
    return found


def compared(log=None, state=None, **more):
    """A run beside the undisturbed one."""
    twice = both(run() if log is None else log)
    return Compared(twice=twice, states=compare_states(states(), state or states()), **more)


def kill(number: int, version: int, **more):
    return Kill(number=number, place="forward", version=version, rank=1, **more)


CHECKED = Checked(
    script="train.py",
    nodes=2,
    ranks=2,
    iterations=8,
    recovered=(
        Recovered(kill=kill(1, 3), epoch=1, version=3, duration_s=1.0),
        Recovered(kill=kill(2, 5, loses_node=True), epoch=2, version=5, duration_s=2.0),
    ),
    plain=compared(),
)


def test_two_equal_runs_are_the_same():
    twice = both(run())
    assert (twice.compared, twice.with_values) == (16, 16)
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
    assert twice.first is None
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
    assert (twice.compared, twice.with_values) == (1, 0)


def text_of(checked: Checked) -> str:
    lines = [*render(checked)]
    assert all(len(line) <= 100 for line in "\n".join(lines).splitlines())
    assert json.loads(json.dumps(checked.to_json()))["verdict"] == checked.verdict
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("found", "verdict", "said"),
    [
        (
            {"disturbed": compared()},
            "bit-identical",
            "18 states of up to 2 pieces and 16 losses or gradient norms compared, none differs",
        ),
        (
            {"disturbed": compared(run(change=6, loss=9.0))},
            "differs",
            "after node of rank 1 killed in iteration 6: back in 2.0 s from version 5",
        ),
        (
            {"disturbed": compared(run(change=4, loss=9.0))},
            "differs",
            "after rank 1 killed in iteration 4: back in 1.0 s from version 3",
        ),
        (
            {"disturbed": compared(state=states(change=5, epoch=2), values={"weight a": 0.25})},
            "differs",
            "where after iteration 5, rank 1 1 piece weight a (by 0.25) after rank 1 killed",
        ),
        (
            {"plain": compared(state=states(change=2))},
            "differs without a failure",
            "two runs under plain torchrun are the same, and the one in a lab is not",
        ),
        (
            {"plain": compared(state=states(change=2)), "plain_failed": "it said nothing"},
            "differs without a failure",
            "failed (it said nothing), so it is not known whether the script is repeatable",
        ),
        (
            {"plain": compared(run(change=2, loss=9.0)), "is_repeatable": False},
            "not repeatable",
            "seed the script's random generators",
        ),
        (
            {"disturbed": compared(), "failure": "rank 1: NameError"},
            "does not come back",
            "failed rank 1: NameError after node of rank 1 killed in iteration 6",
        ),
        (
            {"disturbed": Compared(twice=both([]), states=compare_states([], []))},
            "nothing to compare",
            "NOTHING TO COMPARE",
        ),
        (
            {"disturbed": compared(), "plain": None, "plain_failed": "it has no data"},
            "bit-identical",
            "not compared with plain torchrun: it has no data",
        ),
        (
            {"disturbed": compared(), "unsteady": ("also['log']",)},
            "bit-identical",
            "also['log'] is another one in each run, also in undisturbed ones",
        ),
        (
            {"disturbed": compared(), "missed": (kill(3, 7),)},
            "bit-identical",
            "rank 1 killed in iteration 8: not done, as the script did not come there again",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_verdict_says_what_was_seen(found, verdict, said):
    checked = replace(CHECKED, **found)
    assert checked.verdict == verdict
    assert said in text_of(checked)


def test_no_cause_is_guessed():
    """The batch is another one: that was seen, and why it is was not."""
    other = Inputs(batch="b", random={"torch": "r"}, learning_rate=0.1)
    log = run(change=6, inputs=other, loss=9.0)
    text = text_of(replace(CHECKED, disturbed=compared(log)))
    assert "differs first batch" in text
    assert "likely" not in text
    assert "loader" not in text


def test_remarks_and_what_had_no_effect_are_told_beside_a_good_verdict():
    other = Inputs(batch="a", random={"torch": "x"}, learning_rate=0.1)
    found = compared(run(change=7, inputs=other))
    text = text_of(replace(CHECKED, disturbed=found, remarks=("a remark",)))
    assert text.startswith("BIT-IDENTICAL")
    assert "beware: the random state of rank 1 in iteration 7 differs, without effect" in text
    assert "beware: a remark" in text
