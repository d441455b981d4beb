"""Loops whose iterations are computed again elsewhere, on machines that may compute wrong."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from keeper import SlabKeeper
from rewind_loops import Listed, engine_of
from torch.utils.data import DataLoader

from gemini_lab.engine.verify.flaws import Flaws
from gemini_lab.engine.verify.verification import Verification, VerifiedVersion, Verifier
from gemini_lab.errors import GeminiError
from gemini_lab.log import events
from gemini_lab.recovery.messages import Flawed
from gemini_lab.seats import Seats
from gemini_lab.shard.lineage import NO_LINEAGE


class Wire:
    """Ranks talk over training's own group."""

    def isend(self, tensor, to):
        return dist.isend(tensor, to)

    def irecv(self, tensor, source):
        return dist.irecv(tensor, source)

    def all_gather(self, values):
        ours = torch.tensor(values, dtype=torch.int64)
        theirs = [torch.zeros_like(ours) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, ours)
        return [one.tolist() for one in theirs]


def draws(model):
    """Adds noise of a generator that nobody knows of."""
    noise = torch.Generator()
    model[0].register_forward_hook(lambda *args: args[2] + torch.rand(1, generator=noise))


def differs(model):
    """Has a number of its own on every rank."""
    own = dist.get_rank()
    model[0].register_forward_hook(lambda *args: args[2] * (1 + own))


def apart(model):
    """Is not called as a whole: its parts are."""
    wrapped = model.forward
    model.__class__ = type("Apart", (type(model),), {"__call__": lambda _, *args: wrapped(*args)})


MODELS = {"draws": draws, "differs": differs, "apart": apart}


class StandsStillError(GeminiError):
    """Training waits to be ended."""


def _stand_still():
    raise StandsStillError


def verifying(job, said, strike=lambda: None):
    """Makes what has a job's iterations verified, as its case says.

    `strike` is called while another rank's work is computed again.
    """
    case = job.case
    rank, nodes = dist.get_rank(), dist.get_world_size()

    def apart():
        strike()
        return nullcontext()

    def verification(state):
        if "every" not in case:
            return None
        verifier = Verifier(
            state.framework,
            Wire(),
            rank=rank,
            seats=Seats(nodes=nodes, members=tuple(f"node-{n}" for n in range(nodes))),
            every=case["every"],
            is_first=case.get("is_first", True),
            apart=apart,
        )
        return Verification(
            verifier,
            job.keeper.slab,
            rank=rank,
            on_wrong=case.get("on_wrong", "warn"),
            newest=VerifiedVersion(version=0, lineage=NO_LINEAGE),
            emit=said.append,
            stand_still=_stand_still,
        )

    return verification


def verified(job):
    """Trains with every iteration verified, or as its case says; flaws come as told."""
    case, rank = job.case, dist.get_rank()
    made = engine_of(case)
    if "model" in case:
        MODELS[case["model"]](made.model.module)
    job.keeper = SlabKeeper(buffers=3)
    loader = DataLoader(Listed(bad=(), without=()), batch_size=None)
    said, orders, installs, at = [], [], [], 0

    def strike():
        flaw = Flawed(where=case["where"], is_lasting=case["lasts"], seed=case.get("seed", 0))
        orders.append(flaw)

    def strike_in_replay():
        if case.get("in_replay") and (case["flawed"], case["at"]) == (rank, at) and not orders:
            strike()
            installs[0]()

    def flaws(state):
        installs.append(Flaws(state.framework, orders).install)
        return installs[0]

    protected = job.protect(
        made.protected_one,
        data=loader,
        also=made.also,
        verification=verifying(job, said, strike_in_replay),
        flaws=flaws,
    )
    batches = iter(loader)
    try:
        for step in protected.steps(case.get("steps", 6)):
            at = step + 1
            if case.get("flawed") == rank and at == case["at"] and not case.get("in_replay"):
                strike()
            loss = made.update(batches, protected.log)
            job.note(step + 1, loss, made.rate(), torch.rand(()))
    except StandsStillError:
        job.found["stood_still"] = True
    job.found["verified"] = [one.iteration for one in said if isinstance(one, events.SumsVerified)]
    job.found["wrong"] = [
        [one.iteration, one.work, [*one.nodes], [*one.suspects], one.version, one.replays]
        for one in said
        if isinstance(one, events.WrongSums)
    ]
    job.found["kept"] = sorted(one.version for one in job.keeper.slab.copies())


LOOPS = {"verified": verified}
