"""A script whose files change while it trains, on real nodes: told, refused, and never mixed."""

import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.errors import RunFailedError
from gemini_lab.injector.failures import WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.report.text import render

HELPER = "CLIP = 1.0\n"
EDITED = "CLIP = 0.015625\n"
SCRIPT = """
    import os, pathlib, sys
    import torch, gemini_lab
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    when, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    helper = pathlib.Path(__file__).with_name("helper.py")

    def import_in_turn():
        '''Rank 1 imports what was edited since rank 0 imported it.'''
        for rank in range(2):
            if dist.get_rank() == rank:
                import helper as imported
                helper.write_text(os.environ["EDITED"])
            dist.barrier()

    if when != "late":
        import_in_turn() if when == "between ranks" else __import__("helper")
    dist.barrier()
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)
    for step in protected.steps(steps):
        if step == 6 and when in ("while it trains", "nothing"):
            helper.write_text(os.environ["EDITED"])
        if step == 6 and when == "late":
            import_in_turn()
        clip = 0.0 if when == "late" and step < 6 else __import__("helper").CLIP
        loss = (model(torch.ones(2, 6)) - clip).square().mean()
        optimizer.zero_grad()
        loss.backward()
        protected.log(loss=loss.item(), clip=clip)
        optimizer.step()
"""


@pytest.fixture
def job(script):
    """A job with a file that its script imports, and edits while it trains."""

    def made(when, *, edited=EDITED, steps=16):
        path = script(textwrap.dedent(SCRIPT))
        path.with_name("helper.py").write_text(HELPER)
        env = {"EDITED": edited}
        return Job(script=str(path), args=[when, str(steps)], cwd=str(path.parent), env=env)

    return made


CRASH = Scenario().add(WorkerCrash("rank-1"), iteration=9)


def clips(run):
    """By epoch, with which values ranks trained."""
    found: dict[int, set[float]] = {}
    for entry in run.events("iteration"):
        if not entry.event.restored:
            found.setdefault(entry.event.epoch, set()).add(entry.event.value("clip"))
    return [found[epoch] for epoch in sorted(found)]


@pytest.mark.parametrize("keeps", [False, True])
def test_a_start_with_other_code_is_told_with_the_file_and_all_ranks_execute_the_same(
    pair, job, keeps
):
    pair.wait_until_ready()
    made = job("while it trains")
    run = pair.train(made, scenario=CRASH, persistent_url=None, keep_processes=keeps).wait(200)
    report = run.report()
    (seen,) = report.code_changes
    assert seen.changed == ("helper.py",)
    assert "OTHER CODE: helper.py was edited" in render(report)
    assert clips(run) == [{1.0}, {0.015625}]  # never one beside the other
    epochs = {entry.event.epoch for entry in run.events("iteration")}
    if max(epochs) - min(epochs) > 1:  # a start between them: the kept process had the older code
        ends = [line for one in report.recoveries for end in one.exits for line in end.output]
        said = [*report.notes, *ends]  # by the kept rank, or, if that saw no more, by the new one
        assert any("helper.py is not the same file on all ranks" in text for text in said), said
    files = {name for entry in run.events("code_seen") for name in entry.event.files}
    assert files == {"train.py", "helper.py"}


def test_the_same_code_again_is_no_news(pair, job):
    made = job("nothing", edited=HELPER)
    run = pair.train(made, scenario=CRASH, persistent_url=None, on_code_change="stop").wait(200)
    assert run.report().code_changes == ()
    assert len(run.report().recoveries) == 1


def test_a_run_that_is_to_stop_at_other_code_trains_nothing_with_it_and_a_resumed_one_is_told(
    pair, job, tmp_path
):
    made, url = job("while it trains"), str(tmp_path / "tier")
    run = pair.train(made, scenario=CRASH, persistent_url=url, on_code_change="stop")
    with pytest.raises(
        RunFailedError, match=r"helper\.py changed since .*on_code_change.*--resume"
    ):
        run.wait(200)
    assert clips(run) == [{1.0}]
    again = pair.train(made, resume=True, persistent_url=url, on_code_change="stop").wait(200)
    assert again.report().began_from >= 6
    (note,) = [one for one in again.report().notes if "made by other code" in one]
    assert "helper.py changed since" in note
    assert again.report().code_changes == ()
    assert clips(again) == [{0.015625}]


def test_nodes_whose_files_differ_are_refused_at_the_first_start_by_name(pair, job):
    run = pair.train(job("between ranks"), persistent_url=None)
    with pytest.raises(RunFailedError, match=r"helper\.py is not the same file on all ranks") as no:
        run.wait(200)
    assert "rank 0 on node-0 has" in str(no.value)
    assert "rank 1 on node-1 has" in str(no.value)
    assert clips(run) == []


def test_what_ranks_import_only_while_they_train_is_compared_before_it_is_executed(pair, job):
    run = pair.train(job("late"), persistent_url=None).wait(200)
    report = run.report()
    assert any("imports helper.py, which was edited since" in note for note in report.notes)
    first, *_, last = clips(run)  # the last may begin before the import: 0.0 again
    assert (first, last - {0.0}) == ({0.0}, {0.015625})
    assert [*{one.changed for one in report.code_changes}] == [("helper.py",)]
