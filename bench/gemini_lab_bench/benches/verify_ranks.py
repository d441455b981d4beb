"""Ranks that train for some iterations, each on a machine of its own name, one of them struck.

What they are: processes with real engines (DeepSpeed's ZeRO, DDP, FSDP2), that talk over Gloo,
whose tensors have real bits turned, and that verify with the worker's own code. What they are not:
nodes. There is no agent, no version in memory and nobody who acts on a verdict; all run on one
machine, and that each is a machine of its own is said to the verdict by its name alone.
"""

import itertools
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args

import deepspeed
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.engine.state.engine_state import framework_of
from gemini_lab.engine.verify.flaws import Flaws
from gemini_lab.engine.verify.verification import Found, Verifier
from gemini_lab.errors import GeminiError
from gemini_lab.injector.failures import Where
from gemini_lab.recovery.messages import Flawed
from gemini_lab.seats import Seats
from gemini_lab.training.gpt import GPT, GPTConfig
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab_bench.rows import Row, single

EngineName = Literal["ZeRO-1", "ZeRO-3", "DDP", "FSDP2"]
STRUCK_AT: Final = 2  # the iteration; by then optimizers have all their tensors
_MODEL: Final = GPTConfig(layers=2, width=32, heads=2, context=16)
_STRUCK: Final = replace(_MODEL, dropout=0.0)  # a bit that dropout drops makes no sum wrong
_BATCH: Final = 2
_LIMIT_S: Final = 900.0
RANKS: Final = (3, 4, 5)
_MOST_REPLAYS: Final = 2
_REAL: Final = {
    "real": "processes, Gloo, engines, turned bits, replays, the verdict",
    "not": "machines (names alone), agents, versions, what follows a verdict",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BitStrike:
    """What turns a bit on one machine."""

    rank: int  # whose
    where: Where  # in what
    lasts: bool  # each time from then on, or once
    in_replay: bool  # whether it begins while another rank's work is computed, not its own


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrial:
    """One job: it starts over, and every iteration is verified."""

    engine: EngineName  # how its ranks share the model
    seed: int  # of weights, data, dropout, and of the place that is struck
    iterations: int = STRUCK_AT  # how many
    strike: BitStrike | None = None  # what happens in iteration `STRUCK_AT`; `None` for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """The end of a trial."""

    trial: RankTrial  # the job
    clean: int  # iterations of which all machines said the same
    found: Found | None  # what was found in the one that followed, in which training stood still

    @property
    def is_named(self) -> bool:
        """Whether the struck machine alone was named at once, within two replays."""
        strike, found = self.trial.strike, self.found
        return (
            strike is not None
            and found is not None
            and found.verdict.wrong == (node_name(strike.rank),)
            and found.verdict.is_sure
            and found.replays <= _MOST_REPLAYS
        )

    @property
    def accuses_another(self) -> bool:
        """Whether a machine was named that was not struck."""
        strike, found = self.trial.strike, self.found
        named = set() if found is None else {*found.verdict.wrong}
        return bool(named - ({node_name(strike.rank)} if strike else set()))


def node_name(rank: int) -> str:
    """Return the machine of a rank."""
    return f"node-{rank}"


def outcomes(trials: Sequence[RankTrial], *, ranks: int) -> list[TrialOutcome]:
    """Carry out the trials on so many ranks, which all say the same.

    Raises:
        GeminiError: A rank failed, or they do not all say the same.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory(prefix="gemini_lab-ranks-") as folder:
        store = Path(folder) / "store"
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        started = [
            context.Process(target=_work, args=(rank, ranks, store, trials, ours), daemon=True)
            for rank, (_, ours) in enumerate(pipes)
        ]
        try:
            for one, (_, ours) in zip(started, pipes, strict=True):
                one.start()
                ours.close()
            said = [_received(theirs) for theirs, _ in pipes]
        finally:
            for one in started:
                one.kill()
                one.join()
    if any(one != said[0] for one in said):
        raise GeminiError(f"ranks do not come to the same verdicts: {said}")
    return said[0]


def _received(pipe: Any) -> list[TrialOutcome]:
    if not pipe.poll(_LIMIT_S):
        raise GeminiError(f"a rank has not ended within {_LIMIT_S:.0f} s")
    try:
        answer: list[TrialOutcome] | str = pipe.recv()
    except EOFError as error:
        raise GeminiError("a rank ended without a word") from error
    if isinstance(answer, str):
        raise GeminiError(f"a rank failed: {answer}")
    return answer


def strikes(count: int) -> Iterator[tuple[int, RankTrial]]:
    """So many trials with the number of their ranks; every kind of strike is as likely."""
    drawn = random.Random(0)
    kinds = [
        *itertools.product(get_args(EngineName), get_args(Where), (True, False), (True, False))
    ]
    drawn.shuffle(kinds)
    for number, (engine, where, lasts, in_replay) in zip(
        range(count), itertools.cycle(kinds), strict=False
    ):
        ranks = RANKS[number % len(RANKS)]
        strike = BitStrike(
            rank=drawn.randrange(ranks), where=where, lasts=lasts, in_replay=in_replay
        )
        yield ranks, RankTrial(engine=engine, seed=number, strike=strike)


def struck(count: int) -> list[TrialOutcome]:
    """Carry out so many trials with a strike each."""
    drawn = [*strikes(count)]
    return [
        outcome
        for ranks in RANKS
        for outcome in outcomes([trial for of, trial in drawn if of == ranks], ranks=ranks)
    ]


def undisturbed(iterations: int) -> list[TrialOutcome]:
    """Verify at least so many iterations that nothing disturbs, with each engine."""
    engines = get_args(EngineName)
    share = -(-iterations // len(engines))
    trials = [RankTrial(engine=one, seed=7, iterations=share) for one in engines]
    return outcomes(trials, ranks=RANKS[0])


def rows_of(tries: Sequence[TrialOutcome], clean: Sequence[TrialOutcome]) -> list[Row]:
    """Count the machines that were named and those that were accused."""
    rows = [
        single(
            f"{where} of real ranks: of {len(of)}, the machine was named",
            sum(one.is_named for one in of),
            _REAL,
        )
        for where in get_args(Where)
        if (of := [one for one in tries if one.trial.strike and one.trial.strike.where == where])
    ]
    replays = [one.found.replays for one in tries if one.found is not None]
    verified = sum(one.clean for one in clean)
    return [
        *rows,
        single("of all, another machine was named", sum(one.accuses_another for one in tries)),
        single("most replays until it was", max(replays, default=0)),
        single(
            f"undisturbed iterations of real ranks: of {verified}, with an accusation",
            sum(one.found is not None for one in clean),
        ),
    ]


# -- in a rank -----------------------------------------------------------------------------------


def _work(rank: int, ranks: int, store: Path, trials: Sequence[RankTrial], answer: Any) -> None:
    try:
        _meet(rank, ranks, store)
        group = CheckpointGroup(_file_store(store, ranks), rank=rank, world_size=ranks)
        answer.send([_outcome(trial, group) for trial in trials])
        group.barrier()
    except Exception as error:  # noqa: BLE001 - at a process's edge: whoever started it is told
        answer.send(f"{type(error).__name__}: {error}")
    os._exit(0)  # not through libraries' own ends, which wait for one another


def _file_store(store: Path, ranks: int) -> Any:
    return dist.FileStore(f"{store}-group", ranks)  # type: ignore[attr-defined]


def _sharded(model: GPT) -> Any:
    return fully_shard(model)


def _meet(rank: int, ranks: int, store: Path) -> None:
    warnings.simplefilter("ignore")  # of the libraries among themselves
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    avoid_shared_memory_collectives()
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        verbose=False,
        auto_mpi_discovery=False,
    )


def _outcome(trial: RankTrial, group: CheckpointGroup) -> TrialOutcome:
    torch.manual_seed(trial.seed)  # the same weights everywhere
    job = _JOBS[trial.engine](GPT(_MODEL if trial.strike is None else _STRUCK))
    watched = _Watched(trial, job.engine, group)
    torch.manual_seed(1000 * trial.seed + group.rank)
    with suppress(_StandsStillError):
        for number in range(1, trial.iterations + 1):
            watched.iteration = number
            job.update(torch.randint(256, (2, _BATCH, _MODEL.context)))
    return TrialOutcome(trial=trial, clean=watched.clean, found=watched.found)


class _StandsStillError(Exception):
    """Training waits to be ended, as a worker does that knows of wrong sums."""


class _Watched:
    """The hook in an engine's step: every iteration is verified, and one is struck."""

    counts = True
    remarks = ()

    def __init__(self, trial: RankTrial, engine: Any, group: CheckpointGroup) -> None:
        framework = framework_of(engine)
        self.iteration = 0
        self.found: Found | None = None
        self.clean = 0
        self._strike, self._seed, self._rank = trial.strike, trial.seed, group.rank
        self._orders: list[Flawed] = []
        self._flaws = Flaws(framework, self._orders)
        self._verifier = Verifier(
            framework,
            group,
            rank=group.rank,
            seats=Seats(
                nodes=group.world_size, members=tuple(map(node_name, range(group.world_size)))
            ),
            every=1,
            is_first=False,
            apart=self._in_replay,
        )
        framework.hook(self)

    def begin_forward(self) -> None:
        """Begin to compute an iteration; called often in each."""
        self._strike_if_due(in_replay=False)
        self._flaws.install()
        self._verifier.begin(self.iteration)

    def before_update(self) -> float:
        self._note(self._verifier.before_update())
        return 0.0

    def before_writing(self) -> None:
        """Do nothing: no version is on its way."""

    def after_update(self, waited_s: float) -> None:
        del waited_s
        self._note(self._verifier.after_update())
        self.clean += 1

    def _note(self, found: Found | None) -> None:
        if found is not None:
            self.found = found
            raise _StandsStillError

    @contextmanager
    def _in_replay(self) -> Iterator[None]:
        self._strike_if_due(in_replay=True)
        self._flaws.install()
        yield

    def _strike_if_due(self, *, in_replay: bool) -> None:
        strike = self._strike
        if strike is None or self._orders or self.iteration != STRUCK_AT:
            return
        if (strike.rank, strike.in_replay) == (self._rank, in_replay):
            self._orders.append(
                Flawed(where=strike.where, is_lasting=strike.lasts, seed=self._seed)
            )


class _Job(Protocol):
    engine: Any

    def update(self, tokens: torch.Tensor) -> None: ...


class _Zero:
    """A DeepSpeed engine."""

    def __init__(self, model: GPT, *, stage: int) -> None:
        self.engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=[*model.parameters()],
            config={
                "train_micro_batch_size_per_gpu": _BATCH,
                "gradient_clipping": 1.0,
                "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
                "zero_force_ds_cpu_optimizer": False,
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
            },
        )

    def update(self, tokens: torch.Tensor) -> None:
        self.engine.backward(self.engine(*tokens))
        self.engine.step()


class _Plain:
    """A model in plain PyTorch."""

    def __init__(self, model: GPT, *, shares: Callable[[GPT], Any]) -> None:
        self._model = shares(model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=0.01)
        self.engine = TorchEngine(self._model, self._optimizer)

    def update(self, tokens: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        self._model(*tokens).backward()
        self._optimizer.step()


_JOBS: Final[dict[EngineName, Callable[[GPT], _Job]]] = {
    "ZeRO-1": lambda model: _Zero(model, stage=1),
    "ZeRO-3": lambda model: _Zero(model, stage=3),
    "DDP": lambda model: _Plain(model, shares=DistributedDataParallel),
    "FSDP2": lambda model: _Plain(model, shares=_sharded),
}
