"""Messages and descriptors between an agent and the processes of its node."""

import fcntl
import resource

from gemini_lab.recovery.messages import BulkReady
from gemini_lab.wire.local import LocalChannel

HIGH = 1500
"""A process of a thousand ranks has as many connections, and `select` knows 1,024 descriptors."""


def test_a_channel_is_waited_for_whatever_the_number_of_its_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * HIGH), hard))
    low, theirs = LocalChannel.pair()
    ours = LocalChannel.adopt(fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH))
    try:
        assert ours.fileno() >= HIGH
        assert not ours.waits(0.0)
        theirs.send(BulkReady())
        assert ours.waits(20.0)
        assert ours.receive() == (BulkReady(), [])
    finally:
        for channel in (low, ours, theirs):
            channel.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
