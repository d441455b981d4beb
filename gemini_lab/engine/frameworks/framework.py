"""The contract with a framework: what is state, how it is put back, when an update is made.

All else is the same for every framework. `zero_framework` fulfils this for DeepSpeed's engines,
`torch_framework` for plain PyTorch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from gemini_lab.engine.contract import Engine, StateDict, StateView
from gemini_lab.engine.frameworks.payload_blocks import FlatRun
from gemini_lab.engine.frameworks.resize_state import DataParallelGroups, Heir
from gemini_lab.engine.frameworks.stepping import StepHook
from gemini_lab.engine.rank_agreement import rank_and_world_size
from gemini_lab.settings import SettingValue
from gemini_lab.shard.layout import ShardLayout, TensorSpec, WeightPiece

Form = tuple[str, str, tuple[int, ...]]
"""A tensor of the payload: its name, its type by torch's name, its shape."""
Pieces = list[tuple[int, torch.Tensor]]
"""Offset in the payload, and the live, flat tensor whose bytes belong there; in order."""


class Framework(ABC):
    """A model and its optimizer as one framework has them.

    What changes only in an update is given out as live tensors (`forms`, `pieces`, `load`); what is
    small is captured by value (`capture`, `restore`). A rank makes one alone. Then all ranks call
    `meet`, before anything else.

    Attributes:
        parallelism: How ranks share the model, in a word.
        stage: ZeRO stage; 0 elsewhere.
        shares_updates: Whether all ranks make one and the same update.
        uneven: Why no rank could compute for another, in words, the same on all ranks; empty if
            each could, because all hold parts of the same tensors.
        unrepeatable: Why no process could repeat an update, in words; empty if it could.
        groups: The data-parallel groups, if ranks hold parts of different tensors; `None` if that
            is unknown.
        is_pipelined: Whether ranks compute one after the other, so that they begin an iteration at
            different times; the same on all ranks.
    """

    parallelism = "ZeRO"
    stage = 0
    shares_updates = False
    uneven = ""
    unrepeatable = ""
    groups: DataParallelGroups | None = None
    is_pipelined = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rank, self.world_size = rank_and_world_size()

    def meet(self) -> None:  # noqa: B027 - most know their tensors by themselves
        """Learn what other ranks hold; all ranks call it together, once.

        Raises:
            UnsupportedError: The optimizer's state cannot be kept, or ranks differ in what they are
                to share; says what to change, on all ranks.
        """

    # -- what it is ------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """Return this rank's place on each axis of the job, such as `dp 1, tp 0`, for people."""
        return ""

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """Return the model itself, by whose names its weights are known."""

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Return all optimizers whose steps together make an update."""
        return (self.optimizer,)

    @property
    def device(self) -> torch.device:
        return torch.device(self.engine.device)

    @abstractmethod
    def settings(self) -> Mapping[str, SettingValue]: ...

    @abstractmethod
    def trained(self) -> Iterator[nn.Parameter]:
        """Return the weights that updates change."""

    def batch(self) -> int | None:
        """Return samples of all ranks that make one update; `None` where the script alone knows."""
        return None

    # -- the large part --------------------------------------------------------------------------

    @abstractmethod
    def forms(self) -> Sequence[Form]:
        """Return the tensors of this rank's payload; other ranks may have others."""

    @abstractmethod
    def weight_pieces(self) -> Iterator[WeightPiece]:
        """Yield the parts of weights and of their states that this rank's tensors hold."""

    def unplaced(self) -> list[str]:
        """Return tensors of which it is not known which part of the whole this rank has."""
        return []

    @abstractmethod
    def present(self) -> list[bool]:
        """Return which tensors of the state exist: optimizers make theirs at their first step."""

    @abstractmethod
    def pieces(self, specs: Sequence[TensorSpec]) -> Pieces:
        """Return the live tensors, the same until the next update.

        Raises:
            UnsupportedError: The state is no longer what was laid out.
        """

    @abstractmethod
    def load(self, values: Sequence[torch.Tensor], present: Sequence[bool]) -> None:
        """Put tensors back, and whatever is derived from them; all ranks together.

        A rank that fails alone says so once it has done what others wait for.

        Args:
            values: Those of this rank's payload, in the order of `forms`.
            present: What `present` gave when they were captured.
        """

    @abstractmethod
    def drop_gradients(self, *, is_computing: bool) -> None:
        """Forget gradients of which no update was made, before an earlier version comes back.

        Args:
            is_computing: Whether the model has computed since the last update.

        Raises:
            UnsupportedError: There are such that cannot be forgotten.
        """

    @abstractmethod
    def updated_tensors(
        self, layout: ShardLayout
    ) -> Sequence[tuple[torch.Tensor, Mapping[str, FlatRun]]]:
        """Return what the optimizer updates, and its place and its state's in a payload, by name.

        Each, or this rank's part of it, is whole in the payload of this rank, and live.

        Raises:
            UnsupportedError: It is not.
        """

    def watch_gradients(self) -> tuple[torch.dtype, Callable[[], float]] | None:
        """Watch how gradients come to the optimizer, where they were of a narrower type before.

        Returns:
            The type in which ranks reduced them, and by what the newest were multiplied since;
            `None` where the optimizer gets them as they were reduced, or nobody knows.
        """
        return None

    def powers_since(self) -> int:
        """Of an optimizer with a library: the first step of those taken there without a gap."""
        return 0

    # -- the small part --------------------------------------------------------------------------

    @abstractmethod
    def require_boundary(self) -> None:
        """Refuse to capture a version in the middle of gradient accumulation.

        Raises:
            UnsupportedError: It is.
        """

    @abstractmethod
    def capture(self) -> StateDict:
        """Return the framework's own small state by name, for the codec."""

    @abstractmethod
    def restore(self, small: StateView) -> None:
        """Put back what `capture` gave; the tensors were put back before."""

    def put_order(self, small: StateView) -> None:  # noqa: B027 - most have none
        """Put back in what order gradients are added up, as `capture` gave it; all together."""

    @abstractmethod
    def require_fit(self, small: StateView) -> None:
        """Refuse a small state that this script's objects have no place for.

        Raises:
            ConfigError: It is one.
        """

    @abstractmethod
    def recast(self, smalls: Sequence[StateView], heir: Heir) -> StateDict:
        """Return what `capture` would have given here, from the captures of another world size.

        Args:
            smalls: Theirs, in order; beside what `capture` gave, `"present"` as it was then.
            heir: This rank, and the layouts of their shards.

        Returns:
            The same with `"present"`.

        Raises:
            ConfigError: They differ in what this rank cannot have of all of them.
        """

    # -- computing again -------------------------------------------------------------------------

    def contributing(self) -> Sequence[torch.Tensor]:
        """Return where this rank's gradients arrive, before ranks sum them."""
        return [weight for weight in self.trained() if weight.requires_grad]

    def end_replay(self) -> None:  # noqa: B027 - most have nothing to do
        """Free what computing gradients beside an iteration has left."""

    def obstacle(self) -> str:
        """Return why this process could not go on with other ranks, in words; empty if it can."""
        return self.uneven if self.is_pipelined else ""  # a stage's first pass differs from others

    def begin_anew(self) -> None:  # noqa: B027 - most have nothing to do
        """Communicate from here on as an engine that was just made.

        At the loop's top; a version is put back afterwards.
        """

    def learned_order(self) -> int:
        """Return a checksum of the order of communication that the engine has learned; 0: none."""
        return 0

    def forget_order(self) -> None:  # noqa: B027 - most have nothing to learn
        """Learn that order anew, for ranks know different ones; a version is put back then."""

    def notices(self) -> Sequence[str]:
        """Return what the script's author should know of the newest updates; the same each time."""
        return ()

    # -- the boundaries --------------------------------------------------------------------------

    @abstractmethod
    def hook(self, hook: StepHook) -> Callable[[], None]:
        """Install the hook around updates, and at the start of each forward pass.

        Returns:
            Takes the hook off again.
        """
