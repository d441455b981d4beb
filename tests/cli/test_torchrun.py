"""What torchrun's arguments come to."""

import pytest
import torch

from gemini_lab.cli.torchrun import nodes_of, parser, translate, without_meaning
from gemini_lab.errors import ConfigError


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch):
    for name in ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)


def read(*arguments):
    asked = parser()
    given = asked.parse_args(arguments)
    return *translate(given), without_meaning(asked, given)


def test_nodes_workers_script_and_its_arguments_are_taken_over():
    options, remarks, ignored = read(
        *("--nnodes", "4", "--nproc-per-node", "2", "--hosts", "a,b,c,d", "train.py"),
        *("--nnodes", "its own"),
    )
    assert (options.nodes, options.workers_per_node, options.standbys) == (4, 2, 0)
    assert (options.script, options.args, options.module) == (
        "train.py",
        ["--nnodes", "its own"],
        False,
    )
    assert (remarks, ignored) == ([], [])


def test_what_only_a_rendezvous_needs_is_named():
    _, _, ignored = read(
        *("--nnodes=2", "--rdzv-backend=c10d", "--rdzv_endpoint=host:29500", "--rdzv-id=job"),
        *("--max-restarts", "3", "--master-port=1234", "-m", "package.train"),
    )
    assert ignored == [
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--max-restarts",
        "--master-port",
    ]


def test_a_range_of_nodes_is_nodes_and_standbys_and_said_to_be():
    options, (remark, _), _ = read("--nnodes=2:5", "train.py")
    assert (options.nodes, options.standbys) == (2, 3)
    assert "2 nodes train and 3 stand by; the number of ranks stays the same" in remark


def test_one_node_keeps_one_copy_unless_it_is_told_otherwise():
    options, (remark,), _ = read("--standalone", "--nproc-per-node=2", "train.py")
    assert options.replicas == 1
    assert "not the machine" in remark


@pytest.mark.parametrize("asked", ["gpu", "some"])
def test_a_number_of_workers_that_cannot_be_had_is_refused_in_words(asked):
    if asked == "gpu" and torch.cuda.is_available():
        pytest.skip("there are GPUs")
    with pytest.raises(ConfigError, match=f"--nproc-per-node {asked}: .*; give a number"):
        read("--standalone", "--nproc-per-node", asked, "train.py")


def test_the_options_of_run_stand_beside_them():
    options, _, ignored = read(
        "--nnodes=2", "--standbys=1", "--set", "mu=3", "--dry-run", "--resume", "train.py"
    )
    assert (options.standbys, options.set, options.dry_run) == (1, ["mu=3"], True)
    assert options.resume
    assert ignored == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nnodes=2", "--node-rank=1", "train.py"], "--node-rank is 1: torchrun is started on"),
        (["--no-python", "train.sh"], "--no-python: a worker runs a Python script"),
    ],
)
def test_what_cannot_be_meant_here_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read(*arguments)


def test_a_start_by_srun_on_every_machine_is_refused(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_PROCID", "2")
    with pytest.raises(ConfigError, match=r"SLURM_PROCID is 2: .*without srun"):
        read("--nnodes=4", "train.py")


@pytest.mark.parametrize("nnodes", ["0", "4:2", "two", "1:2:3"])
def test_unreadable_numbers_of_nodes_are_refused(nnodes):
    with pytest.raises(ConfigError, match="give N or MIN:MAX"):
        nodes_of(nnodes)
