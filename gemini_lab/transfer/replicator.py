"""The sender of a worker's versions: each goes to the slab and to its replicas beside training."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

import numpy as np
import torch

from gemini_lab.errors import ConfigError, IntegrityError
from gemini_lab.memory.slab import Slab, WriteBuffer
from gemini_lab.memory.slab_form import Words
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab.transfer.differences import Differences
from gemini_lab.transfer.local_copy import LocalCopy
from gemini_lab.transfer.own_thread import OwnThread
from gemini_lab.transfer.route import BackgroundRoute, Route
from gemini_lab.transfer.schedule_controller import ScheduleController
from gemini_lab.transfer.version import (
    NOWHERE,
    Asked,
    Moment,
    MovedVersion,
    OutgoingVersion,
    Peers,
    SealPlace,
    SentBytes,
    VersionBuffers,
    Wire,
    moment_of,
    require_together,
    require_unwritten,
)

PLACE: Final = len(NOWHERE)
"""So many numbers come first in what ranks tell with a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Carried:
    """A version's bytes are where they are to be; nothing of it is sealed yet."""

    sent: tuple[SentBytes, ...]  # to whom, and how many
    # The checksums of each received shard, by rank, as its owner computed them.
    tables: Mapping[int, Words]
    # Received shards that were made here and came out different, each with why.
    differing: Mapping[int, str] = field(default_factory=dict)
    is_full: bool = True  # whether shards were sent, and not what made them


class Replicator:
    """Sends the versions of one rank by a scheme, one at a time, on a thread of its own.

    Every rank sends the same versions in the same order. A version is done here only when it is
    whole on all ranks (the last act is a barrier), so no rank overwrites a buffer of version v-1
    before every holder has version v.

    Training's thread calls every method; the replicator's thread, which begins with the first
    version, calls `on_moved` and `mark`. `assembly.open_replicator` makes one from the settings.

    Attributes:
        agreed_back: The newest order to go back that the ranks told: its number, and how.
        is_hold_agreed: Whether a rank was asked to stop, by what was told with the versions that
            were waited for: all ranks learn that with the same version.
        controller: Says which versions leave and how, under the schemes that use idle spans.
    """

    def __init__(
        self,
        wire: Wire,
        peers: Peers,
        slab: Slab,
        *,
        on_moved: Callable[[MovedVersion], None],  # called when a version is whole everywhere
        # Gives the number that this rank tells with each version; see `take_marks`.
        mark: Callable[[], int] = lambda: 0,
        # Gives the requests of this rank's agent, told with each version too.
        asked: Callable[[], Asked] = Asked,
        # Sends what made a version instead of the version, if it can.
        differences: Differences | None = None,
        scheme: str = "background",
        hook: CommHook | None = None,  # watches training's collectives, if anything needs it to
        # Called with the version and the record of an iteration that has ended, and the time, if
        # its collectives are logged.
        on_iteration: Callable[[int, IterationRecord, float], None] | None = None,
    ) -> None:
        self._scheme = scheme
        self._hook, self._on_iteration = hook, on_iteration
        self.controller: ScheduleController | None = None
        self._newest_sent: int | None = None
        self._wire = wire
        self._differences = differences
        self._peers = peers
        self._slab = slab
        self._on_moved = on_moved
        self._mark, self._asked = mark, asked
        self.is_hold_agreed = False
        self.agreed_back = (0, 0)
        self._marks: tuple[int, ...] = ()
        self._in_background = BackgroundRoute(wire, peers)
        self._route: Route = self._in_background
        self._thread = OwnThread(
            "gemini-replicator",
            begin=(lambda: None) if wire.lanes is None else wire.lanes.enter_thread,
        )
        self._under_way: Future[None] | None = None
        self._carried: Future[None] = Future()  # all bytes of it are where they are to be
        self._let_exist: threading.Event | None = None  # where it is withheld
        self._starting = threading.Lock()
        self._is_stopped = False
        self._stopped: Future[None] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- training's iterations ---------------------------------------------------------------------

    @property
    def collectives(self) -> int:
        """Return a number that every collective of training changes, if they are watched."""
        return 0 if self._hook is None else self._hook.calls

    def end_iteration(self, version: int) -> bool:
        """Go on to the next iteration, maybe by another plan; return whether to send `version`."""
        record = None if self._hook is None else self._hook.begin_iteration()
        ended_s = time.time()
        if self.controller is None:
            is_to_be_sent = self._scheme != "none"
        else:
            is_to_be_sent = self.controller.end_iteration(version, record)
        if self._on_iteration is not None and record is not None:
            self._on_iteration(version, record, ended_s)
        return is_to_be_sent

    def apart(self) -> AbstractContextManager[None]:
        """Leave what training communicates inside the block out of its iteration."""
        return nullcontext() if self._hook is None else self._hook.apart()

    def go_back(self, version: int) -> None:
        """Begin an iteration after `version`, which is whole; called after `wait`."""
        self._newest_sent = version
        if self._hook is not None:
            self._hook.begin_iteration()
        if self.controller is not None:
            self.controller.go_back(version)

    def end_training(self) -> None:
        """Send later versions in the background; all ranks call it, once.

        There are no more spans to use, and the script may have destroyed its process groups, the
        schemes' NCCL group among them.
        """
        self.wait()
        if self._hook is not None:
            self._hook.expect(None)
        self.follow(None)

    def detach(self) -> None:
        """Leave training's collectives to the next replicator, after `stop`."""
        if self._hook is not None:
            self._hook.detach()
        self.close()

    def finish(self) -> None:
        """Wait until the last version is whole on every rank, and end the thread."""
        self.wait()
        self.close()

    # -- versions ----------------------------------------------------------------------------------

    def follow(self, route: Route | None) -> None:
        """Send chunks by another route from the next version on; all ranks do it together.

        The replicator closes it in the end; without one, chunks leave in the background.
        """
        if self._under_way is not None and not self._under_way.done():
            raise RuntimeError("a version is under way on the route; wait for it before another")
        self._route.close()
        self._route = BackgroundRoute(self._wire, self._peers) if route is None else route

    def send(self, version: OutgoingVersion) -> None:
        """Begin to send a version; its tensors must not change until `wait` returns.

        Under `"blocking"`, return when it is whole on every rank.
        """
        self._await()
        self._newest_sent = version.version
        with self._starting:
            if not self._is_stopped:
                self._begin(version)
        if self._scheme == "blocking":
            self._await()

    def note_whole(self, version: int) -> None:
        """Count a version as sent: a recovery brought it to all its holders."""
        self._newest_sent = version

    def is_sent(self, version: int) -> bool:
        """Return whether this version was sent, or none ever is."""
        return self._scheme == "none" or self._newest_sent == version

    def _begin(self, version: OutgoingVersion) -> None:
        rank, lanes = self._peers.rank, self._wire.lanes
        if lanes is not None and self._under_way is None:
            lanes.require_here(tensor for _, tensor in version.pieces)
        buffers = VersionBuffers(
            own=self._slab.begin(rank, version.version, version.lineage),
            incoming={
                source: self._slab.begin(source, version.version, version.lineage)
                for source in self._peers.receives_from
            },
        )
        moment = moment_of(version)
        if lanes is not None:
            # The local lane copies the state as training's thread has left it, not an older one.
            lanes.follow("local", lanes.mark("training"))
        self._route.begin(version, buffers)
        self._carried = Future()
        self._let_exist = threading.Event() if version.is_withheld else None
        move = partial(self._move, version, buffers, moment, self._carried, self._let_exist)
        self._under_way = self._thread.submit(move)
        self._under_way.add_done_callback(partial(_pass_on_error, carried=self._carried))

    @property
    def is_withheld(self) -> bool:
        return self._let_exist is not None and not self._let_exist.is_set()

    def release(self) -> None:
        """Release the withheld version, once all ranks do so."""
        if self._let_exist is not None:
            self._let_exist.set()

    def wait(self) -> float:
        """Open all spans, because training is at its update; wait as `_await` does."""
        if self._hook is not None:
            self._hook.begin_update()
        return self._await()

    def _await(self) -> float:
        """Return the seconds until the version under way is whole on every rank.

        One that is withheld is waited for until its bytes are where they are to be.

        Raises:
            ConfigError: Ranks are not where the others are.
            IntegrityError: The version is not of one moment; nothing of it was kept.
            RuntimeError: The transfer broke, as it does when a peer dies.
        """
        started_s = time.perf_counter()
        error = self._error()
        if isinstance(error, ConfigError | IntegrityError):
            raise error
        if error is not None:
            raise RuntimeError(
                f"sending the checkpoint failed ({error}); a peer may be gone"
            ) from error
        return time.perf_counter() - started_s

    def _error(self) -> BaseException | None:
        """Return the error of the version under way, once it is over or broken off."""
        if self._under_way is None:
            return None
        awaited = self._carried if self.is_withheld else self._under_way
        # `_stopped` wakes a training thread that waits for a version which was broken off.
        over = futures.wait({awaited, self._stopped}, return_when=futures.FIRST_COMPLETED).done
        return (awaited if awaited in over else self._stopped).exception()

    def exchange(self, values: Sequence[int]) -> list[list[int]]:
        """Return every rank's `values` (equally many), in rank order; all ranks call it together.

        Only between an update and the version that is sent of it, or after `wait`.
        """
        self._await()
        return self._wire.group.all_gather(values)

    @property
    def wants_differences(self) -> bool:
        return self._differences is not None and self._differences.are_wanted

    def take_marks(self) -> tuple[int, ...]:
        """Return every rank's mark, in rank order, as told with the newest whole version.

        They are given once: empty when no version became whole since the last call.
        """
        marks, self._marks = self._marks, ()
        return marks

    def stop(self, within_s: float) -> bool:
        """Break off what is under way, and begin nothing more; any thread may call it.

        The replicator's thread may go on waiting for what will not come: see `CheckpointGroup.cut`.
        Another replicator follows.

        Returns:
            Whether nothing of this writes to the slab any more, by that time.
        """
        with self._starting:
            # Under the lock, so that `send` either begins before this, and is cut, or not at all.
            is_first = not self._is_stopped
            self._is_stopped = True
        is_over = self._wire.group.cut(within_s)
        self.release()  # what is cut goes no further
        if is_first:
            self._stopped.set_exception(RuntimeError("the version was broken off"))
        return is_over

    def close(self) -> None:
        """End the thread, once what is under way is over; errors of that are not raised."""
        # A thread that was cut may wait for Gloo's time-out: see `stop`.
        self._thread.end(wait=not self._is_stopped)  # it may wait for long: see `stop`
        self._route.close()
        if self._differences is not None:
            self._differences.close()

    # -- the replicator's thread -------------------------------------------------------------------

    def _move(
        self,
        version: OutgoingVersion,
        buffers: VersionBuffers[WriteBuffer],
        moment: Moment,
        is_carried: Future[None],
        let_exist: threading.Event | None,
    ) -> None:
        """Make a version whole on all its holders, and say so."""
        group = self._wire.group
        with group.used():
            started_s = time.perf_counter()
            local = LocalCopy(
                version, buffers.own, lanes=self._wire.lanes, may_go_on=group.require_whole
            )
            with closing(local):
                local.begin()
                carried = self._carry(version, local, buffers, moment)
            carried_s = time.perf_counter()
            is_carried.set_result(None)
            if let_exist is not None:
                with group.waiting():
                    let_exist.wait()
                # No rank may seal before all can: else some have a version that others never get.
                group.meet()
            group.require_whole()
            started_s += time.perf_counter() - carried_s  # no time of the version's own
            self._seal(version, buffers, carried.tables)
            whole_s = time.perf_counter() - started_s
            ended = self._meet(version, carried)
            self._on_moved(
                MovedVersion(
                    version=version.version,
                    sent_bytes=sum(one.sent_bytes for one in carried.sent),
                    local_s=local.elapsed_s,
                    whole_s=whole_s,
                    duration_s=time.perf_counter() - started_s,
                    sent=carried.sent,
                    form="copy" if carried.is_full else "gradients",
                    differing=carried.differing,
                    ended=ended,
                )
            )

    def _carry(
        self,
        version: OutgoingVersion,
        local: LocalCopy,
        buffers: VersionBuffers[WriteBuffer],
        moment: Moment,
    ) -> _Carried:
        """Bring the shards across: themselves, or where all ranks can, what made them."""
        differences = self._differences
        if differences is None or not differences.agree(version):
            # The spans of a profile are planned for what is sent most, differences if there are.
            route = self._route if differences is None else self._in_background
            route.wait_for_first()
            sent = route.exchange(local.up_to, buffers)
            return _Carried(sent=sent, tables=self._digests(version, local, buffers, moment))
        self._route.wait_for_first()
        sent = differences.exchange(self._route, version, buffers.incoming)
        tables = self._digests(version, local, buffers, moment)
        differing, again = differences.settle(buffers, tables)
        return _Carried(sent=sent + again, tables=tables, differing=differing, is_full=False)

    def _seal(
        self,
        version: OutgoingVersion,
        buffers: VersionBuffers[WriteBuffer],
        tables: Mapping[int, Words],
    ) -> None:
        for rank, buffer in buffers.incoming.items():
            for index, digest in enumerate(tables[rank]):
                buffer.seal_chunk(index, int(digest))
            buffer.commit(buffer.data.nbytes)
        buffers.own.commit(version.payload_bytes)

    def _digests(
        self,
        version: OutgoingVersion,
        local: LocalCopy,
        buffers: VersionBuffers[WriteBuffer],
        moment: Moment,
    ) -> dict[int, Words]:
        local.up_to(version.payload_bytes)
        require_unwritten(version, moment, buffers.own.data)
        return self._exchange_digests(version, buffers)

    def _meet(self, version: OutgoingVersion, carried: _Carried) -> str:
        """Exchange what goes along with a version that is whole.

        It is also a barrier: nobody begins to overwrite version v-1 before all have version v. It
        returns why shards are sent in full from here on, if they were not before.
        """
        differences = self._differences
        ours = [*version.place, self._mark(), *self._asked()]
        ours += [] if differences is None else differences.told(carried.differing)
        told = self._wire.group.all_gather(ours)
        require_together([SealPlace(*row[:PLACE]) for row in told], version.version)
        told = [row[PLACE:] for row in told]
        self._marks = tuple(mark for mark, *_ in told)
        self.is_hold_agreed |= any(wants for _, wants, *_ in told)
        self.agreed_back = max((number, how) for _, _, number, how, *_ in told)
        if differences is None:
            return ""
        numbers = [rest for _, _, _, _, *rest in told]
        return differences.note(version, numbers, is_full=carried.is_full)

    def _exchange_digests(
        self, version: OutgoingVersion, buffers: VersionBuffers[WriteBuffer]
    ) -> dict[int, Words]:
        """Return the checksums that the owners of received shards computed of their chunks.

        Raises:
            IntegrityError: A shard is of another version; nothing of either is sealed.
        """
        group, words = self._wire.group, np.array([version.version], np.uint64)
        ours = torch.from_numpy(np.concatenate([words, buffers.own.digests]).view(np.int64))
        tables = {
            rank: np.zeros(1 + buffer.chunk_count(), np.int64)
            for rank, buffer in buffers.incoming.items()
        }
        works = [group.isend(ours, rank) for rank in self._peers.sends_to]
        # All begun before any is waited for: two ranks may be each other's peers.
        works += [group.irecv(torch.from_numpy(room), rank) for rank, room in tables.items()]
        group.finish(works)
        for rank, (number, *_) in tables.items():
            if number != version.version:
                raise IntegrityError(
                    f"rank {rank} sends version {number} while version {version.version} is due; "
                    "all ranks must call engine.step() equally often"
                )
        return {rank: table[1:].view(np.uint64) for rank, table in tables.items()}


def _pass_on_error(moved: Future[None], carried: Future[None]) -> None:
    """End the wait for a version's bytes, if its move has failed before."""
    if (error := moved.exception()) is not None and not carried.done():
        carried.set_exception(error)
