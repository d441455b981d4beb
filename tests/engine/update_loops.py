"""Loops whose steps are made again, as peers do with gradients; verified besides, or not."""

from keeper import SlabKeeper
from rewind_loops import Listed, engine_of
from torch.utils.data import DataLoader
from verify_loops import verifying
from zero_server import Steps, whole


def repeated(job):
    made, said = engine_of(job.case), []
    job.keeper = SlabKeeper(buffers=3)
    loader = DataLoader(Listed(bad=(), without=()), batch_size=None)
    protected = job.protect(
        made.protected_one, data=loader, also=made.also, verification=verifying(job, said)
    )
    steps = Steps(job.state)
    batches = iter(loader)
    for step in protected.steps(6):
        job.note(step + 1, made.update(batches, protected.log))
        steps.note(whole(job.state))
    job.found["repeated"] = steps.repeated()
    job.found["said"] = [one.kind for one in said]


LOOPS = {"repeated": repeated}
