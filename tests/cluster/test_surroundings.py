"""A lab starts in whatever surroundings a script would: folders, variables, users, locales."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SCRIPT = """
    import json, os, sys
    import torch, torch.distributed
    import gemini_lab

    def train():
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.Adam(model.parameters())
        protected = gemini_lab.protect(model=model, optimizer=optimizer)
        for step in protected.steps(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()

    def tell(file):
        beside = sys.modules.get("beside")
        if beside is not None:
            with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
                beside = pool.apply(beside.number)
        json.dump({"path": sys.path, "environment": dict(os.environ), "beside": beside}, file)

    if __name__ == "__main__":
        train()
        if int(os.environ["RANK"]) == 0:
            with open(sys.argv[1], "w") as file:
                tell(file)
"""
NAMES = ("secrets", "token", "queue", "platform", "random", "types", "logging", "torch", "enum")
PROXY = "http://127.0.0.1:9"
PROXIES = {
    name: PROXY
    for one in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
    for name in (one, one.upper())
}
BARE = ("PATH", "PYTHONPATH", "GEMINI_LAB_TEST_SEED", "OMP_NUM_THREADS", "DS_ACCELERATOR")
NO_ONE = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
"""What follows runs as a user that the system does not know."""


def trained(script: Path, folder: Path, environment, *before: str, cwd: Path) -> dict:
    """What the script tells of its surroundings, after a run of `gemini-lab` in these."""
    told = folder / "told.json"
    command = [sys.executable, "-Pm", "gemini_lab.cli.main", "run", "--nodes", "2"]
    command += ["--standbys", "0", "--folder", str(folder / "runs"), str(script), str(told)]
    done = subprocess.run(
        [*before, *command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(told.read_text())


@pytest.mark.usefixtures("leaves_nothing")
def test_files_of_the_working_folder_take_no_modules_place(tmp_path, script):
    """Agents, warm parents, keepers and bulk processes see Python's own; so does the script."""
    away = tmp_path / "away"
    away.mkdir()
    for name in NAMES:
        (away / f"{name}.py").write_text(f"raise RuntimeError('the user has a {name}.py')")
    with_another = dedent(SCRIPT).replace("import gemini_lab", "import gemini_lab, beside")
    file = script(with_another)
    (file.parent / "beside.py").write_text("def number():\n    return 7\n")
    told = trained(file, tmp_path, dict(os.environ), cwd=away)
    assert told["path"][0] == str(file.parent)
    assert not {"", str(away)} & set(told["path"])
    assert told["beside"] == 7, "a process that the script spawns finds what lies beside it"


@pytest.mark.usefixtures("leaves_nothing")
def test_proxies_and_settings_of_other_etcds_are_for_the_script_alone(tmp_path, script):
    variables = {**PROXIES, "ETCD_LISTEN_CLIENT_URLS": "http://192.0.2.1:1", "ETCD_NAME": "another"}
    environment = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"} | variables
    told = trained(script(dedent(SCRIPT)), tmp_path, environment, cwd=tmp_path)["environment"]
    assert {name: told.get(name) for name in variables} == variables
    assert "PYTHONSAFEPATH" not in told


@pytest.mark.usefixtures("leaves_nothing")
def test_a_library_that_greets_on_standard_output_is_no_agents_answer(tmp_path, script):
    (tmp_path / "greets").mkdir()
    (tmp_path / "greets/sitecustomize.py").write_text("print('welcome to this cluster')")
    path = os.pathsep.join(filter(None, [str(tmp_path / "greets"), os.environ.get("PYTHONPATH")]))
    trained(script(dedent(SCRIPT)), tmp_path, {**os.environ, "PYTHONPATH": path}, cwd=tmp_path)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("before", [(), NO_ONE], ids=["known", "unknown"])
def test_a_user_without_home_name_terminal_or_letters_can_train(tmp_path, script, before):
    if before and (
        shutil.which(before[0]) is None or subprocess.run([*before, "true"], check=False).returncode
    ):
        pytest.skip("no user namespace can be made here")
    environment = {name: os.environ[name] for name in BARE if name in os.environ}
    environment |= {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii", "TMPDIR": ""}
    environment |= {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    file = script(dedent(SCRIPT))
    told = trained(file, tmp_path, environment, *before, cwd=tmp_path)["environment"]
    assert {"HOME", "USER", "TERM"}.isdisjoint(told)
    assert not [name for name in told if name.startswith("GEMINI_LAB_HOME")]
