"""The Trainer's stages, called by hand: where it begins, what it keeps, what it refuses."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from torch.utils.data import DataLoader, IterableDataset
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_callback import TrainerState as LibrarysState

from gemini_lab.adapters import trainer_state
from gemini_lab.adapters.trainer_state import TrainerState
from gemini_lab.adapters.transformers import (
    _GENERATING,
    TrainerHooks,
    protect_trainer,
    require_trainer,
)
from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.shard.codec import decode, encode


class Trained:
    """What of a Trainer is looked at before it trains."""

    is_deepspeed_enabled = True

    def __init__(self, *callbacks):
        self.args = SimpleNamespace(
            process_index=0,
            auto_find_batch_size=False,
            gradient_accumulation_steps=2,
            device=torch.device("cpu"),
        )
        self.accelerator = SimpleNamespace(scaler=None, parallelism_config=None)
        self.callback_handler = SimpleNamespace(callbacks=[*callbacks])
        self.state = LibrarysState()
        self.model = torch.nn.Linear(3, 2)

    def _stage(self, *_args, **_kwargs):
        return 0, 0

    _inner_training_loop = _init_training_state = _run_epoch = training_step = _stage
    _evaluate = _save_checkpoint = _finalize_training = _stage

    def _prepare_for_training(self, loader):
        return None, loader


class GRPOTrainer(Trained):
    """Named as TRL's."""


class BufferingTrainer(Trained):
    """One of another's, as TRL's make theirs."""

    _buffered_inputs = None


def scaling_gradients():
    trainer = Trained()
    trainer.is_deepspeed_enabled = False
    trainer.accelerator.scaler = object()
    return trainer


def exchanging_batches():
    """Its loader is none of torch's, which is seen only as it trains."""
    trainer = Trained()
    trainer.accelerator.parallelism_config = SimpleNamespace(sp_size=2)
    return trainer


def looking_for_a_batch_size():
    trainer = Trained()
    trainer.args.auto_find_batch_size = True
    return trainer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            scaling_gradients,
            r"its gradient scaler leaves out \(fp16\); use bf16=True, or DeepSpeed",
        ),
        (exchanging_batches, "sp_size=2.*use cp_size or tp_size"),
        (looking_for_a_batch_size, "several times for it; set auto_find_batch_size=False"),
        (GRPOTrainer, "generated.*use a Trainer that reads its batches from a data set"),
        (BufferingTrainer, "generated.*such as SFTTrainer"),
        (
            lambda: SimpleNamespace(is_deepspeed_enabled=True, args=Trained().args),
            "has no _inner_training_loop, .*use transformers 5.23",
        ),
    ],
    ids=["fp16", "sequence parallel", "batch size", "generating", "buffering", "another version"],
)
def test_a_trainer_whose_state_would_not_come_back_is_refused_with_the_way_out(make, words):
    with pytest.raises(UnsupportedError, match=words):
        require_trainer(make())


def test_a_trainer_that_calls_its_sums_otherwise_is_refused(monkeypatch):
    trainer_state.require_known_sums()
    monkeypatch.setattr(trainer_state, "_TRAINER", ("_tr_loss", "_tr_renamed"))
    with pytest.raises(UnsupportedError, match=r"transformers .* has no _tr_renamed in Trainer"):
        trainer_state.require_known_sums()


def test_all_of_trls_trainers_that_keep_what_they_generate_are_refused():
    """By their sources: to make one of them takes models that are not here."""
    trl = pytest.importorskip("trl", reason="TRL is not installed; run: pip install trl")
    found = set()
    for path in Path(trl.__file__).parent.rglob("*_trainer.py"):
        text = path.read_text()
        if re.search(r"self\._buffered_inputs\b|rollout_queue", text):
            found |= {*re.findall(r"^class (\w+Trainer)\(\w*BaseTrainer\)", text, re.MULTILINE)}
    assert len(found) >= 3
    assert found <= _GENERATING


def test_outside_a_lab_a_trainer_is_left_alone_and_that_is_said():
    trainer = Trained()
    with pytest.warns(UserWarning, match="not started by `gemini-lab run`"):
        protect_trainer(trainer)
    assert trainer.callback_handler.callbacks == []


def hooked(trainer, *, version=None, remarks=None):
    heard = [] if remarks is None else remarks
    TrainerHooks(trainer, start=lambda *_, **__: None, version=version, remark=heard.append)
    return trainer


@pytest.mark.parametrize(
    ("version", "begins"),
    [
        (None, (0, 0)),
        (0, (0, 0)),
        (3, (0, 6)),  # two micro-batches a step, four steps an epoch
        (4, (1, 0)),
        (11, (2, 6)),
        (12, (3, 0)),  # all is done: no epoch is left
    ],
)
def test_training_begins_in_the_epoch_and_at_the_batch_of_the_version(version, begins):
    trainer = hooked(Trained(), version=version)
    assert trainer._init_training_state(12, 4, 3, None, None) == begins


def test_an_epoch_that_a_checkpoint_begins_anew_in_its_middle_is_refused():
    trainer = Trained()
    trainer.state.global_step = 7
    with pytest.raises(UnsupportedError, match="begins the checkpoint's epoch from"):
        hooked(trainer)._init_training_state(12, 4, 3, "checkpoint-7", None)


@pytest.mark.parametrize(("epoch", "fits"), [(1.0, False), (1 + 6 / 7, True)])
def test_a_version_that_is_not_where_its_number_tells_is_refused(epoch, fits):
    """As after an epoch that a callback ended early."""
    trainer = hooked(Trained(), version=7)
    trainer._init_training_state(12, 4, 3, None, None)
    trainer.state.epoch = epoch
    hooks = trainer.callback_handler.callbacks[0]
    if fits:
        hooks._require_place(7)
        return
    with pytest.raises(ConfigError, match=r"at epoch 1 and its number tells 1.857.*ended early"):
        hooks._require_place(7)


def test_a_checkpoint_is_not_gone_on_from_where_there_is_a_version():
    given = []
    trainer = Trained()
    trainer._inner_training_loop = lambda **kwargs: given.append(kwargs["resume_from_checkpoint"])
    hooked(trainer)._inner_training_loop(resume_from_checkpoint="checkpoint-8")
    hooked(trainer, version=9)._inner_training_loop(resume_from_checkpoint="checkpoint-8")
    assert given == ["checkpoint-8", None]


def test_a_search_over_hyperparameters_is_refused():
    with pytest.raises(UnsupportedError, match="start a run for each trial"):
        hooked(Trained())._init_training_state(12, 4, 3, None, object())


def test_the_rest_of_a_checkpoints_epoch_is_run_on_the_same_loader_and_random_states():
    """Of 7 batches, 4 are done in 2 steps: 3 batches and 2 steps are left."""
    ran, trainer = {}, Trained()
    trainer._init_training_state = lambda *_: (1, 4)
    trainer.state.global_step = 6
    trainer._run_epoch = lambda **kwargs: ran.update(kwargs)
    trainer._load_rng_state = lambda folder: ran.update(random_from=folder)
    loader = DataLoader(range(7))
    hooked(trainer)._init_training_state(12, 4, 3, "checkpoint-6", None)
    trainer._run_epoch(
        epoch=1,
        train_dataloader=loader,
        steps_in_epoch=7,
        num_update_steps_per_epoch=4,
        resume_from_checkpoint="checkpoint-6",
    )
    assert ran["random_from"] == "checkpoint-6"
    assert ran["resume_from_checkpoint"] is None
    assert (ran["steps_in_epoch"], ran["num_update_steps_per_epoch"]) == (3, 2)
    assert [int(batch) for batch in ran["train_dataloader"]] == [4, 5, 6]


class Stream(IterableDataset):
    """Without a length."""

    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (DataLoader(Stream()), "have no length.*use a data set with __len__"),
        ([1, 2], "the training loader is a list"),
        (type("DataLoaderDispatcher", (), {})(), "dispatch_batches=False"),
    ],
    ids=["stream", "list", "dispatcher"],
)
def test_data_in_which_no_place_can_be_found_again_are_refused(loader, words):
    with pytest.raises(UnsupportedError, match=words):
        hooked(Trained())._prepare_for_training(loader)


class Kept(TrainerCallback):
    """Says what it keeps."""

    def __init__(self):
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Forgetful(TrainerCallback):
    """Has something, and does not say so."""

    def __init__(self):
        self.best = None
        self.limits = [3, 5]


class Stateless(TrainerCallback):
    """Has nothing."""


def test_callbacks_that_say_what_they_keep_come_back_with_the_trainers_counts():
    def make():
        early = EarlyStoppingCallback(early_stopping_patience=3)
        trainer = Trained(Kept(), early)
        return trainer, trainer.callback_handler.callbacks[0], early, TrainerState(trainer, print)

    trainer, kept, early, state = make()
    kept.seen, early.early_stopping_patience_counter = 7, 2
    trainer.state.global_step, trainer.state.best_metric, trainer._tr_loss = 9, 0.25, torch.ones(())
    trainer.state.log_history.append({"loss": 0.5, "step": 9})
    bytes_kept = encode(state.state_dict())
    trainer, kept, early, state = make()
    state.load_state_dict(decode(bytes_kept))
    assert (kept.seen, early.early_stopping_patience_counter) == (7, 2)
    assert (trainer.state.global_step, trainer.state.best_metric, trainer._tr_loss) == (9, 0.25, 1)
    assert trainer.state.log_history == [{"loss": 0.5, "step": 9}]


def test_what_callbacks_change_and_no_version_has_is_named_once():
    remarks = []
    kept, forgetful = Kept(), Forgetful()
    trainer = Trained(kept, forgetful, Stateless(), EarlyStoppingCallback())
    parts = TrainerState(trainer, remarks.append).parts
    parts.begin()
    parts.say_changes(2)
    assert remarks == []
    kept.seen, forgetful.best = 8, 0.5
    parts.say_changes(3)  # a step at which nobody looks
    assert remarks == []
    for step in (4, 11, None):
        parts.say_changes(step)
    assert len(remarks) == 1
    assert "(callback Forgetful's 'best')" in remarks[0]
    forgetful.average = copy.deepcopy(trainer.model)  # made too late
    parts.say_changes()
    assert "callback Forgetful's 'average'" in remarks[1]
    assert parts.state_dict() == {}


def test_another_model_in_a_callback_is_named_once_it_has_changed_and_the_trained_one_is_not():
    remarks = []
    callback = Forgetful()
    trainer = Trained(callback)
    callback.other, callback.trained = torch.nn.Linear(7, 5), torch.nn.Sequential(trainer.model)
    parts = TrainerState(trainer, remarks.append).parts
    parts.begin()
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.add_(1.0)
    parts.say_changes(2)
    assert remarks == []
    with torch.no_grad():
        callback.other.bias.add_(1.0)
    parts.say_changes(4)
    assert "(callback Forgetful's 'other')" in remarks[0]


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["whole", "under ZeRO 3"])
@pytest.mark.parametrize("kind", ["module", "dict", "list"])
def test_a_copy_of_the_model_in_a_callback_comes_back(kind, is_partitioned):
    """Also one that is made only after the version was put back for the first time."""

    def make(model):
        weights = {name: one.detach().clone() for name, one in model.named_parameters()}
        return {"module": copy.deepcopy(model), "dict": weights, "list": [*weights.values()]}[kind]

    def tensors(copied):
        return {
            "module": lambda: [*copied.parameters()],
            "dict": lambda: [*copied.values()],
            "list": lambda: copied,
        }[kind]()

    trainer, callback = Trained(), Stateless()
    trainer.callback_handler.callbacks.append(callback)
    parts = TrainerState(trainer, print).parts
    whole = copy.deepcopy(trainer.model)
    if is_partitioned:  # ZeRO 3 leaves its weights so
        for weight in trainer.model.parameters():
            weight.ds_shape, weight.data = weight.shape, torch.empty(0)
    callback.average, callback.itself = make(whole), trainer.model
    parts.begin()
    with torch.no_grad():
        for one in tensors(callback.average):
            one.fill_(3.0)
    kept = decode(encode(parts.state_dict()))
    assert len(kept) == 1
    callback.average = None
    later = TrainerState(trainer, print).parts
    later.load_state_dict(kept)
    callback.average = make(whole)
    later.begin()
    later.load_state_dict(kept)
    assert all(bool((one == 3).all()) for one in tensors(callback.average))
    callback.average = None
    with pytest.raises(UnsupportedError, match=r"'average' .*has not made; .*make it in `setup`"):
        later.load_state_dict(kept)


def test_a_trainer_that_is_given_to_protect_itself_is_sent_to_its_own_way():
    from gemini_lab.engine.arguments import require_engine

    kind = type("Trainer", (), {"__module__": "transformers.trainer"})
    with pytest.raises(ConfigError, match=r"call gemini_lab.adapters.transformers.protect_trainer"):
        require_engine(kind())


def test_every_callback_that_transformers_ships_stands_in_the_guides_table():
    guide = (Path(__file__).parents[2] / "docs/reference/libraries.md").read_text(encoding="utf-8")
    package = Path(transformers.__file__).parent
    text = "\n".join(
        (package / name).read_text(encoding="utf-8")
        for name in (
            "integrations/integration_utils.py",
            "trainer_callback.py",
            "trainer_jit_checkpoint.py",
            "utils/notebook.py",
        )
    )
    shipped = set(re.findall(r"^class (\w+Callback)\b", text, re.MULTILINE)) - {"TrainerCallback"}
    assert len(shipped) > 15
    assert sorted(name for name in shipped if f"`{name}`" not in guide) == []
