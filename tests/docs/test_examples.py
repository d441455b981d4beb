"""The examples for schedulers are whole files of their kind, with options that there are."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from gemini_lab.cli import node, run_command

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
GUIDE = [*EXAMPLES.parent.glob("tutorials/*.md"), *EXAMPLES.parent.glob("how-to/*.md")]
PARSERS = {"run": run_command.parser(), "node": node.parser()}


def parsed(words):
    """The options of `gemini-lab run ...` or `gemini-lab node ...`, which have to be there."""
    return PARSERS[words[0]].parse_args(words[1:])


def commands_in(script):
    """The words after `gemini-lab` wherever a shell script calls it."""
    whole = re.sub(r"\\\n\s*|\n    (?=--)", " ", script)
    calls = re.findall(r"(?<!\w)gemini-lab ((?:run|node) [^\n)&]*)", whole)
    return [shlex.split(call) for call in calls]


@pytest.mark.parametrize("name", ["requeue.sbatch", "array.sbatch"])
def test_a_batch_script_is_bash_and_gets_its_notice_before_slurm_ends_it(name):
    text = (EXAMPLES / name).read_text()
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (words,) = commands_in(text)
    options = parsed(words)
    assert (options.script, options.resume) == ("train.py", True)
    assert options.notice < int(re.search(r"--signal=B:USR1@(\d+)", text)[1])
    assert int(re.search(r"--nodes=(\d+)", text)[1]) == options.nodes + options.standbys


def test_a_jobsets_pods_run_commands_that_there_are_and_outlive_the_notice():
    text = (EXAMPLES / "jobset.yaml").read_text()
    jobs = {
        job["name"]: job["template"]["spec"]
        for job in yaml.safe_load(text)["spec"]["replicatedJobs"]
    }
    found = {}
    for name in ("launcher", "node"):
        pod = jobs[name]["template"]["spec"]
        found[name] = parsed(pod["containers"][0]["args"])
        assert found[name].notice < pod["terminationGracePeriodSeconds"]
    assert found["launcher"].join == found["node"].lab
    assert found["launcher"].etcd == found["node"].etcd
    assert found["launcher"].notice < found["node"].notice, "nodes have to outlive the save"
    assert jobs["node"]["completions"] == found["launcher"].nodes + found["launcher"].standbys
    gpus = jobs["node"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert gpus["nvidia.com/gpu"] == found["launcher"].workers_per_node
    final = jobs["launcher"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert final == [1, 2, 3]


def test_a_kubeflow_job_asks_for_the_nodes_and_gpus_that_its_command_uses():
    trainer = yaml.safe_load((EXAMPLES / "kubeflow.yaml").read_text())["spec"]["trainer"]
    assert trainer["command"] == ["gemini-lab"]
    options = parsed(trainer["args"])
    assert trainer["numNodes"] > options.nodes + options.standbys
    assert trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] == options.workers_per_node
    assert trainer["numProcPerNode"] == options.workers_per_node
    assert options.notice < 30, "the seconds that Kubernetes gives a pod that is to end"


def test_skypilots_task_runs_commands_that_there_are():
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())
    *nodes, launcher = sorted(commands_in(task["run"]), key=lambda words: words[0] == "run")
    options = parsed(launcher)
    assert {parsed(words).lab for words in nodes} == {options.join}
    assert task["num_nodes"] == options.nodes + options.standbys
    assert task["resources"]["accelerators"] == f"H100:{options.workers_per_node}"
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75, 143]


def test_what_was_not_tried_says_so_and_the_guide_links_to_all():
    guide = "".join(page.read_text() for page in GUIDE)
    for path in EXAMPLES.iterdir():
        assert f"../examples/{path.name}" in guide
        if path.name in {"jobset.yaml", "kubeflow.yaml", "skypilot.yaml", "Dockerfile"}:
            assert path.read_text().startswith("# Untried")
