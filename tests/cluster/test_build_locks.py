"""A worker dies while it compiles: its lock goes, and the recovered run trains to its end."""

import os
import textwrap
import time
from contextlib import suppress

import psutil
import pytest
from torch.utils import cpp_extension

from gemini_lab import Job

SCRIPT = """
    import sys, deepspeed, torch, gemini_lab
    from torch import nn
    from torch.utils.cpp_extension import load

    load(name="added", sources=[sys.argv[1]], is_python_module=False)  # as DeepSpeed's own do
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
              "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
              "zero_force_ds_cpu_optimizer": False}
    engine, *_ = deepspeed.initialize(model=model, config=config)
    protected = gemini_lab.protect(engine)
    for step in protected.steps(6):
        loss = engine(torch.ones(4, 6) * step).square().mean()
        engine.backward(loss)
        protected.log(loss=loss.item())
        engine.step()
"""
SLOW = """\
#!/bin/sh
# A compiler for large sources: it is not done before the file is gone.
while [ -e "{slow}" ]; do sleep 0.1; done
exec c++ "$@"
"""
WITHIN_S = 120.0
IS_LEFT = "baton" in cpp_extension._jit_compile.__code__.co_varnames  # not since PyTorch 2.14


@pytest.fixture
def compiled(tmp_path):
    """A source, the folder that it is compiled in, and a compiler that waits for a file to go."""
    source, slow, compiler = (tmp_path / name for name in ("added.cpp", "slow", "slow-c++"))
    source.write_text("int added(int one, int other) { return one + other; }\n")
    slow.touch()
    compiler.write_text(SLOW.format(slow=slow))
    compiler.chmod(0o755)
    yield source, slow, {"TORCH_EXTENSIONS_DIR": str(tmp_path / "ext"), "CXX": str(compiler)}
    slow.unlink(missing_ok=True)


def first(found):
    """What `found` gives, once that is something."""
    give_up_s = time.monotonic() + WITHIN_S
    while time.monotonic() < give_up_s:
        if one := found():
            return one
        time.sleep(0.1)
    raise AssertionError("it did not come to that in time")


def holder_of(lock):
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process.uids().real == os.getuid()
            if mine and str(lock) in {file.path for file in process.open_files()}:
                return process
    return None


def taken_ns(lock):
    """When it was made; 0 if there is none."""
    with suppress(FileNotFoundError):
        return lock.stat().st_ctime_ns
    return 0


@pytest.mark.long
def test_a_worker_that_is_killed_while_it_compiles_holds_nobody_up(
    pair, script, tmp_path, compiled
):
    source, slow, environment = compiled
    job = Job(script=str(script(textwrap.dedent(SCRIPT))), args=[str(source)], env=environment)
    run = pair.train(job, persistent_url=None)
    lock = first(lambda: next((tmp_path / "ext").rglob("lock"), None))
    compiling = first(lambda: holder_of(lock))
    time.sleep(3)  # its node has heard what it does: workers say so about once a second
    begun_ns = taken_ns(lock)
    compiling.kill()
    if IS_LEFT:
        first(lambda: taken_ns(lock) != begun_ns)  # it went; the next worker may have it already
    slow.unlink()
    report = run.wait(200).report()
    assert len(report.recoveries) == 1
    assert len(report.losses) == 6 * 2
    notes = [one.event.text for one in run.events("note")]
    assert (f"removed {lock}: a worker was killed before it was done" in notes) is IS_LEFT
