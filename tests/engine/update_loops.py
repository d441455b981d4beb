"""Loops in plain PyTorch whose steps are made again, as peers do with gradients."""

from rewind_loops import Listed, engine_of
from torch.utils.data import DataLoader
from zero_server import Steps, whole


def repeated(job):
    made = engine_of(job.case)
    loader = DataLoader(Listed(bad=(), without=()), batch_size=None)
    protected = job.protect(made.protected_one, data=loader, also=made.also)
    steps = Steps(job.state)
    batches = iter(loader)
    for step in protected.steps(6):
        job.note(step + 1, made.update(batches, protected.log))
        steps.note(whole(job.state))
    job.found["repeated"] = steps.repeated()
    job.found["share"] = steps.recorder.room.data.nbytes / job.state.layout.payload_bytes


LOOPS = {"repeated": repeated}
