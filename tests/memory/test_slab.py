"""The memory tier's promises: one whole version always exists, and no wrong bit loads silently."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.errors import CapacityError, ConfigError, IntegrityError
from gemini_lab.memory import slab as slab_module
from gemini_lab.memory import slab_form
from gemini_lab.memory.free import FreeMemory, free_memory, too_little_for
from gemini_lab.memory.slab import Slab, SlotSpec, chunk_digest, flip_bit
from gemini_lab.memory.slab_form import slab_bytes
from gemini_lab.shard.lineage import NO_LINEAGE

CHUNK = 1000
SIZE = 3500  # four chunks, the last one short


def payload(version: int, size: int = SIZE) -> bytes:
    return random.Random(version).randbytes(size)


def write(slab: Slab, shard: int, version: int, size: int = SIZE) -> None:
    buffer = slab.begin(shard, version)
    source = np.frombuffer(payload(version, size), np.uint8)
    for index in range(buffer.chunk_count(size)):
        chunk = buffer.chunk(index)
        part = source[index * CHUNK : index * CHUNK + chunk.nbytes]
        chunk[: part.nbytes] = part
        buffer.seal_chunk(index)
    buffer.commit(size)


@pytest.fixture
def slab():
    made = Slab.create([SlotSpec(0, SIZE), SlotSpec(7, SIZE)], chunk_bytes=CHUNK)
    yield made
    made.close()


def versions(slab: Slab, shard: int) -> list[int]:
    return sorted(copy.version for copy in slab.copies() if copy.shard == shard)


def test_a_committed_version_is_read_back(slab):
    assert slab.copies() == []
    write(slab, 7, 1)
    [copy] = slab.copies()
    assert (copy.shard, copy.version, copy.payload_bytes) == (7, 1, SIZE)
    assert bytes(slab.read(7, 1).data) == payload(1)
    assert slab.read(7, 1).bad_chunks() == []
    assert slab.snapshot(7, 1) == payload(1)


def test_whoever_has_the_descriptor_can_attach(slab):
    write(slab, 0, 3)
    other = Slab.attach(slab.fd)
    assert other.slots == slab.slots
    assert other.chunk_bytes == CHUNK
    assert other.snapshot(0, 3) == payload(3)
    write(other, 0, 4)
    assert versions(slab, 0) == [3, 4]
    other.close()


def test_a_slab_outlives_its_first_descriptor(slab):
    write(slab, 0, 3)
    other = Slab.attach(slab.fd)
    slab.close()
    assert other.snapshot(0, 3) == payload(3)
    other.close()


def test_a_new_version_replaces_the_older_one(slab):
    for version in range(1, 6):
        write(slab, 0, version)
        assert versions(slab, 0) == [v for v in (version - 1, version) if v]


def test_a_version_written_again_after_a_fall_back_replaces_itself(slab):
    write(slab, 0, 10)
    write(slab, 0, 11)
    slab.begin(0, 11)
    assert versions(slab, 0) == [10]


def test_a_discarded_version_does_not_exist(slab):
    write(slab, 0, 10)
    write(slab, 0, 11)
    slab.discard(0, 11)
    assert versions(slab, 0) == [10]
    with pytest.raises(IntegrityError, match=r"version 11 of shard 0 .*complete: \[10\]"):
        slab.read(0, 11)


@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_the_newest_versions_stay_while_the_next_one_is_written(buffers):
    slab = Slab.create([SlotSpec(0, SIZE), SlotSpec(7, SIZE)], chunk_bytes=CHUNK, buffers=buffers)
    for version in range(1, 9):
        slab.begin(0, version)
        assert versions(slab, 0) == [*range(max(1, version - buffers + 1), version)]
        write(slab, 0, version)
    assert versions(slab, 0) == [*range(9 - buffers, 9)]
    slab.close()


def test_a_pinned_version_stays_while_newer_ones_come_and_go():
    slab = Slab.create([SlotSpec(0, SIZE)], chunk_bytes=CHUNK, buffers=3)
    slab.pinned = (4, NO_LINEAGE)
    for version in range(1, 9):
        write(slab, 0, version)
    assert versions(slab, 0) == [4, 7, 8]
    slab.pinned = (4, replace(NO_LINEAGE, epoch=1))  # of another history
    write(slab, 0, 9)
    assert versions(slab, 0) == [7, 8, 9]
    slab.close()


def test_whoever_attaches_finds_as_many_buffers_as_there_are():
    slab = Slab.create([SlotSpec(0, SIZE)], chunk_bytes=CHUNK, buffers=4)
    other = Slab.attach(slab.fd)
    for version in (1, 2, 3, 4):
        write(slab, 0, version)
    assert other.buffers == 4
    assert versions(other, 0) == [1, 2, 3, 4]
    assert all(other.snapshot(0, version) == payload(version) for version in (1, 2, 3, 4))
    slab.close()
    other.close()


def test_a_version_with_an_unsealed_chunk_cannot_be_committed(slab):
    buffer = slab.begin(0, 1)
    for index in (0, 1, 3):
        buffer.seal_chunk(index)
    with pytest.raises(IntegrityError, match=r"chunks \[2\] are not sealed"):
        buffer.commit(SIZE)
    assert slab.copies() == []


def test_a_payload_may_be_shorter_than_its_room(slab):
    write(slab, 0, 1, size=2100)
    assert slab.snapshot(0, 1) == payload(1, 2100)
    assert slab.read(0, 1).data.nbytes == 2100


def test_a_senders_digest_is_checked_on_reading(slab):
    buffer = slab.begin(0, 1)
    buffer.data[:] = 5
    for index in range(4):
        sent = bytes([5 if index != 2 else 6]) * buffer.chunk(index).nbytes
        buffer.seal_chunk(index, chunk_digest(sent))
    buffer.commit(SIZE)
    assert slab.read(0, 1).bad_chunks() == [2]
    with pytest.raises(IntegrityError, match="1 of 4 chunks"):
        slab.snapshot(0, 1)


def test_a_reader_knows_that_its_version_is_being_overwritten(slab):
    write(slab, 0, 1)
    write(slab, 0, 2)
    reader = slab.read(0, 1)
    assert reader.is_current()
    slab.begin(0, 3)
    assert not reader.is_current()


def test_copies_with_one_digest_hold_the_same_bytes(slab):
    write(slab, 0, 1)
    write(slab, 7, 1)
    one, two = slab.copies()
    assert one.digest == two.digest
    write(slab, 7, 2)
    assert len({copy.digest for copy in slab.copies()}) == 2


def in_child(work) -> int:
    """Run `work` in a forked child; its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def kill_at_line(number: int) -> None:
    """Have this process killed just before it runs the `number`-th line of the slab's code."""
    left = number

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in {slab_module.__file__, slab_form.__file__}:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def test_a_writer_killed_at_any_line_leaves_a_whole_version(slab):
    write(slab, 0, 1)
    seen = set()
    for line in range(1, 1000):
        # versions 1 and 2 are there, 3 is being written when the writer dies
        write(slab, 0, 2)

        def writer(line=line):
            kill_at_line(line)
            write(slab, 0, 3)

        status = in_child(writer)
        whole = versions(slab, 0)
        assert whole in ([1, 2], [2], [2, 3])
        for version in whole:
            assert slab.snapshot(0, version) == payload(version)
        seen.add(tuple(whole))
        if 3 in whole:
            slab.discard(0, 3)
        if 1 not in versions(slab, 0):
            slab.discard(0, 2)
            write(slab, 0, 1)
        if os.WIFEXITED(status):
            break
    else:
        pytest.fail("the writer never finished")
    assert seen == {(1, 2), (2,), (2, 3)}


def test_a_writer_killed_at_any_moment_leaves_a_whole_version(slab):
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    write(slab, 0, 1)
    for _ in range(15):
        start = versions(slab, 0)[-1] + 1
        pid = os.fork()
        if pid == 0:
            for version in range(start, 10**6):
                write(slab, 0, version)
        signal.sigtimedwait([], moments.uniform(0.001, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        whole = versions(slab, 0)
        assert whole
        for version in whole:
            assert slab.snapshot(0, version) == payload(version)


@pytest.mark.parametrize("seed", range(100))
def test_a_flipped_bit_anywhere_never_loads_silently(slab, seed):
    write(slab, 0, 1)
    write(slab, 0, 2)
    where = random.Random(seed).randrange(slab.memory.nbytes)
    slab.memory[where] ^= np.uint8(1 << seed % 8)
    try:
        reader = Slab.attach(slab.fd)
    except IntegrityError:
        return
    for copy in reader.copies():
        try:
            loaded = reader.snapshot(copy.shard, copy.version)
        except IntegrityError:
            continue
        assert loaded == payload(copy.version)
    reader.close()


@pytest.mark.parametrize("seed", range(100))
def test_a_flipped_bit_of_payload_or_checksums_is_found(slab, seed):
    write(slab, 0, 1)
    draw = random.Random(seed)
    if draw.random() < 0.7:
        flip_bit(slab, 0, 1, draw.randrange(SIZE), draw.randrange(8))
    else:
        digests = slab.read(0, 1).digests
        digests[draw.randrange(len(digests))] ^= np.uint64(1 << draw.randrange(64))
    assert slab.read(0, 1).bad_chunks()
    with pytest.raises(IntegrityError):
        slab.snapshot(0, 1)


def test_a_flipped_bit_of_a_header_makes_its_version_not_exist(slab):
    write(slab, 0, 1)
    header = slab.read(0, 1)._buffer.header
    for word in range(len(header)):
        for bit in range(64):
            header[word] ^= np.uint64(1 << bit)
            assert slab.copies() == []
            header[word] ^= np.uint64(1 << bit)
    assert versions(slab, 0) == [1]


def test_something_else_is_no_slab(tmp_path):
    path = tmp_path / "file"
    for size in (0, 100, 8192):
        path.write_bytes(bytes(size))
        with path.open("r+b") as file, pytest.raises(IntegrityError, match="no slab"):
            Slab.attach(file.fileno())


def test_a_slab_larger_than_memory_is_refused_with_the_numbers():
    with pytest.raises(CapacityError, match=r"TiB of memory, but .* left; use fewer replicas"):
        Slab.create([SlotSpec(0, 2**44)], chunk_bytes=2**20)


def test_wrong_sizes_are_refused():
    with pytest.raises(ConfigError, match="each shard once"):
        Slab.create([SlotSpec(0, 10), SlotSpec(0, 10)], chunk_bytes=10)
    with pytest.raises(ConfigError, match="above zero"):
        Slab.create([SlotSpec(0, 10)], chunk_bytes=0)


def test_an_unknown_shard_is_refused_with_the_known_ones(slab):
    with pytest.raises(ConfigError, match=r"no shard 3, but \[0, 7\]"):
        slab.begin(3, 1)


def test_the_memory_is_really_taken(slab):
    wanted = slab_bytes(slab.slots, chunk_bytes=CHUNK)
    assert os.fstat(slab.fd).st_blocks * 512 >= wanted == slab.memory.nbytes


def test_without_memfd_an_unlinked_file_does_the_same(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    slab = Slab.create([SlotSpec(0, SIZE)], chunk_bytes=CHUNK)
    write(slab, 0, 1)
    assert os.fstat(slab.fd).st_nlink == 0
    assert Slab.attach(slab.fd).snapshot(0, 1) == payload(1)
    slab.close()


def test_an_agent_needs_no_torch_for_its_slab():
    program = (
        "import sys, gemini_lab.memory.slab, gemini_lab.storage.persistent;"
        "sys.exit(sorted({'torch', 'deepspeed'} & set(sys.modules)) or None)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=4), chunk_bytes=st.integers(1, 6000)
)
@settings(max_examples=30, deadline=None)
def test_slots_do_not_overlap_for_any_sizes(sizes, chunk_bytes):
    slab = Slab.create([SlotSpec(*slot) for slot in enumerate(sizes)], chunk_bytes=chunk_bytes)
    for version in (1, 2):
        for shard, size in enumerate(sizes):
            buffer = slab.begin(shard, version)
            buffer.data[:] = np.frombuffer(payload(version * 100 + shard, size), np.uint8)
            for index in range(buffer.chunk_count(size)):
                buffer.seal_chunk(index)
            buffer.commit(size)
    for copy in slab.copies():
        expected = payload(copy.version * 100 + copy.shard, copy.payload_bytes)
        assert slab.snapshot(copy.shard, copy.version) == expected
    assert len(slab.copies()) == 2 * len(sizes)
    slab.close()


def control_group(folder: Path, limit: str, usage: int, inactive: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_the_tightest_control_group_bounds_free_memory(tmp_path):
    control_group(tmp_path / "job", "5000000", 4000000, 1000)
    control_group(tmp_path / "job" / "step", "max", 100, 0)
    membership = tmp_path / "membership"
    membership.write_text("0::/job/step\n")
    free = free_memory(cgroups=tmp_path, membership=membership)
    assert free.size_bytes == 1_001_000
    assert free.bound_by.endswith("job")


def test_without_control_groups_the_machine_bounds_free_memory(tmp_path):
    free = free_memory(cgroups=tmp_path, membership=tmp_path / "nothing")
    assert free.bound_by == "the machine"
    assert free.size_bytes > 0


def test_a_lab_that_will_not_fit_is_told_of_before_it_starts():
    shared = FreeMemory(size_bytes=1 << 30, bound_by="the machine")
    assert too_little_for(2, shared) == ""
    said = too_little_for(5, shared)
    assert "5 nodes" in said
    assert "the machine has 1.0 GiB left" in said
