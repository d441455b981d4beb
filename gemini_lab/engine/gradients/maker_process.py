"""A version maker: makes versions of another rank's shard, of the gradients that its owner sends.

Run as `python -m gemini_lab.engine.gradients.maker_process CHANNEL SLAB ROOM KIND` with descriptors
of the worker's socket, its slab and the room for differences, and the class of the optimizer. It
stands beside its worker, so that neither training's interpreter nor the agent's heartbeats wait for
it, and dies with it. It writes into the buffer of a version that is not whole, and nowhere else.
"""

import mmap
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import torch

from gemini_lab.engine.gradients.repeater import Repeater, rehearse
from gemini_lab.engine.gradients.update_recorder import Step
from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab.errors import MessageError
from gemini_lab.memory.slab_form import Bytes, chunk_digest, count_chunks
from gemini_lab.recovery.messages import MakerReady, MakeVersion, Message, Refused, VersionMade
from gemini_lab.wire.local import LocalChannel

_SEALERS: Final = 4


def make_version(
    order: MakeVersion, memory: Bytes, difference: Bytes, repeater: Repeater
) -> VersionMade:
    """Do what is asked.

    Args:
        order: Of which version, and where to.
        memory: The slab's.
        difference: What made the version.
        repeater: Makes the shard's steps.
    """
    base = memory[order.base_bytes : order.base_bytes + order.payload_bytes]
    made = memory[order.into_bytes : order.into_bytes + order.payload_bytes]
    torch.from_numpy(made).copy_(torch.from_numpy(base))
    repeater.repeat(Step.decode(difference), made, difference)
    return VersionMade(digests=_digests(made, order.chunk_bytes))


def _digests(payload: Bytes, chunk_bytes: int) -> list[int]:
    """The checksums of its chunks."""
    starts = [n * chunk_bytes for n in range(count_chunks(payload.nbytes, chunk_bytes))]
    with ThreadPoolExecutor(_SEALERS) as sealers:
        chunks = (payload[start : start + chunk_bytes] for start in starts)
        return list(sealers.map(chunk_digest, chunks))


def _required(message: Message) -> MakeVersion:
    if not isinstance(message, MakeVersion):
        raise MessageError(f"no version maker does {type(message).__name__}")
    return message


def _mapped(fd: int) -> Bytes:
    return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)


def main() -> None:
    """Make versions until the worker is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle
    channel_fd, slab_fd, room_fd = (int(text) for text in sys.argv[1:4])
    channel = LocalChannel.adopt(channel_fd)
    memory, difference = _mapped(slab_fd), _mapped(room_fd)
    rehearse(sys.argv[4])
    repeater = Repeater()
    channel.send(MakerReady())
    while (heard := channel.receive()) is not None:
        try:
            channel.send(make_version(_required(heard[0]), memory, difference, repeater))
        except Exception as error:  # noqa: BLE001 - the process's edge: told, then it goes on
            channel.send(Refused.of(error))


if __name__ == "__main__":
    main()
