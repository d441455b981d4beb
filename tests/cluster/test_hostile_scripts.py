"""A script that gives, and raises, what nobody can carry: it is told so, and no node is lost."""

import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.errors import RunFailedError

SCRIPT = """
    import torch, gemini_lab
    from gemini_lab.errors import ConfigError
    from torch import nn

    class Huge(Exception):
        def __str__(self):
            return f"first {'x' * 70_000_000} last"

    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    parts = {"model": model, "optimizer": optimizer}
    calls = [lambda: gemini_lab.protect(**parts, step=True)]

    def tried():
        for call in calls:
            try:
                call()
            except ConfigError as error:
                print(f"refused: {error}", flush=True)
            else:
                raise SystemExit(f"call {calls.index(call)} was not refused")

    tried()
    protected = gemini_lab.protect(**parts)
    calls = [
        lambda: protected.steps("3"),
        lambda: protected.steps(3.5),
        lambda: protected.epochs(-1),
        lambda: protected.log(loss=None),
        lambda: protected.log(**{"x" * 70_000_000: 1.0}),
        lambda: protected.rewind(1.5),
        lambda: protected.rewind(2**62),
        lambda: protected.rewind(1, skip="no"),
        lambda: protected.pause("x" * 70_000_000),
    ]
    for step in protected.steps(20):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        if step == 2:
            tried()
            raise Huge
"""


def test_an_error_of_70_megabytes_is_the_scripts_own_and_costs_no_node(pair, script):
    job = Job(script=str(script(textwrap.dedent(SCRIPT))))
    run = pair.train(job, max_same_errors=1, persistent_url=None)
    with pytest.raises(RunFailedError, match=r"Huge: first x+ .* are left out here.* x+ last"):
        run.wait(200)
    kinds = [entry.kind for entry in run.events()]
    assert not {"node_lost", "link_cut", "node_excluded", "worker_hung"} & {*kinds}
    (failed,) = run.events("run_failed")
    assert failed.event.cause == "script"
    assert len(failed.event.reason) < 10_000
    assert (run.folder / "events.jsonl").stat().st_size < 2**20
    printed = "".join(path.read_text() for path in (run.folder / "output").iterdir())
    assert printed.count("refused: ") == 2 * 10
    assert len(printed) < 2**18
