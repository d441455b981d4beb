"""Lightning's loop, as its users have it, over two micro-batches a step."""

from functools import partial

import torch
from library_loops import Noisy
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from gemini_lab.adapters.lightning import LightningHooks


class Lit(LightningModule):
    """Draws, schedules by epoch, logs an epoch's mean, and has a metric of its own."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1)
        )
        self.seen = MeanMetric()

    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            for part in (self.net[0], self.net[4], self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, _):
        loss = self.net(batch).square().mean()
        self.seen.update(loss.detach())
        self.log("mean", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("held out", self.net(batch).square().mean() + torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        slower = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": slower}}


class LitNoting(Callback):
    """Draws random numbers after each batch, and keeps a count."""

    def __init__(self, job):
        self.job, self.drawn = job, 0

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]

    def on_train_batch_end(self, trainer, module, outputs, *_):
        self.drawn += 1
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        told = [outputs["loss"], trainer.current_epoch, self.drawn, rate, torch.rand(())]
        if not trainer.fit_loop.epoch_loop._should_accumulate():
            self.job.note(trainer.global_step, *told, module.seen.compute())

    def on_train_epoch_end(self, trainer, _):
        logged = [trainer.callback_metrics[name] for name in ("mean", "held out")]
        self.job.note(100 + trainer.global_step, *logged)


def lightning(job, how):
    """Epochs of 7 batches, so of 4 steps; evaluates twice in each."""
    strategy = {
        "DDP": "ddp",
        "FSDP2": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    }[how]
    made = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=3,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0 if how == "DDP" else None,
        val_check_interval=4,
        num_sanity_val_steps=1,
        callbacks=[LitNoting(job), EarlyStopping("held out", patience=50)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job.folder,
    )
    LightningHooks(made, start=job.protect, remark=job.remarks.append)
    made.fit(
        Lit(),
        DataLoader(Noisy(28), batch_size=2, shuffle=True),
        DataLoader(Noisy(8), batch_size=2),
    )


LOOPS = {f"lightning {how}": partial(lightning, how=how) for how in ("DDP", "FSDP2")}
