"""Keeps versions in the place of a lab, for tests that train without one."""

import torch

from gemini_lab.transfer.version import require_unwritten, write_counts


class Keeper:
    """Keeps some versions, read as late as traffic may: when the next update waits for them."""

    is_hold_agreed = False  # no node ever leaves

    def __init__(self, wanted):
        self.wanted = wanted
        self.newest = None
        self.outgoing = None
        self.under_way = None
        self.payloads = {}

    def send(self, version):
        self.newest = version.version
        self.under_way = (version, write_counts(version))
        if version.version in self.wanted:
            self.outgoing = version

    def wait(self):
        if self.under_way is not None:
            require_unwritten(*self.under_way)
            self.under_way = None
        if self.outgoing is not None:
            version, self.outgoing = self.outgoing, None
            payload = self.payloads[version.version] = bytearray(version.payload_bytes)
            for offset, tensor in version.pieces:
                raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
                payload[offset : offset + len(raw)] = raw
        return 0.0

    def end_training(self):
        self.wait()

    def end_iteration(self, _version):
        return True

    def is_sent(self, version):
        return version == self.newest

    def close(self):
        self.wait()
