"""What `preload` saves: recoveries of a Trainer's job.

Labs whose next parents have preloaded the imports, and labs that leave them to every start, take
turns. In each, one worker and then one node is killed.
"""

import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.injector.failures import Failure, NodeLoss, WorkerCrash
from gemini_lab.job import Job
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab_bench.benches.waiting import LIMIT_S, recovery_s, wait_for
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row

FAILURES: Final[dict[str, Failure]] = {
    "worker crash": WorkerCrash("rank-1"),
    "node loss": NodeLoss("rank-1"),
}
PRELOAD: Final = "gemini_lab.adapters.transformers"
HOW: Final = {"preloaded": PRELOAD, "at each start": None}
BETWEEN: Final = 20  # iterations
SETTLE_S: Final = 10.0
"""After rank 0's node has said that it has imported, for the other nodes to come so far."""
SCRIPT: Final = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from gemini_lab.adapters.transformers import protect_trainer

ids = [torch.arange(16) * number % 50 for number in range(64)]
config = GPT2Config(
    vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    sys.argv[1], use_cpu=True, max_steps=10**6, per_device_train_batch_size=1, report_to=[],
    save_strategy="no", logging_steps=10**6, disable_tqdm=True,
)
data = [{"input_ids": one, "labels": one} for one in ids]
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
protect_trainer(trainer)
trainer.train()
"""


def bench(repeats: int) -> list[Row]:
    """Measure each failure `repeats` times, with imports preloaded and without, in turn.

    Raises:
        ConfigError: transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ConfigError(
            "this bench trains with transformers' Trainer, which is not installed; "
            "`pip install 'gemini-lab[transformers]'`"
        )
    measured: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="gemini_lab-bench-") as folder:
        for number in range(repeats):
            for how, preload in HOW.items():
                took = one_round(Path(folder) / f"{number}-{how}", preload=preload)
                say(f"imports {how}, {number + 1} of {repeats}")
                for failure, duration_s in took.items():
                    measured.setdefault((failure, how), []).append(duration_s)
    return [
        Row(name=f"{failure}, imports {how}", values=tuple(measured[failure, how]))
        for failure in FAILURES
        for how in HOW
    ]


def one_round(folder: Path, *, preload: str | None) -> dict[str, float]:
    """Seconds without training for each kind of failure, on one lab of two nodes."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    took: dict[str, float] = {}
    with Lab(2, 1, folder=folder / "runs") as lab:
        lab.wait_until_ready()
        job = Job(script=str(script), args=[str(folder / "out")])
        run = lab.train(job, persistent_url=None, preload=preload)
        wait_for(run, iteration=BETWEEN)
        if preload:
            _wait_until_preloaded(run)
        for number, (name, failure) in enumerate(FAILURES.items(), start=1):
            lab.wait_until_ready()
            wait_for(run, iteration=run.iteration + BETWEEN)
            run.inject(failure)
            took[name] = recovery_s(run, number)
        run.stop()
    return took


def _wait_until_preloaded(run: Run) -> None:
    """Until the next parents have imported what the script does.

    Raises:
        GeminiError: They do not.
    """
    give_up_s = time.monotonic() + LIMIT_S
    while not any("modules of preload" in note for note in run.report().notes):
        if time.monotonic() > give_up_s or run.is_over:
            raise GeminiError(f"{run} has not preloaded: {'; '.join(run.report().notes)}")
        time.sleep(0.5)
    time.sleep(SETTLE_S)
