"""Ranks that call `protect` with something that it refuses; see `test_refusals`.

A case is what a rank gives to `protect`, with its reason to be refused or without. Everything is a
worker's own but its agent, which nobody is: a rank that is not refused ends by asking it for
memory.
"""

import json
from functools import partial
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from gemini_lab import protect
from gemini_lab.engine import session as sessions
from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.errors import GeminiError
from gemini_lab.job import Job
from gemini_lab.recovery.messages import JobOrder, WorkerStart
from gemini_lab.recovery.plan import PlanPart
from gemini_lab.seats import Seats

CASES = {}
"""Of each case, what a rank gives; told whether it has the reason."""


def case(make):
    CASES[make.__name__.replace("_", " ")] = make
    return make


class Agentless:
    """The end of a channel at which nobody is."""

    def send(self, message):
        pass

    def receive(self):
        raise LookupError("asked for memory")


class Averaging(torch.optim.SGD):
    """Keeps a tensor outside of its state."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
        self.average = torch.zeros(3)


class OnebitAdam(torch.optim.SGD):
    """Named as DeepSpeed's, which releases of 0.19 had at first."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.1)


def trained(model=None, *, by=sgd, **more):
    """A model and its optimizer; the model is one of two weights by default."""
    model = nn.Linear(4, 4) if model is None else model
    return {"model": model, "optimizer": by(list(model.parameters())), **more}


@case
def nothing_to_refuse(_):
    return trained()


@case
def a_graph_that_is_static(has):
    return trained(DistributedDataParallel(nn.Linear(4, 4), static_graph=has))


@case
def models_in_DDP_over_other_ranks(has):  # noqa: N802
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    groups = [alone, None if has else alone]
    wrapped = [
        DistributedDataParallel(model, process_group=group) if group else model
        for model, group in zip(models, groups, strict=True)
    ]
    return {"model": wrapped, "optimizer": [sgd(one.parameters()) for one in models]}


@case
def a_weight_without_memory(has):
    return trained(nn.Linear(4, 4, device="meta" if has else "cpu"))


@case
def an_optimizer_of_other_weights(has):
    model = nn.Linear(4, 4)
    return trained(model) | {"optimizer": sgd((nn.Linear(2, 2) if has else model).parameters())}


@case
def settings_that_are_none(has):
    return trained(settings=3 if has else {})


@case
def a_schedule_without_a_state(has):
    return trained(scheduler=object() if has else None)


@case
def data_without_a_position(has):
    return trained(data=iter([1]) if has else ())


@case
def an_object_without_a_state(has):
    return trained(also={"thing": object()} if has else {})


@case
def an_optimizer_with_state_beside_its_state(has):
    return trained(by=Averaging if has else sgd)


@case
def an_optimizer_that_needs_a_closure(has):
    return trained(by=torch.optim.LBFGS if has else sgd)


@case
def a_stage_whose_optimizer_needs_a_closure(has):
    """The ranks train different models."""
    width = 3 + dist.get_rank()
    return trained(nn.Linear(width, width), by=torch.optim.LBFGS if has else sgd)


@case
def a_cut_weight_whose_optimizer_needs_a_closure(has):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    model = parallelize_module(nn.Sequential(nn.Linear(4, 4)), mesh, {"0": ColwiseParallel()})
    return trained(model, by=torch.optim.LBFGS if has else sgd)


@case
def a_sharded_weight_whose_optimizer_needs_a_closure(has):
    return trained(fully_shard(nn.Linear(4, 4)), by=torch.optim.LBFGS if has else sgd)


@case
def other_tensors_than_are_shared(has):
    model = DistributedDataParallel(nn.Linear(4, 4))
    return {"model": model, "optimizer": sgd([*model.parameters()][int(has) :])}


@case
def a_setting_that_is_unknown(has):
    return trained(settings={"replica": 2} if has else {})


@case
def a_setting_that_other_ranks_have_otherwise(has):
    return trained(settings={"scheme": "none"} if has else {})


def unlike(**settings):
    width = 3 + dist.get_rank()
    return trained(nn.Linear(width, width), settings=settings)


@case
def a_pipeline_that_is_to_verify(_):
    return unlike(verify_every=2)


@case
def a_pipeline_that_is_to_send_gradients(_):
    return unlike(replicate="gradients")


def zero(stage=1, *, by=None, model=None, **config):
    """A DeepSpeed engine."""
    model = nn.Linear(4, 4) if model is None else model
    given = config.pop("optimizer", {"type": "AdamW", "params": {"torch_adam": True}})
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, **config.pop("zero", {})},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **({} if by else {"optimizer": given}),
        **config,
    }
    weights = list(model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=by and by(weights),
        model_parameters=None if by else weights,
        config=config,
    )
    return {"engine": engine}


@case
def partitions_with_state_beside_their_state(has):
    return zero(2, by=Averaging if has else sgd)


@case
def an_optimizer_that_compresses(has):
    return zero(1, by=OnebitAdam if has else sgd)


@case
def an_engine_beside_a_plain_model(has):
    made = zero()  # on all ranks, which make it together
    return made if has else trained()


@case
def another_stage_of_ZeRO(has):  # noqa: N802
    return zero(2 if has else 1)


def work(request, rank):
    found = {}
    store = dist.FileStore(f"{request['folder']}/sessions", request["ranks"])
    for number, name in enumerate(CASES):
        prefixed = dist.PrefixStore(str(number), store)
        found[name] = ends(partial(CASES[name], rank == request["who"]), rank, prefixed)
        dist.barrier()
    Path(request["folder"], f"rank-{rank}.json").write_text(json.dumps(found))


def ends(make, rank, store):
    """How `protect` ends on this rank, and if it refuses, how another call ends."""
    sessions.current = session(rank, store)
    found = []
    for each in make, trained:
        try:
            protect(**each())
        except (GeminiError, LookupError) as error:
            found.append([type(error).__name__, str(error)])
            if isinstance(error, LookupError):
                break
    sessions.current = None
    return found


def session(rank, store):
    ranks = dist.get_world_size()
    seats = Seats(nodes=ranks, members=tuple(f"node-{n}" for n in range(ranks)))
    job = Job(script="train.py", cwd="/")
    start = WorkerStart(
        rank=rank,
        epoch=1,
        order=JobOrder(number=1, run=1, job=job, seats=seats, defaults={"replicas": 2}),
        seats=seats,
        plan=PlanPart(version=None, tier="start"),
        rendezvous="127.0.0.1:1",
        fingerprint=None,
        interface=None,
    )
    pulse = Heartbeat(lambda _: None, rank=rank, epoch=1)
    return sessions.WorkerSession(start=start, channel=Agentless(), store=store, pulse=pulse)
