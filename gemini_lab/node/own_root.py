"""How a root agent of the user's own comes to the nodes, and is kept from holding them up.

What `lab.train(job, root=decide)` is given is pickled by value, with what it uses of its notebook,
and goes with the job's order. Whichever node is root calls it, for at most `ONE_S` at a time.
"""

import base64
import contextlib
import pickle
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import cloudpickle

from gemini_lab.engine.imports import foreign_modules, installed_places
from gemini_lab.errors import ConfigError, kind_of
from gemini_lab.recovery.deciding import Cluster, Decide, Event, GuideError
from gemini_lab.recovery.guided import GuidedRoot
from gemini_lab.recovery.protocol import RootState
from gemini_lab.recovery.root import RootAgent

ONE_S: Final = 2.0
"""How long one answer may take."""
MOST_BYTES: Final = 1 << 20
"""Of a pickled function: it is written into the store with every step of a run."""

_OURS: Final = __name__.partition(".")[0]
_AT_ONCE_S: Final = 1e-6, 1e-4
_SOON_S: Final = 1e-3


class TooLong(BaseException):
    """An answer took too long; no error, which whoever is asked might catch."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the block after so many seconds.

    A signal interrupts the block, so this needs the main thread, in which cells and agents run; in
    another thread there is no limit. A loop that catches everything meets the next signal while it
    does so, and one that is not caught at last.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_late = is_over = False
    user = sys._getframe(2)  # noqa: SLF001 - who limits the block: nobody in the block is above it

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as handlers are called
        nonlocal is_late
        if is_over:
            return
        if is_late and _is_leaving(frame, user):
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            return
        is_late = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(*_AT_ONCE_S))
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        if is_late:
            raise TooLong
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_leaving(frame: FrameType | None, user: FrameType) -> bool:
    """Whether the block may be on its way out already, to who limits it."""
    while frame is not None and frame.f_code.co_filename in {contextlib.__file__, __file__}:
        if frame is user:
            return True
        frame = frame.f_back
    return frame is None or frame is user


def packed(decide: object) -> str:
    """A function as text that `unpacked` reads on any node.

    Raises:
        ConfigError: It is none, or uses what cannot be sent.
    """
    if not callable(decide):
        raise ConfigError(
            "root= has to be a function of `state`, `event` and `cluster`, and this is "
            f"{kind_of(decide)}"
        )
    if isinstance(text := getattr(decide, "packed", None), str):
        return text  # it lives in another process, which packs it
    try:
        with _by_value():
            data = cloudpickle.dumps(decide)
    except (TypeError, pickle.PicklingError, RecursionError) as error:
        raise ConfigError(
            f"root= uses what cannot be sent to a node ({error}); have it use its arguments alone"
        ) from error
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"root= takes {len(data):,} bytes with all that it uses, and at most {MOST_BYTES:,} "
            "can be sent; have it use its arguments alone"
        )
    return base64.b64encode(data).decode()


@contextmanager
def _by_value() -> Iterator[None]:
    """Have modules of the user's own pickled whole: a node does not look for them in a folder."""
    found = foreign_modules(frozenset(), sys.modules, installed_places())
    own = [sys.modules[name] for name in found if name.partition(".")[0] != _OURS]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def unpacked(text: str) -> Decide:
    """The function that `packed` took; each time anew, so that nothing is left of earlier calls.

    One that cannot be read here says so when it is called: then the run ends with that.
    """
    try:
        decide: Decide = pickle.loads(base64.b64decode(text))  # noqa: S301 - as much the owner's as the script
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reading it imports what it uses
        return _unreadable(error)

    def limited(state: dict[str, object], event: Event, cluster: Cluster) -> object:
        try:
            with limit(ONE_S):
                return decide(state, event, cluster)
        except TooLong:
            raise GuideError(f"there is no answer after {ONE_S:g} s") from None

    return limited


def _unreadable(error: BaseException) -> Decide:
    why = f"it cannot be read on this node ({type(error).__name__}: {error})"

    def refuse(state: dict[str, object], event: Event, cluster: Cluster) -> object:  # noqa: ARG001
        raise GuideError(why)

    return refuse


def root_agent(state: RootState, *, at_s: float) -> RootAgent:
    """The root agent that a run asks for: the lab's, or one that the user's function guides."""
    order = state.order
    if order is None or not order.root:
        return RootAgent(state=state, at_s=at_s)
    return GuidedRoot(state=state, at_s=at_s, decide=unpacked(order.root))


def successor(before: RootAgent, root: str, *, at_s: float) -> RootAgent:
    """The root agent for the next job, which knows the living nodes that the last one knew.

    Args:
        before: The last job's.
        root: What the new order says of it.
        at_s: Now.
    """
    if not root and type(before) is RootAgent:
        return before
    after = (
        GuidedRoot(state=before.state, at_s=at_s, decide=unpacked(root))
        if root
        else RootAgent(state=before.state, at_s=at_s)
    )
    after.living.update(before.living)
    return after
