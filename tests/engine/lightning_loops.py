"""Lightning's loop, as its users have it, over two micro-batches a step."""

import copy
from functools import partial

import torch
import torch.distributed as dist
from library_loops import Noisy
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    ThroughputMonitor,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from gemini_lab.adapters.lightning import LightningHooks


class Lit(LightningModule):
    """Draws, schedules by epoch, logs an epoch's mean, and has a metric of its own."""

    def __init__(self, kind=torch.optim.AdamW):
        super().__init__()
        self.kind = kind
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
        optimizer = self.kind(self.parameters(), lr=0.01)
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


class Averaging(Callback):
    """Averages the weights, and says nothing of it; at a place of its hooks it is made."""

    def __init__(self, made_in):
        self.made_in, self.average, self.shadow = made_in, None, {}

    def setup(self, _trainer, module, **_):
        self.make("setup", module)

    def on_train_start(self, _, module):
        self.make("on_train_start", module)

    def make(self, where, module):
        if where == self.made_in:
            self.average = copy.deepcopy(module.net)
            self.shadow = {name: one.detach().clone() for name, one in module.named_parameters()}

    @torch.no_grad()
    def on_train_batch_end(self, _trainer, module, *_):
        for mean, now in zip(self.average.parameters(), module.net.parameters(), strict=True):
            mean.lerp_(now, 0.1)
        for name, now in module.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * now


class Thawing(Callback):
    """What stands in for BackboneFinetuning: a layer is frozen until the second epoch."""

    def on_train_start(self, _, module):
        module.net[0].requires_grad_(False)

    def on_train_epoch_start(self, trainer, module):
        module.net[0].requires_grad_(trainer.current_epoch > 0)


class TwoPasses(torch.optim.AdamW):
    """Sharpness-aware minimization, which computes twice."""

    @torch.no_grad()
    def step(self, closure=None):
        if closure is None:
            return super().step()
        with torch.enable_grad():
            loss = closure()
        weights = [one for group in self.param_groups for one in group["params"]]
        before = [one.clone() for one in weights]
        for one in weights:
            one.add_(one.grad, alpha=0.05)
        with torch.enable_grad():
            closure()
        for one, values in zip(weights, before, strict=True):
            one.copy_(values)
        super().step()
        return loss


class EveryEpoch(WeightAveraging):
    """As the library's own page has it."""

    def should_update(self, step_idx=None, epoch_idx=None):  # noqa: ARG002
        return epoch_idx is not None


def quiet():
    """Those that look on, and one of the script's own."""
    return [
        DeviceStatsMonitor(),
        EarlyStopping("held out", patience=50),
        LambdaCallback(on_train_batch_end=lambda *_: torch.rand(())),
        LearningRateMonitor("step", log_momentum=True),
        ModelCheckpoint(monitor="held out", save_top_k=2, save_last=True),
        ModelSummary(),
        ThroughputMonitor(batch_size_fn=len),
        Timer("01:00:00:00"),
        TQDMProgressBar(),
    ]


CALLBACKS = {
    "accumulation": lambda: [GradientAccumulationScheduler({0: 1, 1: 2, 2: 3})],
    "ema": lambda: [EMAWeightAveraging(decay=0.9)],
    "averages of epochs": lambda: [EveryEpoch()],
    "average made in setup": lambda: [Averaging("setup")],
    "average made in on_train_start": lambda: [Averaging("on_train_start")],
    "thawing": lambda: [Thawing()],
    "two passes": list,
    "quiet": quiet,
}


def with_callbacks(job):
    """Epochs of 7 batches, under DDP, with callbacks of a kind; or as without gemini_lab."""
    case, _, how = job.case.partition(", ")
    callbacks = CALLBACKS[case]()
    strategy = "ddp_find_unused_parameters_true" if case == "thawing" else "ddp"
    made = Trainer(
        accelerator="cpu",
        devices=dist.get_world_size(),
        strategy=strategy if dist.get_world_size() > 1 else "auto",
        max_epochs=3,
        val_check_interval=4,
        callbacks=[LitNoting(job), *callbacks],
        logger=CSVLogger(job.folder) if case == "quiet" else False,
        enable_checkpointing=case == "quiet",
        enable_progress_bar=case == "quiet",
        enable_model_summary=case == "quiet",
        default_root_dir=job.folder,
        log_every_n_steps=2,
    )
    if how == "plain":
        job.protection = Alone()
    else:
        LightningHooks(made, start=job.protect, remark=job.remarks.append)
    model = Lit(TwoPasses if case == "two passes" else torch.optim.AdamW)
    made.fit(
        model,
        DataLoader(Noisy(28), batch_size=2, shuffle=True),
        DataLoader(Noisy(8), batch_size=2),
    )
    kept = [*model.parameters(), *model.buffers()]
    for one in callbacks:
        if isinstance(one, Averaging):
            kept += [*one.average.parameters(), *one.shadow.values()]
        if isinstance(one, ModelCheckpoint):
            kept += sorted(one.best_k_models.values())
            job.found["best"] = len(one.best_k_models)
    job.found["end"] = [float(one.double().sum()).hex() for one in kept]


class Alone:
    """As without gemini_lab."""

    def finish(self):
        pass


LOOPS = {
    **{f"lightning {how}": partial(lightning, how=how) for how in ("DDP", "FSDP2")},
    "lightning callbacks": with_callbacks,
}
