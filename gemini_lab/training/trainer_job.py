"""Train a tiny GPT-2 with transformers' Trainer: a job that imports for longer than it computes.

gemini-lab run --nodes 4 --standbys 1 -m gemini_lab.training.trainer_job
"""

import argparse
import tempfile
from collections.abc import Sequence

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gemini_lab.adapters.transformers import protect_trainer

LENGTH = 16
WORDS = 50
SAMPLES = 256


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with DDP until so many steps are done."""
    parser = argparse.ArgumentParser(prog="trainer_job", description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=24, help="optimizer steps in all")
    options = parser.parse_args(arguments)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = [torch.arange(LENGTH) * (number + 1) % WORDS for number in range(SAMPLES)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                folder,
                use_cpu=True,
                max_steps=options.iterations,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=[{"input_ids": one, "labels": one} for one in ids],
        )
        protect_trainer(trainer)
        trainer.train()


if __name__ == "__main__":
    main()
