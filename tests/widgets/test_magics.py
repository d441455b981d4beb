"""`%gemini` in a real shell: each word does what its function does."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from lab_stand_in import ClusterStandIn, begin, lab_on
from traitlets.config import Config

import gemini_lab
from gemini_lab.errors import ConfigError
from gemini_lab.recovery.requests import StopRun

pytest.importorskip("ipywidgets")

from gemini_lab_widgets.magics import fail, line_magic, open_lab, status, train_text

SCRIPT = "print('a training script')\n"


@pytest.fixture
def cluster():
    return ClusterStandIn()


@pytest.fixture
def lab(tmp_path, cluster):
    with lab_on(cluster, tmp_path) as lab:
        yield lab


@pytest.fixture
def shell(tmp_path):
    config = Config(HistoryManager={"enabled": False})
    shell = InteractiveShell(config=config, ipython_dir=str(tmp_path / "ipython"))
    shell.run_line_magic("load_ext", "gemini_lab")
    return shell


def test_a_cell_is_started_as_a_script_and_leaves_the_run_behind(shell, lab, cluster):
    shell.user_ns["lab"] = lab
    shell.run_cell(f"%%gemini --nodes 4 --replicas 3 --name mine -- --steps 5\n{SCRIPT}")
    run = shell.user_ns["run"]
    assert run is lab.run
    assert run.folder.name == "mine"
    assert open(run.job.script).read() == SCRIPT  # noqa: PTH123, SIM115
    assert list(run.job.args) == ["--steps", "5"]
    assert cluster.jobs[0].settings == {"replicas": 3}


def test_the_words_do_what_their_functions_do(shell, lab, cluster):
    shell.user_ns["lab"] = lab
    assert shell.run_line_magic("gemini", "status") is status(lab) is lab
    run = train_text(lab, SCRIPT)
    begin(run)
    assert shell.run_line_magic("gemini", "") is run
    assert shell.run_line_magic("gemini", "fail node-loss node-1") == "node_loss on node-1"
    assert fail(lab, "worker_crash", "rank-0") == "worker_crash on node-0"
    assert [order.node for order in cluster.orders] == ["node-1", "node-0"]
    assert shell.run_line_magic("gemini", "stop") is run
    assert cluster.asked == [(run.number, StopRun())]


def test_the_report_of_a_run_is_its_report(lab):
    run = train_text(lab, SCRIPT)
    assert line_magic("report", {"lab": lab}).name == run.folder.name


def test_controls_are_those_of_the_lab(shell, lab):
    shell.user_ns["lab"] = lab
    panel = shell.run_line_magic("gemini", "controls")
    assert panel.run is lab.run
    panel.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fail node_loss node-9", "no node 'node-9' is there"),
        ("fail earthquake", "no failure is called 'earthquake'"),
        ("explode", "knows no 'explode'; it knows status, fail"),
        ("stop now", "stands alone"),
        ("fail 'node", "close the quotation"),
    ],
)
def test_an_error_of_ours_is_one_line_and_still_an_error(shell, lab, capsys, line, said):
    shell.user_ns["lab"] = lab
    begin(train_text(lab, SCRIPT))
    result = shell.run_cell(f"%gemini {line}")
    assert not result.success
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.strip().splitlines()) == 1
    assert "Traceback" not in told.err + told.out


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (f"%%gemini --nodes many\n{SCRIPT}", "invalid int value: 'many'"),
        (f"%%gemini --nodes 7\n{SCRIPT}", "the open lab has 4"),
        (f"%%gemini --colour red\n{SCRIPT}", "unrecognized arguments"),
        ("%%gemini\n   \n", "the cell is empty"),
    ],
)
def test_a_wrong_cell_starts_nothing_and_says_what_is_wrong(shell, lab, capsys, cell, said):
    shell.user_ns["lab"] = lab
    assert not shell.run_cell(cell).success
    assert said in capsys.readouterr().err
    assert lab.run is None


def test_without_a_lab_the_magic_says_how_to_get_one(shell, capsys):
    assert not shell.run_cell("%gemini status").success
    assert "lab = Lab(nodes=4)" in capsys.readouterr().err


def test_one_lab_under_several_names_is_one_lab(lab, tmp_path):
    with lab_on(ClusterStandIn(), tmp_path / "closed") as closed:
        pass
    assert open_lab({"lab": lab, "_": lab, "_3": lab, "old": closed, "x": 3}) is lab
    with (
        lab_on(ClusterStandIn(), tmp_path / "other") as other,
        pytest.raises(ConfigError, match="several labs are open"),
    ):
        open_lab({"lab": lab, "other": other})


def test_the_help_names_the_function_beside_each_word(shell):
    text = shell.find_line_magic("gemini").__doc__
    assert "lab.run.inject" in text
    assert callable(gemini_lab.load_ipython_extension)
