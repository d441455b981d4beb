"""The hook in an engine's step: around updates, and not around other micro-batches."""

import threading
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
import torch
from torch import nn

from gemini_lab.engine.frameworks.stepping import hook_step
from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.engine.holding_points import HoldingPoints
from gemini_lab.engine.iteration_log import IterationLog
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.script_loops import MOST_LEFT_OUT, Pass
from gemini_lab.engine.unsaved_state import ASKS_NOTHING, IS_AMBIGUOUS, STANDS_STILL
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import decode, encode
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

    def managed_gradient_accumulation(self) -> bool:
        return True

    def step(self, lr_kwargs: object = None) -> str:
        if self.is_gradient_accumulation_boundary():
            self.global_steps += 1
            self.told.append(f"update {self.global_steps}")
        self.micro_steps += 1
        return f"stepped with {lr_kwargs}"


class Hook:
    """Takes down when it is called."""

    counts = True
    remarks = ()

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
    assert told == ["forward"] * 2
    micro_batch(engine)
    assert told[2:] == ["forward", "forward", "before", "update 1", "after 0.5"]


class BoundariesAlone(Engine):
    """An engine whose step is called at boundaries alone, which it counts or is told of."""

    def __init__(self, told: list, *, is_managed: bool) -> None:
        super().__init__(told)
        self.is_managed = is_managed

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.is_managed

    def managed_gradient_accumulation(self) -> bool:
        return self.is_managed

    def step(self, lr_kwargs: object = None) -> str:
        self.told.append("update")
        return f"stepped with {lr_kwargs}"


@pytest.mark.parametrize("is_managed", [True, False], ids=["told", "left to the caller"])
def test_each_step_is_an_update_where_it_is_called_at_boundaries_alone(*, is_managed: bool) -> None:
    told: list[str] = []
    engine = BoundariesAlone(told, is_managed=is_managed)
    hook_step(engine, Hook(told))
    for _ in range(2):
        engine.module(torch.zeros(1))
        engine.module(torch.zeros(1))
        engine.step()
    assert told == (["forward"] * 3 + ["before", "update", "after 0.5"]) * 2


def test_evaluations_are_no_forward_passes_of_training() -> None:
    told: list[str] = []
    engine = Engine(told)
    hook_step(engine, Hook(told))
    with torch.no_grad():
        engine.module(torch.zeros(1))
    engine.module.eval()
    engine.module(torch.zeros(1))
    assert told == []


def test_training_in_the_mode_of_evaluation_is_training() -> None:
    told: list[str] = []
    engine = Engine(told)
    hook_step(engine, Hook(told))
    engine.module.eval()
    micro_batch(engine)
    told.clear()
    engine.module(torch.zeros(1))
    assert told == ["forward"]


def test_after_an_evaluation_before_the_version_the_first_pass_is_training() -> None:
    """The version has the mode of the evaluation, and the hook comes after it was put back."""
    told: list[str] = []
    engine = Engine(told)
    engine.module.eval()
    hook_step(engine, Hook(told))
    engine.module.train()
    engine.module(torch.zeros(1))
    assert told == ["forward"]


def test_unhooked_the_engine_steps_alone() -> None:
    told: list[str] = []
    engine = Engine(told)
    unhook = hook_step(engine, Hook(told))
    unhook()
    micro_batch(engine)
    micro_batch(engine)
    assert told == ["update 1"]


class State:
    """Stands for an engine's state: says what is captured, and what is drawn by then."""

    def __init__(self, engine: Engine, told: list) -> None:
        self.engine, self.told = engine, told
        self.layout = Layout()
        self.script = Script()

    @property
    def version(self) -> int:
        return self.engine.global_steps

    def capture_drawn(self) -> bytes:
        return encode(self.script.drawn())

    def capture_small(self, extra: dict, *, drawn: bytes, at_top: bool) -> bytes:
        iteration, where = extra["last"].get("iteration"), " at the top" if at_top else ""
        self.told.append(f"seal {iteration} drawn {decode(drawn)['random']}{where}")
        return b"small"

    is_to_be_put_back = is_data_even = True
    is_pipelined = False
    notices = staticmethod(tuple)

    @property
    def framework(self) -> "State":
        return self

    def restore_again(self) -> None:
        self.told.append("top")

    def pieces(self) -> list:
        return []


class Script:
    """Stands for what a script handed over: a number that is drawn, and a position in the data."""

    def __init__(self) -> None:
        self.number = self.position = 0
        self.loader = Loader()
        self.watches = self.sources = [self.loader]
        self.bystanders = self.data_changes = self.late_schedules = tuple

    def drawn(self) -> dict:
        return {"data": [self.position], **self.others()}

    def others(self) -> dict:
        return {"client": None, "also": {}, "own": [], "random": self.number}


class Loader:
    """Stands for a loader's watch."""

    on_fetch = on_batch = staticmethod(lambda: None)
    newest = None
    passes = 0
    is_where_put = True
    is_read_apart = is_ahead = False
    lead = 0

    def begin_pass(self) -> None:
        pass

    end_epoch = note_forward = begin_pass

    def give(self) -> None:
        self.on_fetch()
        self.on_batch()

    def end(self) -> None:
        self.on_fetch()


class Layout:
    """Room for the small state alone."""

    tensors = ()
    small_offset_bytes = 0
    payload_bytes = 5


class Sender:
    """Stands for a replicator: sends all versions but those left out."""

    def __init__(self, told: list, leaves_out: frozenset[int]) -> None:
        self.told, self.leaves_out = told, leaves_out
        self.newest = None
        self.is_hold_agreed = self.is_withheld = False
        self.agreed_back = (0, 0)

    def wait(self) -> float:
        self.told.append("wait")
        return 0.0

    def end_iteration(self, version: int) -> bool:
        return version not in self.leaves_out

    def send(self, version) -> None:
        assert version.lineage == Lineage(run=7, epoch=2)
        self.newest, self.is_withheld = version.version, version.is_withheld
        self.told.append(f"send {version.version}{' withheld' * version.is_withheld}")

    def release(self) -> None:
        self.is_withheld = False
        self.told.append("release")

    def is_sent(self, version: int) -> bool:
        return self.newest == version

    def end_training(self) -> None:
        self.wait()

    def go_back(self, version: int) -> None:
        self.told.append(f"went back to {version}")

    def finish(self) -> None:
        self.told.append("finish")


class HoldingError(Exception):
    """Training stands still for good."""


class Training:
    """A protected engine, what it told, and what the script's author is told."""

    def __init__(
        self,
        *,
        leaves_out: frozenset[int] = frozenset(),
        done: int = 0,
        place: tuple[Pass, ...] = (),
    ) -> None:
        self.told: list[str] = []
        self.remarks: list[str] = []
        self.engine = Engine(self.told)
        self.engine.global_steps = done
        self.state = State(self.engine, self.told)
        self.script = self.state.script
        self.replicator = Sender(self.told, leaves_out)
        self.protection = LiveProtection(
            self.state,
            self.replicator,
            IterationLog(lambda _: None),
            Heartbeat(lambda _: None, rank=0, epoch=2),
            lineage=Lineage(run=7, epoch=2),
            remark=self.remarks.append,
            hold=self.hold,
            place=place,
        )
        hook_step(self.engine, self.protection)

    def update(self, *, reads: bool = True) -> None:
        self.script.position += reads
        micro_batch(self.engine)
        micro_batch(self.engine)

    def hold(self, version: int) -> None:
        self.told.append(f"hold {version}")
        raise HoldingError

    def take(self) -> list[str]:
        told = [*self.told]
        self.told.clear()
        return told


def test_an_update_that_a_cuda_graph_captures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replays would write the weights unseen, while a version of them is copied."""
    training = Training()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    next(training.protection.steps(1))
    with pytest.raises(UnsupportedError, match=r"captured in a CUDA graph.*outside of the graph"):
        training.update()


def test_training_holds_at_the_top_of_its_loop_until_its_user_lets_it_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = HoldingPoints.at([2, 4]).below(tmp_path)
    for name, value in points.environment.items():
        monkeypatch.setenv(name, value)
    training, steps = Training(), SimpleQueue[int]()

    def train() -> None:
        for step in training.protection.steps(6):
            training.update()
            steps.put(step + 1)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    for held in (2, 4):
        assert [steps.get(timeout=60) for _ in range(2)] == [held - 1, held]
        with pytest.raises(Empty):
            steps.get(timeout=0.3)
        assert training.take()[-1].startswith(f"send {held}"), "what is held can be restored"
        points.let_pass(held)
    thread.join(60)
    assert not thread.is_alive()


def test_a_version_is_sealed_when_the_next_iteration_computes_and_whole_before_its_update() -> None:
    training = Training(leaves_out=frozenset({1}))
    for _ in range(3):
        training.update()
    assert training.take() == [
        *("wait", "update 1", "wait", "update 2"),
        *("seal 2 drawn 0", "send 2", "wait", "update 3"),
    ]


def test_what_was_drawn_for_the_next_iteration_is_in_no_version_of_the_one_before() -> None:
    training = Training()
    training.update()
    training.script.number = 7  # as for the next batch, at the loop's top
    training.update()
    assert "seal 1 drawn 0" in training.take()
    assert training.remarks == [IS_AMBIGUOUS]


def test_what_is_drawn_to_fetch_a_batch_is_plainly_of_the_next_iteration() -> None:
    training = Training()
    for _ in range(training.protection.step, 4):
        training.script.loader.on_fetch()
        training.script.number += 1
        training.update()
    assert training.remarks == []


def test_at_the_top_of_the_loop_what_was_drawn_before_is_in_the_version() -> None:
    training = Training()
    for step in training.protection.steps(2):
        training.script.position += 1
        training.script.number = 10 * step  # as for the next batch
        training.update()
        training.script.loader.on_fetch()
        training.script.number += 1  # as by an evaluation over a loader
    assert training.take() == [
        *("top", "wait", "update 1", "top", "seal 1 drawn 1 at the top", "send 1"),
        *("wait", "update 2", "top", "seal 2 drawn 11 at the top", "send 2 withheld"),
        "wait",  # the script may write, or end its communication, after its loop
    ]
    training.protection.finish()
    assert training.take() == ["release", "wait", "finish"]
    assert training.remarks == []


def test_the_loop_ends_when_so_many_steps_are_done_however_many_passes_that_takes() -> None:
    training = Training()
    seen = []
    for step in training.protection.steps(2):
        seen.append(step)
        micro_batch(training.engine)
    assert seen == [0, 0, 1, 1]


def test_after_a_checkpoint_of_deepspeeds_own_the_loop_goes_on_at_its_step() -> None:
    training = Training(done=30)
    assert training.protection.step == 30
    seen = []
    for step in training.protection.steps(32):
        seen.append(step)
        training.update()
    assert seen == [30, 31]
    assert training.engine.global_steps == 32


def test_two_updates_in_one_pass_make_one_version() -> None:
    training = Training()
    for _ in training.protection.steps(2):
        training.update()
        training.update()
    assert [line for line in training.take() if "se" in line] == [
        "seal 2 drawn 0 at the top",
        "send 2 withheld",
    ]


def test_a_loop_that_is_broken_off_leaves_its_last_version_to_the_end() -> None:
    training = Training()
    for _ in training.protection.steps(9):
        training.update()
        training.script.number = 5
        break
    training.script.number = 6  # what follows is of no iteration
    training.protection.finish()
    assert training.take()[3:] == ["wait", "seal 1 drawn 5", "send 1", "finish"]


def test_after_the_loop_versions_are_sealed_by_forward_passes_again() -> None:
    training = Training()
    for _ in training.protection.steps(1):
        training.update()
    training.update()
    training.take()
    training.update()
    assert training.take()[0].startswith("seal 2")


def test_an_epochs_last_version_is_sealed_where_the_next_one_reads_or_the_loop_ends() -> None:
    training = Training()
    for _ in training.protection.epochs(2):
        for _ in range(2):
            training.script.loader.give()
            training.update()
        training.script.loader.end()
        training.script.number += 1  # as by an evaluation after the epoch
        training.take()
    told = [line for line in training.take() if line.startswith("se")]
    assert told == ["seal 4 drawn 2 at the top", "send 4 withheld"]
    training = Training()
    epochs = training.protection.epochs(2)
    next(epochs)
    training.script.loader.give()
    training.update()
    training.script.loader.end()
    training.script.number += 1
    assert not any(line.startswith("send") for line in training.take())
    next(epochs)
    training.script.loader.give()
    assert training.take()[-2:] == ["seal 1 drawn 1 at the top", "send 1"]


def test_an_epoch_goes_on_and_what_is_done_before_its_loader_is_read_does_not_count() -> None:
    within = Pass(kind="epochs", total=3, order=0, twins=0, number=1)
    training = Training(done=3, place=(within,))
    seen = []
    for epoch in training.protection.epochs(3):
        seen.append(epoch)
        if epoch == 1:
            training.update()  # left out, as it was before the version was made
            assert "top" not in training.take()
            training.engine.global_steps = 3  # as it is put back
        training.script.loader.give()
        training.take()
        training.update()
    assert seen == [1, 2]
    assert training.take()[-2:] == ["send 5 withheld", "wait"]


def phase(total: int, *, order: int, twins: int = 0) -> Pass:
    return Pass(kind="steps", total=total, order=order, twins=twins, number=0)


def test_a_loop_that_was_over_gives_no_pass_and_the_next_one_puts_the_version_back() -> None:
    training = Training(done=3, place=(phase(9, order=1),))
    assert list(training.protection.steps(4)) == []  # it was broken off
    training.update()  # as a search for a rate between two phases
    training.engine.global_steps = 3
    assert "top" not in training.take()
    assert "version 3 was made after protected.steps(4) had ended" in training.remarks[0]
    assert next(training.protection.steps(9)) == 3
    assert training.take() == ["top", "went back to 3", "top"]


def test_a_loop_that_gives_no_pass_any_more_is_said() -> None:
    training = Training(done=9, place=(phase(9, order=0),))
    assert list(training.protection.steps(9)) == []
    assert "version 9 was made after protected.steps(9) had ended" in training.remarks[0]
    training = Training(done=9, place=(phase(9, order=0),))
    assert next(training.protection.steps(12)) == 9
    assert training.remarks == []


def test_a_loop_is_found_again_where_the_script_leaves_out_those_that_are_over() -> None:
    training = Training(done=3, place=(phase(9, order=1),))
    assert next(training.protection.steps(9)) == 3


def test_a_loop_is_found_again_where_a_resumed_run_is_to_go_on_further() -> None:
    training = Training(done=9, place=(phase(9, order=1),))
    assert list(training.protection.steps(4)) == []
    assert next(training.protection.steps(12)) == 9


def test_of_loops_alike_the_one_that_made_the_version_is_found_again() -> None:
    training = Training(done=3, place=(phase(9, order=2, twins=1),))
    assert list(training.protection.steps(9)) == []
    assert list(training.protection.steps(4)) == []
    assert next(training.protection.steps(9)) == 3


def test_a_loop_around_the_one_that_made_the_version_gives_its_pass_again() -> None:
    outer = Pass(kind="epochs", total=3, order=0, twins=0, number=1)
    training = Training(done=5, place=(outer, phase(8, order=0)))
    epochs = training.protection.epochs(3)
    assert next(epochs) == 1
    assert next(training.protection.steps(8)) == 5


def test_a_loop_in_a_loop_of_which_it_is_told_goes_on_in_the_same_pass() -> None:
    outer = Pass(kind="steps", total=20, order=0, twins=0, number=4)
    training = Training(done=6, place=(outer, phase(8, order=0)))
    seen = []
    for step in training.protection.steps(12):
        for inner in training.protection.steps(step + 4):
            seen.append((step, inner))
            training.update()
    assert seen == [(4, 6), (4, 7), *((8, inner) for inner in range(8, 12))]


def test_a_script_that_ends_without_the_loop_that_made_the_version_is_told() -> None:
    training = Training(done=3, place=(phase(9, order=1),))
    assert list(training.protection.steps(4)) == []
    with pytest.raises(ConfigError, match=r"version 3 was made in protected.steps\(9\)"):
        training.protection.finish()
    training = Training(done=9, place=(phase(9, order=1),))
    training.protection.finish()  # there is nothing left to do in it


def test_a_loop_after_the_scripts_end_is_refused_and_so_is_an_update() -> None:
    """Nothing would send its versions any more: the next wait for one would have no end."""
    training = Training()
    for _ in training.protection.steps(1):
        training.update()
    training.protection.finish()
    with pytest.raises(ConfigError, match="a loop that has not told of its top, and it is at its"):
        next(training.protection.steps(2))
    with pytest.raises(ConfigError, match="begins after the script's end"):
        training.update()
    assert training.engine.global_steps == 1


def test_an_iterator_of_a_loop_that_is_closed_late_does_not_bring_its_state_back() -> None:
    """Else the next forward pass would seal nothing, and no version would leave."""
    training = Training()
    outer = training.protection.steps(9)
    next(outer)
    inner = training.protection.steps(9)
    next(inner)
    outer.close()
    inner.close()
    training.update()
    training.take()
    training.update()
    assert "send 1" in training.take()


def test_a_script_that_trains_on_without_that_loop_is_told_too() -> None:
    training = Training(done=3, place=(phase(9, order=0),))
    for _ in range(MOST_LEFT_OUT - 1):
        training.update()
    with pytest.raises(ConfigError, match="1000 updates, which do not count"):
        training.update()
    assert "they do not count" in training.remarks[0]
    assert not any(line.startswith("send") for line in training.take())


def test_a_pass_without_the_loop_inside_that_made_the_version_is_told() -> None:
    outer = Pass(kind="epochs", total=3, order=0, twins=0, number=1)
    training = Training(done=5, place=(outer, phase(8, order=0)))
    with pytest.raises(ConfigError, match="inside of another loop"):
        list(training.protection.epochs(3))


def test_where_nobody_asks_the_loader_a_forward_pass_ends_an_epochs_iteration() -> None:
    training = Training()
    for _ in training.protection.epochs(1):
        training.update()
        training.update()
    assert "seal 1 drawn 0" in training.take()


def test_a_position_that_stands_still_is_said_once() -> None:
    training = Training()
    for _ in training.protection.steps(3):
        training.update(reads=False)
    assert training.remarks == [STANDS_STILL]


def test_a_script_that_does_not_ask_where_to_go_on_is_told() -> None:
    training = Training()
    for _ in range(5):
        training.update()
    assert training.remarks == [ASKS_NOTHING]


def test_a_script_that_asks_is_not_told() -> None:
    training = Training()
    for _ in range(training.protection.step, 5):
        training.update()
    assert training.remarks == []


def test_at_the_end_the_last_version_is_sent_if_it_was_not() -> None:
    for leaves_out in (frozenset[int](), frozenset({2})):
        training = Training(leaves_out=leaves_out)
        training.update()
        training.update()
        training.take()
        training.protection.finish()
        assert training.take() == ["wait", "seal 2 drawn 0", "send 2", "finish"]


def test_ranks_that_agreed_to_stop_do_so_with_the_next_version_whole_even_if_none_was_due() -> None:
    training = Training(leaves_out=frozenset({2}))

    def train() -> None:
        for step in training.protection.steps(9):
            training.replicator.is_hold_agreed = step == 1  # as told with version 1
            training.update()

    with pytest.raises(HoldingError):
        train()
    assert training.take()[-5:] == ["seal 2 drawn 0 at the top", "wait", "send 2", "wait", "hold 2"]


def test_where_the_loop_tells_no_top_ranks_stop_as_the_next_iteration_begins_to_compute() -> None:
    training = Training()
    training.update()
    training.replicator.is_hold_agreed = True
    training.update()
    training.take()
    with pytest.raises(HoldingError):
        training.update()
    assert training.take()[-1] == "hold 2"


def test_training_that_ends_where_it_was_to_stop_just_ends() -> None:
    training = Training()
    training.replicator.is_hold_agreed = True
    for _ in training.protection.steps(1):
        training.update()
    training.protection.finish()
    assert training.take()[-1] == "finish"

    by_hand = Training()
    by_hand.replicator.is_hold_agreed = True
    by_hand.update()
    by_hand.protection.finish()
    assert by_hand.take()[-1] == "finish"
