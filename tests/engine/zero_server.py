"""Trains tiny models with DeepSpeed on a few gloo ranks; fresh processes for every request.

Or in plain PyTorch on as many as are asked for: see `torch_ranks`. Reads requests (one JSON object
a line) from its input, forks the ranks of each, and answers with their exit codes. What the ranks
found lies in the request's folder: `rank-N.json`, `shard-N.bin`, and `error-N.txt` if one failed.
"""

import gc
import importlib
import json
import os
import random
import sys
import traceback
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "LOG_LEVEL": "error"}

import deepspeed
import loops
import numpy as np
import refusal_ranks
import resize_ranks
import torch
import torch.distributed as dist
import torch_ranks
from deepspeed.accelerator import get_accelerator
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.sequence.layer import DistributedAttention
from deepspeed.utils import logger, safe_get_full_fp32_param
from safetensors.torch import save_file
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

from gemini_lab.engine.gradients.maker_process import Repeater
from gemini_lab.engine.gradients.update_recorder import RecordedStep, UpdateRecorder
from gemini_lab.engine.made_objects import follow_constructors
from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.engine.state.script_state import ScriptState
from gemini_lab.shard.layout import framed

STEPS = 6
CAPTURE_AT = 3
BATCHES_PER_EPOCH = 4


class Numbers(torch.utils.data.Dataset):
    """Its own indices, with features made from them."""

    def __len__(self):
        return 2 * BATCHES_PER_EPOCH

    def __getitem__(self, index):
        features = torch.linspace(-1, 1, 6) * (index + 1) / 8
        return index, features


class RunningNorm(nn.Module):
    """Subtracts the mean of what it saw so far: a buffer that every forward pass changes."""

    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, hidden):
        self.mean.mul_(0.9).add_(hidden.detach().float().mean(0), alpha=0.1)
        return (hidden - self.mean.to(hidden.dtype)) * self.scale


class Model(nn.Module):
    """Small, with sizes that do not divide by two, and what makes restoring hard."""

    def __init__(self, case):
        super().__init__()
        self.case = case
        self.register_buffer("passes", torch.zeros(1))
        width = case.get("width", 13)
        self.first = nn.Linear(6, width)
        self.norm = RunningNorm(width)
        self.drop = NamedDropout() if case.get("named") else nn.Dropout(0.3)
        self.middle = nn.Linear(width, width, bias=False)
        self.again = nn.Linear(width, width)
        if case.get("tied"):
            self.again.weight = self.middle.weight
        if case.get("experts"):
            self.middle = MoE(
                width, nn.Linear(width, width), num_experts=2, ep_size=2, min_capacity=0
            )
        self.last = nn.Linear(width, case.get("outputs", 1))
        if case.get("frozen"):
            self.first.requires_grad_(False)

    def forward(self, features):
        self.passes.add_(1)
        hidden = self.norm(torch.tanh(self.first(features)))
        if not self.case.get("skips") or self.passes % 3 == 2:
            hidden = self.middle(self.drop(hidden))
        if self.case.get("experts"):
            hidden, lost, _ = hidden
            return self.last(torch.tanh(self.again(hidden))).square().mean() + 0.1 * lost
        return self.last(torch.tanh(self.again(hidden))).float().square().mean()


def attend(query, key, value):
    """Attention over a whole sequence, by the heads that this rank has."""
    whole = (one.transpose(1, 2) for one in (query, key, value))
    return nn.functional.scaled_dot_product_attention(*whole, is_causal=True).transpose(1, 2)


class Reader(nn.Module):
    """Reads its rank's part of each sequence; heads are exchanged for positions (Ulysses)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 24), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.3)
        self.attention = DistributedAttention(
            attend, parallel_state_sp.get_sequence_parallel_group(), gather_idx=1
        )

    def forward(self, features):
        number = parallel_state_sp.get_sequence_parallel_rank()
        part = features.chunk(2, dim=1)[number].unsqueeze(-1)
        three = self.drop(self.first(part)).unflatten(-1, (3, 4, 2)).unbind(2)
        seen = self.attention(*(one.contiguous() for one in three), 0)
        return self.last(seen.flatten(2)).square().mean()


class SignMomentum(torch.optim.Optimizer):
    """Somebody's own: Lion with a clock, an attribute, and a step that rounds at random."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "weight_decay": 0.0})
        self.calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["velocity"] = torch.zeros_like(weight)
                    state["clock"] = torch.ones(1)
                    state["kind"] = "sign"
                noise = torch.rand_like(weight) * 1e-3 / self.calls
                update = (0.9 * state["velocity"] + 0.1 * weight.grad + noise).sign()
                weight.add_(update / state["clock"], alpha=-group["lr"])
                state["velocity"].mul_(0.99).add_(weight.grad, alpha=0.01)
                state["clock"] += 0.25


class SlowAdam(torch.optim.Adam):
    """A subclass."""

    def step(self):
        for group in self.param_groups:
            group["eps"] *= 1.01
        super().step()


class Averaging(torch.optim.SGD):
    """Keeps a tensor outside its state."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.average = torch.zeros(3)


class Rows(torch.optim.SGD):
    """Keeps something of a form of its own for each weight."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight].setdefault("rows", torch.zeros(7))
        super().step()


class OnebitAdam(torch.optim.SGD):
    """Named as DeepSpeed's, which releases of 0.19 had at first."""


class Muon(torch.optim.SGD):
    """By its name."""


OWN = {
    "Muon": lambda groups: Muon(groups, lr=0.01),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.9, centered=True),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05),
    "SignMomentum": SignMomentum,
    "SlowAdam": lambda groups: SlowAdam(groups, lr=0.01, amsgrad=True),
    "Averaging": lambda groups: Averaging(groups, lr=0.01),
    "OnebitAdam": lambda groups: OnebitAdam(groups, lr=0.01),
    "Rows": lambda groups: Rows(groups, lr=0.01),
}


AUTOTP = {
    "tensor_parallel": {
        "autotp_size": 2,
        "partition_config": {
            "use_default_specs": False,
            "layer_specs": [
                {"patterns": [r".*middle\.weight$"], "partition_type": "column"},
                {"patterns": [r".*again\.weight$"], "partition_type": "row"},
            ],
        },
    }
}
"""Two of the model's layers are cut over two ranks."""


def settings(case):
    optimizer = {
        "Adam": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "AMSGrad": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True, "amsgrad": True}},
        "AdamW": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "FusedAdam": {"type": "Adam", "params": {"lr": 0.01}},
        "Lion": {"type": "Lion", "params": {"lr": 0.01}},
        "CPUAdagrad": {"type": "Adagrad", "params": {"lr": 0.01}},
        "SGD": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}},
        "ZeroMuon": {"type": "Muon", "params": {"lr": 0.02, "momentum": 0.9}},
    }.get(case["optimizer"])
    accumulation = case.get("accumulation", 1)
    config = {
        "train_micro_batch_size_per_gpu": case.get("micro_batch", 2),
        "gradient_accumulation_steps": accumulation,
        **({} if optimizer is None else {"optimizer": optimizer}),
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 5, "warmup_type": "linear", "warmup_max_lr": 0.02},
        },
        "zero_optimization": {
            "stage": case["stage"],
            "stage3_param_persistence_threshold": 20,  # biases stay gathered, matrices do not
            **case.get("zero", {}),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 1.0,
        **(AUTOTP if "cut" in case else {}),
        **case.get("config", {}),
    }
    if case.get("dtype", "float32") != "float32":
        config[{"bfloat16": "bf16", "float16": "fp16"}[case["dtype"]]] = {
            "enabled": True,
            **case.get("precision", {}),
        }
    return config


def shifted(table, hidden):
    return hidden @ table.weight


def make_stages(case):
    """Unlike stages with a tied layer, of which layers drop out by a count of their own."""
    tied = ("tied", nn.Linear, 13, 6)
    layers = [
        TiedLayerSpec(*tied, forward_fn=shifted),
        LayerSpec(RunningNorm, 13),
        nn.Dropout(0.3),
        *[LayerSpec(nn.Linear, 13, 13) for _ in range(3)],
        TiedLayerSpec(*tied),
    ]
    return PipelineModule(
        layers,
        num_stages=2,
        loss_fn=lambda out, wanted: (out - wanted).square().mean(),
        seed_layers=case.get("seeds", False),
        seed_fn=lambda seed: torch.manual_seed(int(seed)),
        activation_checkpoint_interval=case.get("again", 0),
        checkpointable_layers=["Linear"],
    )


def make_engine(case, seed):
    if case["optimizer"] == "ZeroMuon":  # a forked rank would wait for the compiler's processes
        torch._dynamo.config.disable = True
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(case.get("model_seed", seed))
    if case.get("sequence"):
        parallel_state_sp.initialize_sequence_parallel(case["sequence"])
    make = {"stages": lambda: make_stages(case), "sequence": Reader}
    model = next((make[kind] for kind in make if kind in case), lambda: Model(case))()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [{"params": [w for w in trained if w.ndim > 1], "weight_decay": 0.1}]
    groups.append({"params": [w for w in trained if w.ndim == 1], "weight_decay": 0.0})
    if case.get("groups") == 1:
        groups = [{"params": trained}]
    if case.get("experts"):
        groups = [{**group, "name": str(number)} for number, group in enumerate(groups)]
        groups = split_params_into_different_moe_groups_for_optimizer(groups)
    own = OWN.get(case["optimizer"])
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=own and own(groups),
        model_parameters=None if own else groups,
        config=settings(case),
        mpu=parallel_state_sp if case.get("sequence") else None,
    )
    # Ranks that share a layer read the same, and drop out the same.
    torch.manual_seed(seed + dist.get_rank() // case.get("row", 1))
    if case.get("named"):
        get_cuda_rng_tracker().reset()
        get_cuda_rng_tracker().add("of this rank", seed + 7 * dist.get_rank())
    return engine


class NamedDropout(nn.Module):
    """Draws from a generator of its rank's own, by name."""

    def forward(self, hidden):
        with get_cuda_rng_tracker().fork("of this rank"):
            return nn.functional.dropout(hidden, 0.3)


class Trainer:
    """The loop that a script would have; one update at a time."""

    def __init__(self, engine, loader, client):
        self.engine, self.loader, self.client = engine, loader, client
        self.batches = iter(())

    def update(self):
        """One optimizer step: its losses, bit for bit, and the samples it saw."""
        losses, seen = [], []
        if self.engine.pipeline_parallelism:
            loss = self.engine.train_batch(iter(self.next_pair, None))
            noise = [random.random(), torch.rand(1).item()]
            return [float(loss).hex(), *noise], self.digest()
        for _ in range(self.engine.gradient_accumulation_steps()):
            index, features = self.next_batch()
            loss = self.engine(features.to(next(self.engine.module.parameters()).dtype))
            self.engine.backward(loss)
            self.engine.step()
            losses.append(float(loss).hex())
            seen += index.tolist()
        self.client["noise"] = [random.random(), float(np.random.rand())]  # noqa: NPY002
        return losses, seen

    def next_pair(self):
        _, features = self.next_batch()
        dtype = next(self.engine.module.parameters()).dtype
        return features.to(dtype), features.flip(1).to(dtype)

    def digest(self):
        """What this rank's layers hold, bit by bit."""
        held = [*self.engine.module.parameters(), *self.engine.module.buffers()]
        return [one.detach().double().sum().item().hex() for one in held]

    def next_batch(self):
        while True:
            for batch in self.batches:
                return batch
            self.batches = iter(self.loader)  # of a position at an epoch's end it gives nothing


def whole(state):
    """This rank's payload, as a worker would put it together."""
    payload = bytearray(state.layout.payload_bytes)
    small = state.capture_small({"note": ["kept", 1]})
    payload[: len(small)] = small
    for offset, tensor in state.pieces():
        raw = tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        payload[offset : offset + len(raw)] = raw
    return payload


def full_weights(engine):
    """The model's fp32 weights, gathered by DeepSpeed."""
    named = dict(engine.module.named_parameters())
    weights = {}
    with deepspeed.zero.GatheredParameters([*named.values()]):
        for name, weight in named.items():
            weights[name] = weight.detach().float().reshape(-1).clone()
    for name, weight in named.items():
        if weight.requires_grad and weight.dtype != torch.float32:
            weights[name] = safe_get_full_fp32_param(weight).reshape(-1).clone()
    return weights


def work_resized(request, rank):
    resize_ranks.work(
        request,
        rank,
        make_engine=make_engine,
        trainer_of=Trainer,
        whole=whole,
        full_weights=full_weights,
    )


def work_of(request):
    """What the ranks of a request do."""
    if "loop" in request:
        return work_a_loop
    if "refusals" in request:
        return refusal_ranks.work
    return work_resized if request.get("resized") else work


def work_a_loop(request, rank):
    folder, version = Path(request["folder"]), request.get("load")
    payload = None if version is None else (folder / f"shard-{rank}-{version}.bin").read_bytes()
    found, payloads = loops.train(request, rank, payload)
    for version, payload in payloads.items():
        (folder / f"shard-{rank}-{version}.bin").write_bytes(payload)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


class Unmoved:
    """Nothing is to be done around an update."""

    counts, remarks = True, ()

    def begin_forward(self):
        pass

    def before_update(self):
        return 0.0

    def after_update(self, waited_s):
        pass


class Steps:
    """The steps of a rank, and the versions that they made."""

    def __init__(self, state):
        self.versions = [whole(state)]
        small_bytes = len(framed(self.versions[0]))
        self.recorder = UpdateRecorder(
            state.framework, state.layout, small_bytes=small_bytes, chunk_bytes=4096
        )
        self.state, self.differences = state, []

    def note(self, version):
        difference = self.recorder.take(self.state.version, framed(version))
        self.versions.append(version)
        self.differences.append(None if difference is None else difference.copy())

    def repeated(self):
        """Of each step, whether it gave the same bytes again; None for one that is not known."""
        repeater, found = Repeater(), []
        for before, after, difference in zip(
            self.versions, self.versions[1:], self.differences, strict=False
        ):
            made = np.frombuffer(bytearray(before), np.uint8)
            if difference is not None:
                repeater.repeat(RecordedStep.decode(difference), made, difference)
            found.append(None if difference is None else bytes(made) == bytes(after))
        return found


def rejoin(state, *, forgets):
    """As after a recovery in which no process ended: which ranks know the modules' order."""
    if forgets:
        state.framework.forget_order()
    knew = state.framework.learned_order()
    state.load(whole(state))
    return {"knew": knew, "knows": state.framework.learned_order()}


def rehearsal(state):
    room = bytearray(state.layout.payload_bytes)
    return lambda: state.rehearse(room)


def work(request, rank):
    case, folder = request["case"], Path(request["folder"])
    engine = make_engine(case, request["seed"])
    loader = StatefulDataLoader(Numbers(), batch_size=2, shuffle=True)
    client = {"noise": None, "rank": dist.get_rank()}
    state = EngineState(engine, script=ScriptState(data=[loader], client_state=client))
    client |= request.get("client", {})  # more than `protect` was given
    trainer, found = Trainer(engine, loader, client), {"layout": state.layout.to_json()}
    found["place"] = state.framework.place
    shard = folder / f"shard-{rank}.bin"
    if request.get("load"):
        for _ in range(request.get("steps_before", 0)):
            trainer.update()
        found["extra"] = state.load(shard.read_bytes())
        found["restored"] = {"version": state.version, "client": dict(client)}
        trainer.batches = iter(())
    elif request.get("capture_at") == 0:
        shard.write_bytes(whole(state))
    if request.get("capture_early"):
        engine.backward(engine(trainer.next_batch()[1]))
        engine.step()
        state.capture_small()
    found["updates"] = []
    steps = Steps(state) if request.get("repeats") else None
    state.framework.hook(Unmoved())
    rehearse = rehearsal(state) if request.get("rehearses") else lambda: None
    rehearse()
    while state.version < request.get("until", STEPS):
        if state.version == 2 and "larger" in case:
            engine.set_train_batch_size(case["larger"])
        found["updates"].append(trainer.update())
        found["lr"] = engine.get_lr()
        if steps is not None:
            steps.note(whole(state))
        rehearse()
        if state.version == request.get("capture_at"):
            shard.write_bytes(whole(state))
        if "rejoins" in request and state.version == CAPTURE_AT and "knew" not in found:
            found |= rejoin(state, forgets=request["rejoins"] == rank)
            trainer.batches = iter(())
    if steps is not None:
        found["repeated"] = steps.repeated()
        found["difference_bytes"] = steps.recorder.room.data.nbytes
    found["client"], found["notices"] = client, state.framework.notices()
    weights = full_weights(engine)
    if request.get("weights"):
        (folder / f"end-{rank}.bin").write_bytes(whole(state))
        if rank == 0:
            save_file(weights, folder / "weights.safetensors")
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def run_rank(request, rank):
    folder = Path(request["folder"])
    ranks = str(request["ranks"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": ranks}
    # Read by Accelerate, which finds that all ranks have met already.
    os.environ |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": "0"}
    store = f"file://{folder}/store-{request['number']}"
    try:
        if request.get("plain"):
            torch_ranks.begin(request, rank)
            torch_ranks.work(request, rank)
            leave(0)
        avoid_shared_memory_collectives()
        deepspeed.init_distributed(
            "gloo",
            init_method=store,
            rank=rank,
            world_size=request["ranks"],
            verbose=False,
            auto_mpi_discovery=False,
        )
        work_of(request)(request, rank)
        leave(0)
    except Exception as error:  # noqa: BLE001 - the test reads it
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        (folder / f"error-{rank}.txt").write_text(text)
        os._exit(1)


def leave(code):
    """End this rank when all are done."""
    if dist.is_initialized():
        dist.barrier()
    os._exit(code)


def main():
    logger.setLevel("ERROR")
    get_accelerator().is_fp16_supported = lambda: True  # DeepSpeed says no on CPU; torch can
    for name in ("torch._dynamo", "torch._inductor", "deepspeed.runtime.zero.muon.original_muon"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    follow_constructors()
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        request = json.loads(line)
        if "loop" in request:
            loops.loop_of(request)  # its libraries are imported once, here
        pids = []
        for rank in range(request["ranks"]):
            pid = os.fork()
            if pid == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a request is no rank's to read
                run_rank(request, rank)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), file=answers, flush=True)


if __name__ == "__main__":
    main()
