"""Ranks that hold different tensors lose workers, nodes and the root's node, and no bit."""

import re
import time
from pathlib import Path

import pytest

from gemini_lab import Job, Lab
from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import NodeLoss, RootLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log
from gemini_lab_bench.benches.live_lab import wait_for
from gemini_lab_bench.benches.resize import means

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
STEPS = 14

# What every rank holds after each step, as a number that a log carries exactly.
DIGEST = """
def digest(optimizers):
    import xxhash
    found = xxhash.xxh3_64()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                for one in (weight.data, *optimizer.state[weight].values()):
                    part = one.to_local() if hasattr(one, "to_local") else one
                    found.update(part.contiguous().numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.intdigest() >> 12


def main() -> None:
"""
STRIKES = """
def strike(name, *, kills):
    import os, pathlib, signal, time
    mark = pathlib.Path(__file__).parent / name
    if "GEMINI_LAB_STRIKES" in os.environ and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL) if kills else time.sleep(60)


def strike_amid(model, micro_batch):
    calls = []

    def before_forward(*_):
        calls.append(1)
        if len(calls) == micro_batch:
            strike("amid", kills=True)

    model.register_forward_pre_hook(before_forward)

"""
TELLS = (
    "        if reads_last:\n            loss =",
    """
        protected.log(digest=digest(optimizers))
        if reads_last:
            loss =""",
)
SAYS_ALL = "log(loss=loss.item(), digest=digest([optimizer]))"


def example(name, *changes):
    """The script of an example, in which each rank tells what it holds."""
    text = (EXAMPLES / name).read_text()
    changes = (("def main() -> None:\n", STRIKES + DIGEST), *changes)
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    # Iterations of 60 ms let two failures meet in one moment on a busy machine: with both copies of
    # a shard gone, a run rightly waits for a user.
    loop = re.search(r"( +)for step in protected[.]steps[(].*:\n", text)
    assert loop
    pause = f"{loop[1]}    __import__('time').sleep(0.15)\n"
    return text[: loop.end()] + pause + text[loop.end() :]


def values_of(run):
    """What each rank said of each iteration; what was done again is to say the same."""
    found = {}
    for entry in read_log(run.log):
        if entry.kind == "iteration" and not entry.event.restored:
            known = found.setdefault((entry.event.rank, entry.event.iteration), {})
            for name in entry.event.values:  # it is said again when more is logged
                value = entry.event.value(name)
                assert known.setdefault(name, value) == value
    return found


def train(lab, script, arguments, *, scenario=None, strikes=False, **settings):
    env = {"GEMINI_LAB_STRIKES": "1"} if strikes else {}
    job = Job(script=str(script), args=[*arguments, "--steps", str(STEPS)], env=env)
    return lab.train(job, scenario=scenario, persistent_url=None, **settings)


def test_stages_with_columns_lose_a_worker_of_each_amid_a_schedule_a_node_and_the_root(lab, script):
    amid = """
        if dist.get_rank() == 3 and step == 6:
            strike_amid(models[0], micro_batch=3)
        schedule.step("""
    text = example("train_pipeline.py", TELLS, ("        schedule.step(", amid))
    path = script(text)
    quiet = train(lab, path, []).wait(200)
    scenario = (
        Scenario()
        .add(WorkerCrash("rank-0"), iteration=3)
        .add(NodeLoss("rank-2"), iteration=8)
        .add(RootLoss(), iteration=12)
    )
    run = train(lab, path, [], scenario=scenario, strikes=True).wait(300)
    assert len(run.report().recoveries) == 4
    assert len(values_of(quiet)) == 4 * STEPS
    assert values_of(run) == values_of(quiet)
    assert run.report().losses_match(quiet.report())


def test_a_node_lost_between_two_optimizers_steps_leaves_no_half_update(lab, script):
    between = """
            optimizer.step()
            if dist.get_rank() == 1 and step == 5 and optimizer is optimizers[0]:
                strike("between", kills=False)
"""
    text = example("train_pipeline.py", TELLS, ("            optimizer.step()\n", between))
    path, arguments = script(text), ["--places", "4", "--schedule", "ZBVZeroBubble"]
    quiet = train(lab, path, arguments).wait(200)
    run = train(lab, path, arguments, strikes=True)
    deadline_s = time.monotonic() + 120
    while not (path.parent / "between").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    run.inject(NodeLoss("rank-1"))
    run.wait(200)
    assert len(run.report().recoveries) == 1
    assert len(values_of(quiet)) == 4 * STEPS
    assert values_of(run) == values_of(quiet)


@pytest.mark.timeout(600)
def test_a_node_with_two_ranks_of_a_row_and_the_roots_node_are_lost(tmp_path, script):
    text = example("train_2d.py", ("log(loss=loss.item())", SAYS_ALL))
    path = script(text)
    with Lab(2, 1, workers_per_node=2, folder=tmp_path / "lab") as lab:
        quiet = train(lab, path, []).wait(200)
        scenario = (
            Scenario()
            .add(WorkerCrash("rank-1"), iteration=3)
            .add(NodeLoss("rank-2"), iteration=6)
            .add(RootLoss(), iteration=10)
        )
        run = train(lab, path, [], scenario=scenario).wait(300)
    assert len(run.report().recoveries) == 3
    assert len(values_of(quiet)) == 4 * STEPS
    assert values_of(run) == values_of(quiet)
    assert run.report().losses_match(quiet.report())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case",
    [
        ("train_2d.py", [("log(loss=loss.item())", SAYS_ALL)], 2, [(2, 3), (3, 2)]),
        ("train_pipeline.py", [TELLS], 1, [(4, 6), (6, 4)]),
    ],
    ids=["tensor parallel", "pipeline"],
)
def test_ranks_that_differ_come_in_whole_models_and_go_with_a_node(tmp_path, script, case):
    """A resize on request, with two standbys; then a node is lost, and none stands by."""
    name, changes, workers, sizes = case
    nodes, more = sizes[0]
    still = ("nn.Dropout(0.1)", "nn.Dropout(0.0)")  # what new ranks drop out is their own
    path = script(example(name, still, *changes))
    with Lab(nodes, more - nodes, workers_per_node=workers, folder=tmp_path / "lab") as lab:
        lab.wait_until_ready()
        quiet = train(lab, path, []).wait(200)
        run = train(lab, path, [], hold_at=[3, 9], when_short="shrink", shrink_after_s=0)
        run.wait(until=3)
        if workers == 1:
            with pytest.raises(ConfigError, match=r"a model takes 2 ranks .*; give it 4 or 6"):
                run.resize(5)
        run.resize(more)
        wait_for(run, recoveries=1)
        run.wait(until=9)
        deadline_s = time.monotonic() + 120
        # The lab has asked for as many standbys as it had: one that joins later would be taken.
        while len(spares := {*lab.living} - {*run.members}) < more - nodes:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        for node in (*spares, run.members[-1]):
            run.inject(NodeLoss(node))
        run.wait(300)
    told = [entry.event for entry in run.events("resized")]
    assert [(one.nodes_then, one.nodes) for one in told] == sizes
    assert {one.tier for one in run.report().recoveries} == {"memory"}
    assert run.report().divergences == ()
    first, known = told[0].iteration, values_of(quiet)
    before = {at: said for at, said in values_of(run).items() if at[1] < first}
    assert before == {at: known[at] for at in before}
    assert len(before) == (first - 1) * nodes * workers
    whole, found = means(quiet.report()), means(run.report())
    assert len(whole) == STEPS
    assert found == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_deepspeed_pipeline_loses_a_worker_of_each_stage_a_node_and_the_root(lab, script, zero):
    """Each layer draws from a generator of its rank's, by name; two stages tie a table."""
    base = "engine.optimizer.optimizer" if zero else "engine.optimizer"
    told = f"""
        protected.log(loss=loss.item(), digest=digest([{base}]))
        protected.log(named=named())
"""
    named = """
def named():
    import xxhash
    states = checkpointing.get_cuda_rng_tracker().get_states()
    return xxhash.xxh3_64_intdigest(states["model-parallel-rng"].numpy().tobytes()) >> 12


def main() -> None:
"""
    text = example(
        "train_deepspeed_pipeline.py",
        ("def main() -> None:\n", named),
        ("        protected.log(loss=loss.item())\n", told),
    )
    path, arguments = script(text), ["--zero", str(zero)]
    quiet = train(lab, path, arguments).wait(200)
    scenario = (
        Scenario()
        .add(WorkerCrash("rank-0"), iteration=3)
        .add(WorkerCrash("rank-3"), iteration=6)
        .add(NodeLoss("rank-2"), iteration=8)
        .add(RootLoss(), iteration=12)
    )
    run = train(lab, path, arguments, scenario=scenario).wait(300)
    assert len(run.report().recoveries) == 4
    assert len(values_of(quiet)) == 4 * STEPS
    assert {*values_of(quiet)[0, 1]} >= {"loss", "digest", "named"}
    assert values_of(run) == values_of(quiet)
    assert run.report().losses_match(quiet.report())


EXPERTS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import DataLoader, DistributedSampler
import gemini_lab

COUNT, WIDTH = 4, 8


class Experts(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        weight = distribute_tensor(torch.randn(COUNT, WIDTH, WIDTH) / 4, mesh, [Shard(0)])
        self.weight, self.group, self.ranks = nn.Parameter(weight), mesh.get_group(), mesh.size()

    def forward(self, words, chosen):
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=COUNT).view(self.ranks, -1)
        come = torch.empty_like(sent)
        dist.all_to_all_single(come, sent, group=self.group)
        sizes = come.sum(1).tolist(), sent.sum(1).tolist()
        mine = all_to_all_single_autograd(words[order], *sizes, self.group)
        own = self.weight.to_local()
        which = torch.arange(len(own)).repeat(self.ranks).repeat_interleave(come.flatten())
        made = torch.tanh(mine.unsqueeze(1) @ own[which]).squeeze(1)
        back = all_to_all_single_autograd(made, *reversed(sizes), self.group)
        return back[order.argsort()]


class Model(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.first, self.route = nn.Linear(6, WIDTH), nn.Linear(WIDTH, COUNT)
        self.drop, self.experts, self.last = nn.Dropout(0.2), Experts(mesh), nn.Linear(WIDTH, 1)

    def forward(self, batch):
        words = self.drop(self.first(batch))
        chance, chosen = self.route(words).softmax(-1).max(-1)
        return self.last(words + chance.unsqueeze(1) * self.experts(words, chosen))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "experts"))
    model = Model(mesh["experts"])
    fully_shard(model.experts, mesh=mesh["data"])
    fully_shard(model, mesh=mesh._flatten("all"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    torch.manual_seed(2 + dist.get_rank())
    samples = torch.sin(torch.arange(480.0)).view(80, 6)
    loader = DataLoader(samples, batch_size=5, sampler=DistributedSampler(samples))
    protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
    for _ in protected.epochs(4):
        for batch in loader:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            protected.log(loss=loss.item(), digest=digest([optimizer]))


main()
"""


def test_experts_of_their_own_lose_a_worker_a_node_and_the_root(lab, script):
    """Words go to the ranks that have their experts, and back; the rest is FSDP2's on all ranks."""
    path = script(EXPERTS.replace("def main() -> None:\n", DIGEST))

    def run(scenario=None):
        return lab.train(Job(script=str(path)), scenario=scenario, persistent_url=None).wait(200)

    quiet = run()
    scenario = Scenario().add(WorkerCrash("rank-1"), iteration=3)
    scenario = scenario.add(NodeLoss("rank-2"), iteration=7).add(RootLoss(), iteration=11)
    broken = run(scenario)
    assert len(broken.report().recoveries) == 3
    assert len(values_of(quiet)) == 4 * 16
    assert values_of(broken) == values_of(quiet)


UNLIKE = """
import torch
import torch.distributed as dist
import gemini_lab

dist.init_process_group("gloo")
size = 1024 if dist.get_rank() < 2 else 16
model = torch.nn.Linear(size, size)
optimizer = torch.optim.AdamW(model.parameters())
protected = gemini_lab.protect(model=model, optimizer=optimizer, data=())
for step in protected.steps(8):
    loss = model(torch.randn(1, size)).square().mean()
    loss.backward()
    protected.log(loss=loss.item())
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
"""


def test_a_node_with_a_large_shard_has_its_copy_on_one_with_a_small_shard(lab, script):
    job = Job(script=str(script(UNLIKE)))
    scenario = Scenario().add(NodeLoss("rank-1"), iteration=4)
    run = lab.train(job, scenario=scenario, persistent_url=None).wait(200)
    told = [one.event for one in read_log(run.log) if one.kind == "protected"]
    placements = [one.placement for one in told if one.rank == 0 and one.placement is not None]
    assert placements
    assert {one.groups for one in placements} == {((0, 2), (1, 3))}
    (recovery,) = run.report().recoveries
    assert recovery.tier == "memory"
