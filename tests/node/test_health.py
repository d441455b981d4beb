"""The faults of a machine: what its kernel's files and NVIDIA's driver tell becomes findings."""

import subprocess
import sys
import threading
import time

import pytest
import torch

from gemini_lab.node import health
from gemini_lab.node.gpu_speed import product_tflops
from gemini_lab.node.health import (
    FAILED,
    FirstLook,
    GpuHealth,
    GpuSpeed,
    KernelHealth,
    MachineHealth,
    found_in,
)
from gemini_lab.recovery.ailments import MachineFault


@pytest.fixture
def kernel(tmp_path):
    """A machine's files, which a test may write, and its source."""
    files = {
        "proc/vmstat": "pgfault 9\noom_kill 4\n",
        "proc/interrupts": "  0:  3  4  timer\nMCE:  1  0  Machine check exceptions\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0",
        "sys/devices/system/edac/mc/mc0/ce_count": "7",
        "sys/fs/ext4/sda1/errors_count": "0",
        "sys/block/sda/device/ioerr_cnt": "0x2",
        "sys/class/net/eth0/device/net/eth0/carrier_down_count": "1",
        "sys/class/net/eth0/device/net/eth0/statistics/rx_crc_errors": "0",
        "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "2",
    }

    class Machine:
        now_s = (1e9, 0.0)

        def write(self, name, text):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

        def pass_s(self, wall_s, steady_s):
            self.now_s = (self.now_s[0] + wall_s, self.now_s[1] + steady_s)

    machine = Machine()
    for name, text in files.items():
        machine.write(name, text)
    machine.source = KernelHealth(tmp_path, folders=[tmp_path], clocks=lambda: machine.now_s)
    assert list(machine.source.read()) == []  # what was there before is no news
    return machine


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "proc/vmstat",
            "oom_kill 6",
            MachineFault("oom_kill", "the kernel's OOM killer ended 2 proc"),
        ),
        (
            "proc/interrupts",
            "MCE: 1 2  Machine check",
            MachineFault("machine_check", "2 machine checks"),
        ),
        (
            "sys/devices/system/edac/mc/mc0/ue_count",
            "1",
            MachineFault("machine_memory", "1 uncorrected errors"),
        ),
        (
            "sys/devices/system/edac/mc/mc0/ce_count",
            "9",
            MachineFault("memory_corrected", "2 corrected errors"),
        ),
        ("sys/fs/ext4/sda1/errors_count", "3", MachineFault("disk_error", "3 errors of ext4")),
        ("sys/block/sda/device/ioerr_cnt", "0x5", MachineFault("disk_error", "3 errors of disks")),
        (
            "sys/class/net/eth0/device/net/eth0/carrier_down_count",
            "3",
            MachineFault("link_error", "2 losses of a network's carrier"),
        ),
        (
            "sys/class/net/eth0/device/net/eth0/statistics/rx_crc_errors",
            "9",
            MachineFault("link_error", "9 broken frames received"),
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed",
            "3",
            MachineFault("link_error", "1 losses of an InfiniBand link"),
        ),
    ],
)
def test_a_count_that_rises_is_told_once(kernel, name, text, found):
    kernel.write(name, text)
    (told,) = kernel.source.read()
    assert told.fault == found.fault
    assert told.seen.startswith(found.seen)
    assert list(kernel.source.read()) == []


@pytest.mark.parametrize("text", ["", "nonsense", "oom_kill x", "oom_kill -5", "\0" * 100])
def test_a_file_that_makes_no_sense_tells_nothing(kernel, text):
    for name in ("proc/vmstat", "proc/interrupts", "sys/fs/ext4/sda1/errors_count"):
        kernel.write(name, text)
    assert list(kernel.source.read()) == []


def test_a_clock_that_jumps_is_told_and_one_that_only_runs_is_not(kernel):
    kernel.pass_s(100.0, 100.4)
    assert list(kernel.source.read()) == []
    kernel.pass_s(10.0, 40.0)
    assert list(kernel.source.read()) == [MachineFault("clock", "the clock was set by -30 s")]
    assert list(kernel.source.read()) == []


def test_a_full_disk_is_told_while_it_is_full(kernel, monkeypatch):
    disk = type("Disk", (), {"f_blocks": 1000, "f_bavail": 3, "f_frsize": 2**20})
    monkeypatch.setattr("os.statvfs", lambda _: disk)
    for _ in range(2):
        (told,) = kernel.source.read()
        assert told.fault == "disk_full"
        assert told.seen.endswith("has 3 MiB left")


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (
            "4,9,1,-;NVRM: Xid (PCI:0000:65:00): 79, pid=12, GPU has fallen off the bus.",
            "gpu_failed",
        ),
        ("4,9,1,-;NVRM: Xid (PCI:0000:65:00): 13, pid=12, Graphics SM Exception", "gpu_error"),
        ("3,9,1,-;mce: [Hardware Error]: CPU 2: Machine Check: 0", "machine_check"),
        ("3,9,1,-;blk_update_request: I/O error, dev sda, sector 4", "disk_error"),
        ("2,9,1,-;EXT4-fs error (device sda1): ext4_find_entry:1455", "disk_error"),
    ],
)
def test_the_kernels_log_tells_of_faults(record, fault):
    (found,) = found_in(record + "\n SUBSYSTEM=pci\n")
    assert found.fault == fault
    assert found.seen == record.partition(";")[2]


def test_ordinary_records_tell_of_none():
    assert list(found_in("6,1,1,-;eth0: link up")) == []
    assert 13 not in FAILED  # a program's own fault: nobody's machine is drained for it


SMI = {
    "--query-gpu": ["0, 3, Not Active, Not Active\n[N/A], [N/A], [N/A], [N/A]\n"],
    "--query-remapped-rows": ["No, No\n"],
    "nvlink": ["GPU 0:\n\t Link 0: Replay Errors: 0\n\t Link 0: CRC Errors: 4\n"],
}


class Driver:
    """Answers as nvidia-smi does."""

    def __init__(self):
        self.says = {name: one[0] for name, one in SMI.items()}

    def __call__(self, asked, *_more):
        return self.says[asked.partition("=")[0]]


@pytest.mark.parametrize(
    ("asked", "says", "fault"),
    [
        ("--query-gpu", "2, 3, Not Active, Not Active", "gpu_memory"),
        ("--query-gpu", "0, 9, Not Active, Not Active", "gpu_corrected"),
        ("--query-gpu", "0, 3, Active, Not Active", "gpu_throttled"),
        ("--query-gpu", "0, 3, Not Active, Active", "gpu_throttled"),
        ("--query-remapped-rows", "Yes, No", "gpu_reset_wanted"),
        ("--query-remapped-rows", "1, 0", "gpu_reset_wanted"),
        ("--query-remapped-rows", "No, Yes", "gpu_rows"),
        ("nvlink", "\t Link 0: Replay Errors: 2\n\t Link 1: CRC Errors: 4\n", "nvlink"),
    ],
)
def test_what_the_driver_tells_becomes_a_finding(asked, says, fault):
    driver = Driver()
    source = GpuHealth(driver)
    assert list(source.read()) == []
    driver.says[asked] = says
    assert [one.fault for one in source.read()] == [fault]


@pytest.mark.parametrize(
    "says", ["", "No devices were found", "a, b, c, d", "9" * 5000 + ", 1, x, y"]
)
def test_a_driver_that_tells_something_else_tells_nothing(says):
    driver = Driver()
    source = GpuHealth(driver)
    list(source.read())
    driver.says = dict.fromkeys(driver.says, says)
    assert list(source.read()) == []


def test_a_driver_that_does_not_answer_is_a_finding_and_one_that_is_not_there_is_none():
    def fails(error):
        def ask(*_):
            raise error

        return [one.fault for one in GpuHealth(ask).read()]

    assert fails(subprocess.TimeoutExpired("nvidia-smi", 10)) == ["gpu_silent"]
    assert fails(FileNotFoundError()) == []


class Slow:
    """A clock on which everything takes so long."""

    def __init__(self, each_s):
        self.now_s, self.each_s = 0.0, each_s

    def __call__(self):
        self.now_s += self.each_s
        return self.now_s


@pytest.mark.parametrize(
    ("memory_s", "disk_s", "faults"),
    [
        (0.01, 0.1, []),
        (0.5, 0.1, ["slow_memory"]),
        (0.01, 5.0, ["slow_disk"]),
        (0.5, 5.0, ["slow_memory", "slow_disk"]),
    ],
)
def test_at_the_start_memory_and_disk_are_looked_at_once(tmp_path, memory_s, disk_s, faults):
    look = FirstLook(tmp_path, clocks=(Slow(memory_s), Slow(disk_s)))
    assert [one.fault for one in look.read()] == faults
    assert list(look.read()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_to_is_not_called_slow(tmp_path):
    look = FirstLook(tmp_path / "gone", clocks=(Slow(0.01), Slow(5.0)))
    assert list(look.read()) == []


def printing(*lines):
    """A program that prints these lines, as `gemini_lab.node.gpu_speed` does."""
    return (sys.executable, "-c", f"print({chr(10).join(lines)!r})")


def test_a_gpu_far_slower_than_its_kind_is_told_once():
    look = GpuSpeed(
        printing(
            '["NVIDIA H200", 610.5]',
            '["NVIDIA H100 80GB HBM3", 95.2]',
            '["NVIDIA H100 80GB HBM3 MIG 1g.10gb", 60.0]',
            '["NVIDIA GeForce RTX 3060", 1.0]',
        )
    )
    told = [MachineFault("slow_gpu", "GPU 1 (NVIDIA H100 80GB HBM3): 95 TFLOPS, its kind 989")]
    assert list(look.read()) == told
    assert list(look.read()) == []


def test_gpus_that_finish_no_product_are_told(monkeypatch):
    monkeypatch.setattr(health, "GPU_S", 0.2)
    look = GpuSpeed((sys.executable, "-c", "import time; time.sleep(60)"))
    assert [one.fault for one in look.read()] == ["slow_gpu"]


def test_the_program_multiplies_and_prints_nothing_where_there_is_no_gpu():
    assert product_tflops(torch.device("cpu"), side=16, dtype=torch.float32) > 0
    if not torch.cuda.is_available():
        assert list(GpuSpeed().read()) == []


class Source:
    """Tells what a test puts there, or never answers."""

    def __init__(self):
        self.found = [MachineFault("oom_kill", "one"), MachineFault("no such fault", "two")]
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read(self):
        self.goes_on.wait()
        found, self.found = self.found, []
        return found


def test_findings_come_without_a_wait_and_only_those_that_have_a_rule():
    health = MachineHealth(lambda: [Source()], every_s=0.01)
    found, give_up_s = [], time.monotonic() + 20
    while not found and time.monotonic() < give_up_s:
        found = health.news()
        time.sleep(0.01)
    assert found == [MachineFault("oom_kill", "one")]


class BrokenSource:
    """Fails in a way that nobody thought of."""

    def read(self):
        raise KeyError("new")


def test_a_source_that_fails_is_told_of_and_stops_no_other():
    health = MachineHealth(lambda: [BrokenSource(), Source()], every_s=0.01)
    found, give_up_s = set(), time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < give_up_s:
        found |= {one.fault for one in health.news()}
        time.sleep(0.01)
    assert found == {"silent", "oom_kill"}


def test_a_source_that_hangs_is_told_of_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("gemini_lab.node.health.SILENT_S", 0.05)
    source = Source()
    source.goes_on.clear()
    health = MachineHealth(lambda: [source], every_s=0.01)
    found, give_up_s = [], time.monotonic() + 20
    while not found and time.monotonic() < give_up_s:
        found = health.news()
        time.sleep(0.01)
    assert [one.fault for one in found] == ["silent"]
    source.goes_on.set()


def test_this_machine_can_be_read():
    source = KernelHealth()
    list(source.read())
    assert [one.fault for one in source.read()] in ([], ["disk_full"])
