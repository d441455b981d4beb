"""Claims about the doctor: each finding with something that is there and something that is not."""

import json
import stat
import sys
from pathlib import Path

import pytest

from gemini_lab.cli import doctor
from gemini_lab.errors import LaunchError
from gemini_lab.units import GIB


def _absent():
    raise LaunchError("none")


def _program(path: Path, prints: str, status: int = 0) -> str:
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_an_old_python_is_named_and_a_new_one_is_fine():
    assert doctor.python((3, 10, 14)).state == "missing"
    assert doctor.python((3, 12, 0)).state == "ok"


def test_a_package_that_is_not_installed_comes_with_the_command_that_installs_it():
    finding = doctor.package("no-such-package-here")

    assert (finding.state, finding.remedy) == ("missing", "pip install no-such-package-here")
    assert doctor.package("pytest").state == "ok"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("0 active drivers ([]). There should only be one.", "pip uninstall triton"),
        ("something else", "pip install --force-reinstall deepspeed"),
    ],
)
def test_a_deepspeed_that_cannot_be_imported_is_told_with_the_cause(
    tmp_path, monkeypatch, error, remedy
):
    """Triton of PyTorch 2.6 raises the first of these where there is no GPU."""
    (tmp_path / "deepspeed.py").write_text(f"raise RuntimeError({error!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    finding = doctor.deepspeed()
    assert finding.state == "missing"
    assert finding.found.endswith(f"and its import fails: {error}")
    assert remedy in finding.remedy


@pytest.mark.parametrize("check", [doctor.mpi, doctor.etcd])
def test_a_missing_engine_can_be_had_from_wheels(check):
    finding = check(_absent)

    assert finding.state == "missing"
    assert "gemini-lab[embedded]" in finding.remedy


@pytest.mark.parametrize("check", [doctor.mpi, doctor.etcd])
def test_an_engine_that_does_not_run_is_not_there(check, tmp_path):
    broken = _program(tmp_path / "engine", "loader error", status=1)

    assert check(lambda: broken).state == "missing"
    assert check(lambda: str(tmp_path / "gone")).state == "missing"


def test_an_mpi_says_its_version_and_whether_it_has_ulfm(tmp_path):
    mpiexec = _program(tmp_path / "mpiexec", "mpiexec (Open MPI) 5.0.11")
    assert "ULFM unknown" in doctor.mpi(lambda: mpiexec).found

    _program(tmp_path / "ompi_info", " Fault Tolerance support: yes")
    assert doctor.mpi(lambda: mpiexec).found.startswith("mpiexec (Open MPI) 5.0.11, with ULFM")

    _program(tmp_path / "ompi_info", " Fault Tolerance support: no")
    assert "without ULFM" in doctor.mpi(lambda: mpiexec).found


def test_too_little_memory_is_named_with_the_numbers():
    finding = doctor.memory(GIB, "a container's limit")

    assert finding.state == "missing"
    assert finding.found == "1.0 GiB free, bounded by a container's limit"
    assert doctor.memory(doctor.NEEDED_BYTES).state == "ok"


def test_one_core_and_a_closed_shared_memory_are_no_obstacle(tmp_path):
    assert doctor.cores(1).state == "note"
    assert doctor.cores(2).state == "ok"
    assert doctor.shared_memory(tmp_path / "absent").state == "note"


def test_a_folder_that_is_not_there_cannot_keep_logs(tmp_path):
    assert doctor.folder(tmp_path / "absent").state == "missing"
    assert doctor.folder(tmp_path).state == "ok"


def no_torch():
    raise ImportError("libtorch.so is not there")


@pytest.mark.parametrize(
    ("obstacle", "state", "found"),
    [
        (lambda: "", "ok", "this torch can"),
        (lambda: "PyTorch is too old", "note", "PyTorch is too old"),
        (no_torch, "note", "torch cannot be imported: libtorch.so is not there"),
    ],
)
def test_whether_processes_can_be_kept_is_told_and_is_no_obstacle(obstacle, state, found):
    finding = doctor.kept_processes(obstacle)
    assert (finding.state, finding.found) == (state, found)


def test_an_allocation_is_told_by_its_job():
    found = doctor.slurm({"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "8"}).found

    assert found == "job 42 with 8 nodes"


def test_the_verdict_names_what_is_missing():
    findings = [
        doctor.Finding(name="mpi", state="ok", found="5.0"),
        doctor.Finding(name="etcd", state="missing", found="none", remedy="install it"),
    ]

    assert "cannot run here yet: see etcd above" in doctor.render(findings)
    assert "-> install it" in doctor.render(findings)
    assert "can run here" in doctor.render(findings[:1])


def test_the_exit_code_and_the_json_agree_about_this_machine(capsys):
    code = doctor.command(["--json"])
    record = json.loads(capsys.readouterr().out)

    assert record["can_run"] == (code == 0)
    assert {"python", "torch", "mpi", "etcd", "memory"} <= {f["name"] for f in record["findings"]}
    assert all(f["remedy"] for f in record["findings"] if f["state"] != "ok")
