"""Keeps versions in the place of a lab, for tests that train without one."""

import numpy as np
import torch

from gemini_lab.engine.heartbeat import Heartbeat
from gemini_lab.engine.iteration_log import IterationLog
from gemini_lab.engine.live import LiveProtection
from gemini_lab.engine.rank_agreement import gather
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.shard.lineage import NO_LINEAGE
from gemini_lab.transfer.version import moment_of, require_unwritten


def protect(state, keeper, *, log=None, **more):
    """As in a lab, from here on."""
    protection = LiveProtection(
        state,
        keeper,
        log or IterationLog(lambda _: None),
        Heartbeat(lambda _: None, rank=state.layout.rank, epoch=1),
        lineage=NO_LINEAGE,
        **more,
    )
    state.framework.hook(protection)
    return protection


class Keeper:
    """Keeps some versions, read as late as traffic may: when the next update waits for them."""

    is_hold_agreed = False  # no node ever leaves
    is_withheld = False
    agreed_back = (0, 0)  # nor does anybody ask to go back

    def __init__(self, wanted):
        self.wanted = wanted
        self.newest = None
        self.outgoing = None
        self.under_way = None
        self.payloads = {}

    def send(self, version):
        self.newest = version.version
        self.under_way = (version, moment_of(version))
        if version.version in self.wanted:
            self.outgoing = version

    def wait(self):
        if self.under_way is not None:
            (version, moment), self.under_way = self.under_way, None
            payload = bytearray(version.payload_bytes)
            for offset, tensor in version.pieces:
                raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
                payload[offset : offset + len(raw)] = raw
            require_unwritten(version, moment, np.frombuffer(payload, np.uint8))
            if self.outgoing is not None:
                self.payloads[version.version], self.outgoing = payload, None
        return 0.0

    def release(self):
        """What is kept here exists at once."""

    def end_training(self):
        self.wait()

    def end_iteration(self, _version):
        return True

    def go_back(self, version):
        self.newest = version

    def is_sent(self, version):
        return version == self.newest

    def finish(self):
        self.wait()


class SlabKeeper(Keeper):
    """Keeps this rank's newest versions in a slab, as its node's agent does, to go back to."""

    def __init__(self, *, buffers):
        super().__init__(())
        self.buffers = buffers
        self.slab = None

    def lay_out(self, layout):
        slot = SlotSpec(layout.rank, layout.payload_bytes)
        self.slab = Slab.create([slot], chunk_bytes=4096, buffers=self.buffers)

    def send(self, version):
        super().send(version)
        self.outgoing = version
        self.lineages = {version.version: version.lineage}

    def wait(self):
        super().wait()
        for number, payload in self.payloads.items():
            lineage = self.lineages[number]
            buffer = self.slab.begin(self.slab.slots[0].shard, number, lineage)
            buffer.data[:] = memoryview(payload)
            for index in range(buffer.chunk_count(len(payload))):
                buffer.seal_chunk(index)
            buffer.commit(len(payload))
        self.payloads.clear()
        return 0.0

    def exchange(self, values):
        return gather(values)
