"""Messages and descriptors between an agent and the processes of its node."""

import fcntl
import resource
import threading

import pytest
from made import made

from gemini_lab.errors import MessageError
from gemini_lab.recovery.messages import BulkReady, OutputSaid, encode
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


def test_what_is_too_large_is_refused_where_it_is_said_and_not_read_to_its_end(capfd):
    large = made(OutputSaid, lines=["x" * 1000] * 300)
    ours, theirs = LocalChannel.pair(most_bytes=200_000)
    try:
        with pytest.raises(MessageError, match=r"a output_said of .* larger than a message may be"):
            theirs.send(large)
        theirs.send(BulkReady())
        assert ours.receive() == (BulkReady(), [])
        sender = threading.Thread(target=theirs._socket.sendall, args=(b"0" + encode(large),))
        sender.start()
        assert ours.receive() is None  # as if the other end were gone
        ours.close()
        sender.join()
    except BrokenPipeError:
        pass
    finally:
        theirs.close()
    assert "a output_said of" in capfd.readouterr().err
