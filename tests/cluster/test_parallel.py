"""Ranks that hold different tensors lose workers, nodes and the root's node, and no bit."""

import re
import time
from pathlib import Path

import pytest

from gemini_lab import Job, Lab
from gemini_lab.cli.check_command import render
from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.injector.scenario import Scenario
from gemini_lab.lab.check import check_script
from gemini_lab.log.file import read_log
from gemini_lab_bench.benches.live_lab import wait_for
from gemini_lab_bench.benches.resize import means

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
STEPS = 14

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
            protected.log(loss=loss.item())


main()
"""

ZERO = """
import sys
import deepspeed, torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.sequence.layer import DistributedAttention
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
import gemini_lab

kind, stage = sys.argv[1], int(sys.argv[2])
CUT = [
    {"patterns": [r".*middle\\.weight$"], "partition_type": "column"},
    {"patterns": [r".*again\\.weight$"], "partition_type": "row"},
]


def attend(query, key, value):
    whole = (one.transpose(1, 2) for one in (query, key, value))
    return nn.functional.scaled_dot_product_attention(*whole, is_causal=True).transpose(1, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(6, 16), nn.Dropout(0.2)
        self.middle = nn.Linear(16, 16, bias=False)
        self.again, self.last = nn.Linear(16, 16), nn.Linear(16, 1)
        if kind == "MoE":
            self.middle = MoE(16, nn.Linear(16, 16), num_experts=2, ep_size=2, min_capacity=0)

    def forward(self, features):
        hidden, lost = self.middle(self.drop(torch.tanh(self.first(features)))), 0
        if kind == "MoE":
            hidden, lost, _ = hidden
        return self.last(torch.tanh(self.again(hidden))).square().mean() + 0.1 * lost


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(1, 24), nn.Linear(8, 1), nn.Dropout(0.2)
        group = parallel_state_sp.get_sequence_parallel_group()
        self.attention = DistributedAttention(attend, group, gather_idx=1)

    def forward(self, features):
        number = parallel_state_sp.get_sequence_parallel_rank()
        part = features.chunk(2, dim=1)[number].unsqueeze(-1)
        three = self.drop(self.first(part)).unflatten(-1, (3, 4, 2)).unbind(2)
        seen = self.attention(*(one.contiguous() for one in three), 0)
        return self.last(seen.flatten(2)).square().mean()


deepspeed.init_distributed("gloo", verbose=False)
torch.manual_seed(1)
row = 1 if kind == "MoE" else 2  # ranks that read the same
copies = dist.get_world_size() // row
if kind == "Ulysses":
    parallel_state_sp.initialize_sequence_parallel(row)
model = Reader() if kind == "Ulysses" else Model()
groups = [{"params": [*model.parameters()], "name": "all"}]
partition = {"use_default_specs": False, "layer_specs": CUT}
cut = {"tensor_parallel": {"autotp_size": row, "partition_config": partition}}
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=split_params_into_different_moe_groups_for_optimizer(groups)
    if kind == "MoE"
    else groups,
    mpu=parallel_state_sp if kind == "Ulysses" else None,
    config={
        "train_micro_batch_size_per_gpu": 16 // copies,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        **(cut if kind == "AutoTP" else {}),
    },
)
torch.manual_seed(2 + dist.get_rank() // row)
samples = torch.sin(torch.arange(576.0)).view(96, 6)
sampler = DistributedSampler(samples, num_replicas=copies, rank=dist.get_rank() // row)
loader = DataLoader(samples, batch_size=16 // copies, sampler=sampler)
protected = gemini_lab.protect(engine, data=loader)
for epoch in protected.epochs(5):
    for batch in loader:
        loss = engine(batch)
        engine.backward(loss)
        protected.log(loss=loss.item())
        engine.step()
"""

END = {"update", "forward", "loop over", "script over"}
MICRO = END | {"second pass"}
"""The places of scripts with one forward pass an iteration, and with several."""
LONG = pytest.mark.long
STACKS = [
    # text, arguments, nodes, workers a node, where it is killed
    pytest.param("train_2d.py", "", (2, 2), END | {"batches over"}, id="TP x FSDP2"),
    pytest.param("train_pipeline.py", "", (4, 1), MICRO | {"batches over"}, id="1F1B x FSDP2"),
    pytest.param(
        "train_pipeline.py",
        "--places 4 --schedule ZBVZeroBubble",
        (4, 1),
        MICRO | {"between steps"},
        id="two stages a rank",
    ),
    pytest.param("train_pipeline.py", "--cut 2", (4, 2), MICRO, id="TP x PP x FSDP2"),
    pytest.param("train_deepspeed_pipeline.py", "--zero 0", (4, 1), MICRO, id="PipelineEngine 0"),
    pytest.param("train_deepspeed_pipeline.py", "--zero 1", (4, 1), MICRO, id="PipelineEngine 1"),
    pytest.param(EXPERTS, "", (4, 1), END, id="experts"),
    *[
        pytest.param(
            ZERO, f"{kind} {stage}", (2, 2), MICRO, id=f"{kind}, ZeRO {stage}", marks=marks
        )
        for kind, stage, marks in (
            *(("AutoTP", 1, LONG), ("AutoTP", 2, LONG), ("AutoTP", 3, ())),
            *(("MoE", 1, LONG), ("MoE", 2, ()), ("Ulysses", 1, LONG), ("Ulysses", 3, ())),
        )
    ],
]


@pytest.fixture
def check(request, tmp_path, script):
    """Check a job of some nodes and workers a node."""

    def checked(text, words, seats):
        args = words.split()
        if text.endswith(".py"):
            text, args = (EXAMPLES / text).read_text(), [*args, "--steps", str(STEPS)]
        job = Job(script=str(script(text)), args=args)
        limits = {"iterations": 20, "kills": 12, "limit_s": 250, "tell": print}
        if seats == (4, 1):
            return check_script(request.getfixturevalue("lab"), job, **limits)
        with Lab(seats[0], 1, workers_per_node=seats[1], folder=tmp_path / "lab") as lab:
            return check_script(lab, job, **limits)

    return checked


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("text", "words", "seats", "places"), STACKS)
def test_each_rank_is_killed_a_node_and_the_roots_and_no_bit_differs(
    check, text, words, seats, places
):
    """At each place of the script: every state and loss of each rank, and plain torchrun's."""
    found, workers = check(text, words, seats), seats[1]
    print("\n".join(render(found)))
    assert found.verdict == "bit-identical", found
    assert found.plain is not None, found.plain_failed
    assert found.missed == ()
    assert found.iterations >= STEPS
    assert found.disturbed.states.states >= found.ranks * (found.iterations + 1)
    assert found.disturbed.twice.with_values >= found.iterations
    kills = [one.kill for one in found.recovered]
    assert {kill.place for kill in kills} >= places
    assert sum(kill.is_at_root for kill in kills) == 1
    # A rank's node mates go with it.
    gone = [
        kill.rank // workers * workers + mate if kill.loses_node else kill.rank
        for kill in kills
        if not kill.is_at_root
        for mate in range(workers)
    ]
    assert {*gone} == {*range(found.ranks)}
    assert [kill.rank for kill in kills if kill.place == "second pass"] in ([], [found.ranks - 1])


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
    changes = (("def main() -> None:\n", DIGEST), *changes)
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


def train(lab, script, **settings):
    job = Job(script=str(script), args=["--steps", str(STEPS)])
    return lab.train(job, persistent_url=None, **settings)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case",
    [
        ("train_2d.py", [("log(loss=loss.item())", SAYS_ALL)], 2, [(2, 3), (3, 2)]),
        ("train_pipeline.py", [TELLS], 1, [(4, 6), (6, 4)]),
        (
            "train_deepspeed_pipeline.py",
            [("log(loss=loss.item())", SAYS_ALL.replace("optimizer", "engine.optimizer"))],
            1,
            [(4, 6), (6, 4)],
        ),
    ],
    ids=["tensor parallel", "pipeline", "DeepSpeed's pipeline"],
)
def test_ranks_that_differ_come_in_whole_models_and_go_with_a_node(tmp_path, script, case):
    """A resize on request, with two standbys; then a node is lost, and none stands by."""
    name, changes, workers, sizes = case
    nodes, more = sizes[0]
    still = ("nn.Dropout(0.1)", "nn.Dropout(0.0)")  # what new ranks drop out is their own
    path = script(example(name, still, *changes))
    with Lab(nodes, more - nodes, workers_per_node=workers, folder=tmp_path / "lab") as lab:
        lab.wait_until_ready()
        quiet = train(lab, path).wait(200)
        run = train(lab, path, hold_at=[3, 9], when_short="shrink", shrink_after_s=0)
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


ROOM = 2**20 + 2**16
"""Bytes that a rank's counters, generators and position in the data may take."""


def test_a_2d_jobs_state_is_kept_once_for_each_copy_and_leaves_once_for_each_peer(lab, script):
    """Rows replicate norms, and data-parallel ranks nothing: no tensor is kept by two shards."""
    wide = ("LENGTH, BATCH = 64, 32,", "LENGTH, BATCH = 64, 256,")
    run = train(lab, script(example("train_2d.py", wide))).wait(200)
    told = [one.event for one in read_log(run.log) if one.kind == "protected"]
    shards = {one.rank: one.shard_bytes for one in told}
    (placement,) = (one.placement for one in told if one.placement is not None)
    assert (len(shards), placement.replicas) == (4, 2)
    weights = 2 * 64 * 256 + 2 * (2 * 4 * 256 * 256 + 7 * 256) + 2 * 256
    state = 3 * 4 * weights  # AdamW keeps two moments beside each weight
    assert state <= sum(shards.values()) <= state + 4 * ROOM
    kept = sum(shards[shard] for node in range(4) for shard in placement.kept_by(node))
    assert kept == 2 * sum(shards.values())
    sent = {}
    for one in read_log(run.log):
        if one.kind == "version_complete":
            sent.setdefault(one.event.version, {})[one.event.rank] = one.event.sent_bytes
    whole = [each for each in sent.values() if len(each) == 4]
    assert len(whole) >= STEPS - 2
    assert all(each == shards for each in whole)


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
