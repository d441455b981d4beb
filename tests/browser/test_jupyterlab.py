"""One notebook in a real JupyterLab, run by a browser: pictures, buttons, and nothing left over."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import nbformat
import psutil
import pytest

from gemini_lab.errors import LaunchError
from gemini_lab.launch.etcd import find_etcd
from gemini_lab.launch.mpi import find_mpiexec

pytest.importorskip("jupyterlab")
pytest.importorskip("ipywidgets")

PATIENCE_S = 180
NOTEBOOK = "pictures.ipynb"
PICTURES = """
from gemini_lab import Job, Lab, plan_placement
plan_placement(nodes=8, replicas=3, racks=["<img src=x onerror=alert(1)>"] * 8)
# %%
from gemini_lab.profiler.profile import Profile
Profile.synthetic(iteration_s=60.0, idle_spans_s=[5.0, 2.0, 4.0], update_s=55.0)
"""
DOLLARS = """
from gemini_lab_course.verdict import say
from gemini_lab_course.predictions import predict
say("right: $a$ of words")
predict("$a$ of predictions")
# %%
from IPython.display import HTML
HTML("<p class='formula'>$a$</p>")
"""
WIDGETS = """
%load_ext gemini_lab
lab = Lab(nodes=2, standbys=0, warm=False)
lab.controls(Job(script="waits.py"), persistent_url=None)
# %%
%gemini status
"""
CELLS = [cell.strip() for cell in f"{PICTURES}# %%{DOLLARS}# %%{WIDGETS}".split("# %%")]
WAITS = "import time\ntime.sleep(600)\n"
SETTINGS = {
    "notification": {"checkForUpdates": False, "fetchNews": "false"},
    "themes": {"theme": "JupyterLab Dark"},
}


def write_files(folder: Path) -> None:
    """The notebook, the script that it starts, and the settings of a user who wants it dark."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    (folder / "work").mkdir()
    nbformat.write(notebook, folder / "work" / NOTEBOOK)
    (folder / "work" / "waits.py").write_text(WAITS)
    for name, values in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / "apputils-extension"
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{name}.jupyterlab-settings").write_text(json.dumps(values))


def address_of(runtime: Path, server: subprocess.Popen[bytes]) -> str:
    """Where the server listens, once it has written that down and does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        assert server.poll() is None, "JupyterLab ended"
        for path in runtime.glob("jpserver-*.json"):
            with suppress(ValueError, OSError):
                told = json.loads(path.read_text())
                socket.create_connection((told["hostname"], told["port"])).close()
                return str(told["url"])
        time.sleep(0.1)
    raise TimeoutError("JupyterLab did not start")


def start_kernel(address: str, token: str) -> None:
    """Give the notebook a kernel, and wait for it: the page then has nothing to ask."""
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    wanted = {"path": NOTEBOOK, "name": NOTEBOOK, "type": "notebook", "kernel": {"name": "python3"}}
    ask = Request(f"{address}api/sessions", json.dumps(wanted).encode(), headers, method="POST")
    with urlopen(ask, timeout=PATIENCE_S):
        pass
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with urlopen(Request(f"{address}api/kernels", headers=headers), timeout=60) as answer:
            if json.load(answer)[0]["execution_state"] in {"idle", "starting"}:
                return
        time.sleep(0.2)
    raise TimeoutError("the kernel did not start")


@pytest.fixture
def jupyterlab(tmp_path: Path) -> Iterator[str]:
    """The address of the notebook in a JupyterLab of its own, which leaves no process behind."""
    try:
        find_mpiexec()
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    write_files(tmp_path)
    token = secrets.token_hex(16)
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "IPYTHONDIR": "ipython",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    environment = os.environ | {name: str(tmp_path / folder) for name, folder in folders.items()}
    environment |= {"JUPYTER_TOKEN": token}
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--port=0",
        f"--ServerApp.root_dir={tmp_path / 'work'}",
        "--LabApp.extension_manager=readonly",
    ]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = address_of(tmp_path / "runtime", server)
        start_kernel(address, token)
        yield f"{address}lab/tree/{NOTEBOOK}?token={token}"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)
        server.kill()
        server.wait()
    assert left_in(tmp_path) == []


def left_in(folder: Path) -> list[str]:
    """Command lines of processes that work below `folder` and do not end; they are ended now."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if folder in Path(process.cwd()).parents or Path(process.cwd()) == folder:
                found.append(process)
    _, alive = psutil.wait_procs(found, timeout=30)
    lines = []
    for process in alive:
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
            process.kill()
    return lines


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_notebook_in_jupyterlab_shows_pictures_and_its_buttons_work(
    jupyterlab: str, open_page: Any
) -> None:
    page = open_page(viewport={"width": 1280, "height": 2400})
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(jupyterlab)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        "n => [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')]"
        ".filter(each => /\\d/.test(each.textContent)).length == n",
        arg=len(CELLS),
    )
    outputs = page.locator(".jp-Notebook .jp-OutputArea-output")
    assert outputs.locator("svg.gl-drawing").count() == 2
    assert "onerror" in outputs.locator("svg.gl-drawing").first.text_content()
    assert page.locator("svg.gl-drawing img, .gl-drawing [onerror]").count() == 0
    paper = "getComputedStyle(document.querySelector('svg.gl-drawing')).getPropertyValue('{}')"
    assert page.evaluate(paper.format("--gl-paper")).strip() == "#141414"  # it is a dark theme
    page.wait_for_selector(".formula mjx-container")
    assert page.locator("mjx-container").count() == 1  # dollars in words are dollars
    for words in ("$a$ of words", "$a$ of predictions"):
        assert outputs.get_by_text(words).first.is_visible()

    close = page.get_by_role("button", name="Close lab")
    panel = outputs.locator(".widget-vbox").filter(has=close)
    panel.get_by_role("button", name="Start").click()
    panel.get_by_text("starting, iteration 0").wait_for()
    panel.get_by_text("Traffic", exact=True).click()
    panel.locator("canvas").first.wait_for()
    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text(": over, iteration 0").wait_for()
    panel.get_by_role("button", name="Pause view").click()
    panel.get_by_text("the view is paused").wait_for()
    close.click()
    outputs.get_by_text("the lab is closed").first.wait_for()  # as text, because no button works
