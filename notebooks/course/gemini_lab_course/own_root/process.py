"""The user's root agent on a node: sent by value, and called in a process of its own.

`lab.train(job, root=decide)` pickles the function by value, with what it uses of its notebook. It
goes with the job's order, which the lab's token proves. The root's node calls it in a process that
is killed when it takes too long, even inside C code. The agent's own loop goes on meanwhile.

The process is `python -m gemini_lab_course.own_root.process FD`: it reads the function, then
answers one event after the other, until the other end is closed.
"""

import base64
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import cloudpickle
import msgspec

from gemini_lab.engine.own_code import foreign_modules, installed_places
from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab.errors import ConfigError, MessageError, kind_of
from gemini_lab.job import python_command
from gemini_lab.lab.submission import ONE_S
from gemini_lab.recovery.root_state import RootState
from gemini_lab_course.own_root.deciding import (
    Action,
    Cluster,
    Decide,
    Event,
    GuideError,
    as_actions,
    as_text,
)
from gemini_lab_course.own_root.guided import GuidedRoot, raised

READ_S: Final = 60.0
"""How long the function may take to be read, with all that it imports."""
MOST_BYTES: Final = 1 << 20
"""Of a pickled function: it is written into the store with every step of a run."""
MOST_MESSAGE_BYTES: Final = 1 << 23
"""Of a message between the two processes: larger ones are a fault."""
LOOK_S: Final = 0.05
PROGRAM: Final = "gemini_lab_course.own_root.process"

_OURS: Final = "gemini_lab"


def packed(decide: object) -> str:
    """Return a function as text that `loaded` reads on any node.

    Raises:
        ConfigError: It is none, or uses what cannot be sent.
    """
    if not callable(decide):
        raise ConfigError(
            "root= has to be a function of `state`, `event` and `cluster`, and this is "
            f"{kind_of(decide)}"
        )
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
    """Pickle modules of the user's own whole: a node does not look for them in a folder."""
    found = foreign_modules(frozenset(), sys.modules, installed_places())
    own = [sys.modules[name] for name in found if not name.startswith(_OURS)]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def loaded(text: str) -> Decide:
    """Return the function that `packed` took, with nothing left of earlier calls.

    One that cannot be read here says so when it is called: then the run ends with that.
    """
    try:
        decide: Decide = pickle.loads(base64.b64decode(text))  # noqa: S301 - the token proves whose it is
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reading it imports what it uses
        return _unreadable(error)
    return decide


def _unreadable(error: BaseException) -> Decide:
    why = f"it cannot be read on this node ({type(error).__name__}: {error})"

    def refuse(state: dict[str, object], event: Event, cluster: Cluster) -> object:
        raise GuideError(why)

    return refuse


class Guide(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The function that decides; once it is read, an empty `GuideAnswer` follows.

    Attributes:
        packed: As `JobOrder.root`.
    """

    packed: str


class GuideQuestion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An event about which the function is to decide.

    Attributes:
        kept: What it keeps, as JSON.
    """

    kept: str
    event: Event
    cluster: Cluster


class GuideAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the function decided.

    Attributes:
        actions: To be done, in this order.
        kept: What it keeps from now on, as JSON.
        error: Why it decided nothing; empty if it did.
    """

    actions: tuple[Action, ...]
    kept: str
    error: str = ""


Said = Guide | GuideQuestion | GuideAnswer


class GuideChannel:
    """One end of a socket pair: lines of JSON between an agent and the function's process."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(
            Guide | GuideQuestion | GuideAnswer
        )
        self._buffer = b""

    def send(self, message: Said) -> None:
        """Send a message; a reader that is gone is noticed by `receive`."""
        self._socket.settimeout(None)
        with suppress(OSError):
            self._socket.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self, within_s: float | None = None) -> Said | None:
        """Wait for the next message; return `None` if the other end is gone.

        Raises:
            TimeoutError: It does not come in time.
            MessageError: It is larger than any message may be.
            msgspec.MsgspecError: It is no message.
        """
        give_up_s = None if within_s is None else time.monotonic() + within_s
        while b"\n" not in self._buffer:
            if len(self._buffer) > MOST_MESSAGE_BYTES:
                raise MessageError(f"a message of more than {MOST_MESSAGE_BYTES:,} bytes")
            if give_up_s is not None and (left_s := give_up_s - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(None if give_up_s is None else left_s)
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class OwnProcess:
    """A function of the user's in a process of its own: a `Decide`, for one thread at a time.

    Args:
        text: What `packed` gave.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._channel: GuideChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._code = 0  # with which the last process ended
        self._is_read = False
        self._has_ended = False
        self._turn = threading.Lock()
        self._start()

    def __call__(self, state: dict[str, object], event: Event, cluster: Cluster) -> object:
        """Ask the function; if its process was killed meanwhile, ask once more.

        Raises:
            GuideError: It gave no answer, or none that makes sense.
        """
        question = GuideQuestion(kept=json.dumps(state), event=event, cluster=cluster)
        with self._turn:
            answer = self._ask(question) or self._ask(question)
        if answer is None:
            raise GuideError(f"its process ended twice, the last time with {self._end_in_words()}")
        if answer.error:
            raise GuideError(answer.error)
        state.clear()
        state.update(json.loads(answer.kept))
        return answer.actions

    def end(self) -> None:
        """End the process, and all that it has started; a caller that waits gets no answer."""
        self._has_ended = True
        while not self._turn.acquire(timeout=LOOK_S):
            self._signal()
        self._kill()
        self._turn.release()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel = GuideChannel(ours)
        try:
            self._process = subprocess.Popen(
                python_command(PROGRAM, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                process_group=0,
            )
        finally:
            theirs.close()
        self._is_read = False
        self._channel.send(Guide(packed=self._text))

    def _ask(self, question: GuideQuestion) -> GuideAnswer | None:
        """Return the answer; `None` if the process is gone.

        Raises:
            GuideError: It takes too long.
        """
        if self._has_ended:
            raise GuideError("this node is no longer the root agent")
        if self._process is None:
            self._start()
        if not self._is_read:
            if self._hear(READ_S, f"it was not read within {READ_S:g} s") is None:
                return None
            self._is_read = True
        assert self._channel is not None
        self._channel.send(question)
        return self._hear(ONE_S, f"there is no answer after {ONE_S:g} s")

    def _hear(self, within_s: float, late: str) -> GuideAnswer | None:
        assert self._channel is not None
        try:
            answer = self._channel.receive(within_s)
        except TimeoutError:
            self._kill()
            raise GuideError(late) from None
        except (MessageError, msgspec.MsgspecError) as error:
            self._kill()
            raise GuideError(f"its process said what is no answer: {error}") from error
        if answer is None:
            self._kill()
            return None
        if not isinstance(answer, GuideAnswer):
            self._kill()
            raise GuideError(f"its process said what is no answer: a {type(answer).__name__}")
        return answer

    def _signal(self) -> None:
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _kill(self) -> None:
        if self._process is None or self._channel is None:
            return
        self._signal()
        self._code = self._process.wait()
        self._channel.close()
        self._process = None

    def _end_in_words(self) -> str:
        return f"signal {-self._code}" if self._code < 0 else f"exit code {self._code}"


class OwnRoot(GuidedRoot):
    """A root agent that the user's function guides, in its process."""

    may_take_long = True

    def close(self) -> None:
        """End the function's process, and all that it has started."""
        assert isinstance(self.guide, OwnProcess)
        self.guide.end()


def root_agent(text: str, *, state: RootState, at_s: float) -> OwnRoot:
    """Return the root agent that a packed function guides."""
    return OwnRoot(state=state, at_s=at_s, decide=OwnProcess(text))


def main() -> None:
    """Read the function, and answer until the agent is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = GuideChannel(socket.socket(fileno=int(sys.argv[1])))
    decide: Decide | None = None
    while (message := channel.receive()) is not None:
        if isinstance(message, Guide):
            decide = loaded(message.packed)
            channel.send(GuideAnswer(actions=(), kept="{}"))
        elif decide is not None and isinstance(message, GuideQuestion):
            channel.send(_answer(decide, message))


def _answer(decide: Decide, asked: GuideQuestion) -> GuideAnswer:
    kept: dict[str, object] = json.loads(asked.kept)
    actions: tuple[Action, ...] = ()
    error = ""
    try:
        actions = as_actions(decide(kept, asked.event, asked.cluster))
        return GuideAnswer(actions=actions, kept=as_text(kept))
    except GuideError as told:
        error = str(told)
    except BaseException as thrown:  # noqa: BLE001 - whatever it raises
        error = raised(thrown)
    return GuideAnswer(actions=(), kept="{}", error=error)


if __name__ == "__main__":
    main()
