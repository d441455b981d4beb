"""However a version travels, the numbers stay the same, also when a worker dies on the way."""

import random
import textwrap
import threading

import pytest

from gemini_lab import Job, Lab
from gemini_lab.injector.failures import WorkerCrash
from gemini_lab.log.file import read_log
from gemini_lab.training.quickstart import gpt_job

from .conftest import random_seeds

ITERATIONS = 18
PACED = {"link_bytes_per_s": "80 MB/s", "profile_iterations": 2}


def events_of(run, *kinds: str):
    return [entry.event for entry in read_log(run.log) if entry.kind in kinds]


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "background"},
        {"scheme": "none"},
        {"scheme": "blocking"},
        {"scheme": "naive"},
        {"scheme": "interleaved", "buffer_bytes": "1 MiB", "copy_bytes_per_s": "120 MB/s"},
        {"scheme": "gemini", "buffer_bytes": "1 MiB", "copy_bytes_per_s": "120 MB/s"},
        {"scheme": "gemini", "link_bytes_per_s": None},
    ],
    ids=lambda value: " ".join(map(str, value.values())),
)
def test_every_scheme_gives_the_same_losses(pair, undisturbed, settings):
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    run = pair.train(job, persistent_url=None, **{**PACED, **settings}).wait(200)
    assert run.report().losses_match(undisturbed(iterations=ITERATIONS, nodes=2))
    versions = [event.version for event in events_of(run, "version_complete")]
    assert (max(versions) == ITERATIONS) if settings["scheme"] != "none" else not versions
    planned = events_of(run, "profiled")
    assert len(planned) == (settings["scheme"] in {"naive", "interleaved", "gemini"})
    for event in planned:
        size_bytes = event.schedule.sent_bytes
        sent: dict[int, int] = {}
        for one in events_of(run, "transfer"):
            if one.rank == 0:
                sent[one.version] = sent.get(one.version, 0) + one.sent_bytes
        assert set(sent.values()) == {size_bytes}


@pytest.mark.long
def test_two_workers_of_a_node_share_its_link_and_change_no_loss(undisturbed, tmp_path):
    """Together they send no faster than the one link that their node has."""
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    with Lab(2, 0, workers_per_node=2, folder=tmp_path) as lab:
        run = lab.train(job, persistent_url=None, scheme="gemini", **PACED).wait(250)
    assert run.report().losses_match(undisturbed(iterations=ITERATIONS, nodes=4))
    (planned,) = events_of(run, "profiled")
    chunks = [event for event in events_of(run, "transfer") if event.span is not None]
    newest = max(event.version for event in chunks)
    for ranks in ({0, 1}, {2, 3}):
        sent = [e for e in chunks if e.rank in ranks and e.version == newest]
        assert {event.rank for event in sent} == ranks
        lasted_s = max(e.end_s for e in sent) - min(e.start_s for e in sent)
        assert sum(event.sent_bytes for event in sent) <= 1.01 * 80e6 * lasted_s
    assert planned.profile.world_size == 4


def test_a_naive_piece_larger_than_the_buffer_is_refused_and_training_goes_on(pair, undisturbed):
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    run = pair.train(job, persistent_url=None, scheme="naive", buffer_bytes="16 KiB", **PACED).wait(
        200
    )
    assert run.report().losses_match(undisturbed(iterations=ITERATIONS, nodes=2))
    assert any("refused" in note and "in one piece" in note for note in run.report().notes)


@pytest.mark.long
@pytest.mark.parametrize("seed", random_seeds(1))
def test_a_worker_killed_at_a_random_chunk_changes_no_loss(pair, undisturbed, seed):
    """A slow link keeps chunks on the way nearly all the time; the seed stands in the name."""
    iterations = 42
    job = gpt_job(size="tiny", iterations=iterations)
    run = pair.train(
        job,
        persistent_url=None,
        scheme="gemini",
        profile_iterations=2,
        buffer_bytes="256 KiB",
        link_bytes_per_s="40 MB/s",
    )
    strike_while_chunks_travel(run, random.Random(seed), at_iterations=[13, 27])
    report = run.wait(300).report()
    assert len(report.recoveries) == 2
    assert {receipt.tier for r in report.recoveries for receipt in r.receipts} == {"local"}
    assert report.losses_match(undisturbed(iterations=iterations, nodes=2))
    told = [event.kind for event in events_of(run, "profiled", "recovery_started")]
    assert told[:4] == ["profiled", "recovery_started"] * 2


def strike_while_chunks_travel(run, draw: random.Random, *, at_iterations: list[int]) -> None:
    """Kill a random rank at a random moment of each of these iterations."""
    left = list(at_iterations)

    def watch(entry):
        is_due = entry.kind == "iteration" and left and entry.event.iteration >= left[0]
        if is_due and run.phase == "training":
            left.pop(0)
            failure = WorkerCrash(f"rank-{draw.randrange(2)}")
            threading.Timer(draw.uniform(0, 0.15), run.inject, [failure]).start()

    run.watch(watch)


CHANGING = """
    import torch, deepspeed, gemini_lab
    from deepspeed import comm

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3},
              "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "gemini": {"scheme": "gemini", "profile_iterations": 2}}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config)
    protected = gemini_lab.protect(engine)
    for step in range(protected.step, 40):
        loss = engine(torch.randn(4, 8)).pow(2).mean()
        engine.backward(loss)
        if step >= 15:
            comm.all_reduce(torch.zeros(4))
        engine.step()
"""


def test_another_sequence_in_mid_run_is_noticed_and_profiled_again(pair, script):
    path = script(textwrap.dedent(CHANGING))
    run = pair.train(Job(script=str(path)), persistent_url=None).wait(200)
    first, second = events_of(run, "profiled")
    calls = [len(event.profile.collectives) for event in (first, second)]
    assert calls[1] == calls[0] + 1
    notes = run.report().notes
    assert any("all_reduce" in note for note in notes)
    assert any("profiled again" in note for note in notes)
    assert max(e.version for e in events_of(run, "version_complete")) == 40


def test_versions_reach_the_persistent_tier_though_not_every_one_is_sent(pair):
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    run = pair.train(
        job, scheme="gemini", max_overhead=1e-6, persist_every_iterations=3, **PACED
    ).wait(200)
    versions = run.report().traffic.persistent_versions
    assert len(versions) >= 2
    assert versions[-1] == ITERATIONS
