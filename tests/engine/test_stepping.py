"""The hook in an engine's step: around updates, and not around other micro-batches."""

import torch
from torch import nn

from gemini_lab.engine.iterations import IterationLog
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.pulse import Pulse
from gemini_lab.engine.stepping import hook_step
from gemini_lab.shard.lineage import Lineage


class Engine:
    """An engine that updates at every second micro-batch; says in `told` what it does."""

    global_rank = global_steps = 0
    device = torch.device("cpu")

    def __init__(self, told: list) -> None:
        self.module = nn.Linear(1, 1)
        self.told = told
        self.micro_steps = 0

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.micro_steps % 2 == 1

    def step(self, lr_kwargs: object = None) -> str:
        if self.is_gradient_accumulation_boundary():
            self.global_steps += 1
            self.told.append(f"update {self.global_steps}")
        self.micro_steps += 1
        return f"stepped with {lr_kwargs}"


class Hook:
    """Takes down when it is called."""

    def __init__(self, told: list) -> None:
        self.told = told

    def begin_forward(self) -> None:
        self.told.append("forward")

    def before_update(self) -> float:
        self.told.append("before")
        return 0.5

    def after_update(self, waited_s: float) -> None:
        self.told.append(f"after {waited_s}")


def micro_batch(engine: Engine) -> str:
    engine.module(torch.zeros(1))
    return engine.step(lr_kwargs="arguments")


def test_an_update_lies_between_its_two_calls_and_other_micro_batches_make_none() -> None:
    told: list[str] = []
    engine = Engine(told)
    hook_step(engine, Hook(told))
    assert micro_batch(engine) == "stepped with arguments"
    assert told == ["forward"]
    micro_batch(engine)
    assert told[1:] == ["forward", "before", "update 1", "after 0.5"]


def test_unhooked_the_engine_steps_alone() -> None:
    told: list[str] = []
    engine = Engine(told)
    unhook = hook_step(engine, Hook(told))
    unhook()
    micro_batch(engine)
    micro_batch(engine)
    assert told == ["update 1"]


class State:
    """Stands for an engine's state: it is captured as text."""

    def __init__(self, engine: Engine, told: list) -> None:
        self.engine, self.told = engine, told
        self.layout = Layout()

    @property
    def version(self) -> int:
        return self.engine.global_steps

    def capture_small(self, extra: dict) -> bytes:
        self.told.append(f"capture {extra['last'].get('iteration')}")
        return b"small"

    def tensors(self) -> list:
        return []


class Layout:
    """Room for the small state alone."""

    tensors = ()
    small_offset_bytes = 0
    payload_bytes = 5


class Traffic:
    """Stands for checkpoint traffic: sends all versions but odd ones."""

    def __init__(self, told: list) -> None:
        self.told = told
        self.newest = None

    def wait(self) -> float:
        self.told.append("wait")
        return 0.0

    def end_iteration(self, version: int) -> bool:
        return version % 2 == 0

    def send(self, version) -> None:
        assert version.lineage == Lineage(run=7, epoch=2)
        self.newest = version.version
        self.told.append(f"send {version.version}")

    def is_sent(self, version: int) -> bool:
        return self.newest == version

    def close(self) -> None:
        self.told.append("close")


def protect(engine: Engine, told: list) -> LiveProtection:
    log = IterationLog(lambda _: None)
    pulse = Pulse(lambda _: None, rank=0, epoch=2)
    lineage = Lineage(run=7, epoch=2)
    return LiveProtection(State(engine, told), Traffic(told), log, pulse, lineage=lineage)


def test_a_version_leaves_after_its_update_and_is_whole_before_the_next() -> None:
    told: list[str] = []
    engine = Engine(told)
    protection = protect(engine, told)
    hook_step(engine, protection)
    for _ in range(4):
        micro_batch(engine)
    assert told == ["wait", "update 1", "wait", "update 2", "capture 2", "send 2"]


def test_at_the_end_the_last_version_is_sent_if_it_was_not() -> None:
    for updates, expected in (
        (2, ["wait", "close"]),
        (3, ["wait", "capture 3", "send 3", "close"]),
    ):
        told: list[str] = []
        engine = Engine(told)
        protection = protect(engine, told)
        hook_step(engine, protection)
        for _ in range(2 * updates):
            micro_batch(engine)
        told.clear()
        protection.finish()
        assert told == expected
