"""Ranks compare what they execute: a file that differs, or that was edited, is told by name."""

import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path

import msgspec
import pytest
from made import made
from torch.distributed import HashStore

from gemini_lab.engine.own_code import ExecutedCode, SameCode, is_own_file, say_if_resumed_otherwise
from gemini_lab.errors import CannotGoOnError, ConfigError
from gemini_lab.job import Job
from gemini_lab.log import events
from gemini_lab.recovery.messages import JobOrder, WorkerStart
from gemini_lab.recovery.plan import PlanPart
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings


class Rank:
    """A rank that has executed the job's files as they are at that moment."""

    def __init__(self, folder: Path, rank: int, *names: str, code: dict[str, str] | None = None):
        seats = Seats(nodes=3, members=("node-0", "node-1", "node-2"))
        job = Job(script="train.py", cwd=str(folder))
        self.start = made(
            WorkerStart,
            rank=rank,
            order=JobOrder(number=1, run=1, job=job, seats=seats),
            seats=seats,
            plan=PlanPart(version=None, tier="start"),
            rendezvous="127.0.0.1:1",
            code=code or {},
        )
        self.said: list[events.AnyEvent] = []
        self.folder, self.executed = folder, ExecutedCode()
        for name in names:
            self.run(name)
        self.code = SameCode(self.said.append, self.executed)
        self.settings = Settings()

    def run(self, name: str) -> None:
        self.executed.note(str(self.folder / name))

    def changes(self) -> list[tuple[str, ...]]:
        return [one.changed for one in self.said if isinstance(one, events.CodeSeen)]


def meet(*ranks: Rank) -> HashStore:
    """All ranks tell, and then compare, as they do at `protect`."""
    store = HashStore()
    for one in ranks:
        one.code.tell(one.start, store)
    with ThreadPoolExecutor(len(ranks)) as threads:
        for compared in [threads.submit(one.code.compare) for one in ranks]:
            compared.result()
    for one in ranks:
        one.code.begin(one.settings)
    return store


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("train.py", "model.py", "plots.py"):
        (tmp_path / name).write_text(f"NAME = {name!r}\n")
    return tmp_path


def test_ranks_that_execute_the_same_go_on_though_one_has_a_file_of_its_own(folder):
    ranks = [Rank(folder, n, "train.py", "model.py", *["plots.py"][n:]) for n in range(3)]
    meet(*ranks)
    told = [one.files for rank in ranks for one in rank.said]
    assert sorted(name for files in told for name in files) == ["model.py", "plots.py", "train.py"]
    assert [rank.changes() for rank in ranks] == [[()], [], []]


def test_a_file_that_is_another_one_on_a_node_is_refused_by_name_with_ranks_and_nodes(folder):
    first = Rank(folder, 0, "train.py", "model.py")
    second = Rank(folder, 1, "train.py", "model.py")
    (folder / "model.py").write_text("NAME = 'another'\n")
    third = Rank(folder, 2, "train.py", "model.py")
    with pytest.raises(ConfigError, match=r"model\.py is not the same file") as refused:
        meet(first, second, third)
    assert "ranks 0 on node-0, 1 on node-1 have" in str(refused.value)
    assert "rank 2 on node-2 has" in str(refused.value)
    for one in (second, third):  # all of them do so
        with pytest.raises(ConfigError, match=r"model\.py"):
            one.code.compare()


def test_ranks_of_which_none_has_all_files_are_compared_with_each(folder):
    """The first one has neither file; the two others have the same one, and not the same text."""
    first, second = Rank(folder, 0, "train.py"), Rank(folder, 1, "train.py", "plots.py")
    (folder / "plots.py").write_text("NAME = 'another'\n")
    with pytest.raises(ConfigError, match=r"plots\.py"):
        meet(first, second, Rank(folder, 2, "train.py", "plots.py"))


def test_ranks_that_were_kept_do_not_train_with_one_of_other_code_and_all_start_anew(folder):
    kept = [Rank(folder, n, "train.py") for n in range(2)]
    (folder / "train.py").write_text("NAME = 'edited'\n")
    new = Rank(folder, 2, "train.py")
    for one in (*kept, new):
        one.start = msgspec.structs.replace(one.start, kept=[0, 1])
    with pytest.raises(CannotGoOnError, match=r"train\.py"):
        meet(*kept, new)
    for one in (kept[1], new):
        with pytest.raises(CannotGoOnError):
            one.code.compare()
    assert [len(one.said) for one in (*kept, new)] == [1, 0, 0]  # one says it for all
    assert "all ranks restart" in kept[0].said[0].text


def test_a_start_with_other_code_tells_which_file_changed_and_is_refused_where_that_is_wanted(
    folder,
):
    first = Rank(folder, 0, "train.py", "model.py")
    meet(first)
    (before,) = (one.files for one in first.said)
    (folder / "model.py").write_text("NAME = 'edited'\n")
    again = [Rank(folder, n, "train.py", "model.py", code=before) for n in range(2)]
    meet(*again)
    (seen,) = again[0].said
    assert (seen.changed, [*seen.files]) == (("model.py",), ["model.py"])
    assert "model.py was edited" in str(seen)
    assert again[1].said == []
    again[0].said.clear()
    with pytest.raises(ConfigError, match=r"model\.py changed .*--resume"):
        again[0].code.begin(Settings(on_code_change="stop"))
    assert again[0].said == []  # the run has executed nothing of it


def test_the_same_code_again_is_no_news(folder):
    first = Rank(folder, 0, "train.py")
    meet(first)
    again = Rank(folder, 0, "train.py", code=first.said[0].files)
    again.settings = Settings(on_code_change="stop")
    meet(again)
    assert again.said == []


def test_a_file_that_ranks_import_late_is_compared_before_it_is_executed(folder):
    ranks = [Rank(folder, n, "train.py") for n in range(3)]
    meet(*ranks)
    ranks[0].run("plots.py")
    ranks[1].run("plots.py")
    assert [[*one.files] for one in ranks[0].said[1:]] == [["plots.py"]]
    assert ranks[1].said == []
    (folder / "plots.py").write_text("NAME = 'edited'\n")
    with pytest.raises(CannotGoOnError, match=r"rank 2 imports plots\.py"):
        ranks[2].run("plots.py")
    assert "plots.py" in ranks[2].said[0].text


def test_a_file_that_is_imported_late_and_was_edited_since_the_last_start_is_told(folder):
    first = Rank(folder, 0, "train.py", "plots.py")
    meet(first)
    before = first.said[0].files
    (folder / "plots.py").write_text("NAME = 'edited'\n")
    again = Rank(folder, 0, "train.py", code=before)
    meet(again)
    again.run("plots.py")
    assert again.changes() == [("plots.py",)]
    strict = Rank(folder, 0, "train.py", code=before)
    strict.settings = Settings(on_code_change="stop")
    meet(strict)
    with pytest.raises(ConfigError, match=r"plots\.py changed"):
        strict.run("plots.py")


def test_a_run_that_resumes_with_other_code_is_told_so_once():
    told: list[str] = []
    say_if_resumed_otherwise(
        {"code": {"train.py": "a", "x.py": "b"}}, {"train.py": "c"}, told.append
    )
    say_if_resumed_otherwise({"code": {"train.py": "a"}}, {"train.py": "a"}, told.append)
    say_if_resumed_otherwise({}, {"train.py": "a"}, told.append)
    assert len(told) == 1
    assert "train.py changed since" in told[0]


# -- what counts as executed -----------------------------------------------------------------------


@pytest.fixture
def following(tmp_path, monkeypatch) -> Iterator[ExecutedCode]:
    """A process's imports are followed, with a folder of the script's on the path."""
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)  # put back then
    monkeypatch.syspath_prepend(str(tmp_path))
    executed = ExecutedCode()
    executed.follow_imports()
    before = {*sys.modules}
    yield executed
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_what_torch_compile_writes_is_not_the_scripts_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    assert not is_own_file(str(tmp_path / "compiled" / "ab" / "cab.py"))
    assert is_own_file(str(tmp_path / "train.py"))


def own(executed: ExecutedCode, folder: Path) -> dict[str, str]:
    return executed.files(lambda path: path.startswith(str(folder)), folders=(str(folder),))


def test_what_is_told_of_a_file_is_what_was_executed_and_not_what_it_was_edited_to(
    tmp_path, following
):
    file = tmp_path / "edited_since.py"
    file.write_text("VALUE = 1\n")
    importlib.import_module("edited_since")
    then = own(following, tmp_path)
    file.write_text("VALUE = 22\n")
    assert own(following, tmp_path) == then
    assert [*then] == ["edited_since.py"]
    sys.modules.pop("edited_since")
    importlib.invalidate_caches()
    importlib.import_module("edited_since")
    assert own(following, tmp_path) != then


def test_packages_their_parts_and_compiled_files_count_by_their_source(tmp_path, following):
    parts = tmp_path / "several" / "parts"
    parts.mkdir(parents=True)
    for folder in (parts.parent, parts):
        (folder / "__init__.py").write_text("")
    (parts / "leaf.py").write_text("VALUE = 1\n")
    importlib.import_module("several.parts.leaf")
    first = own(following, tmp_path)
    assert [*first] == ["several/__init__.py", "several/parts/__init__.py", "several/parts/leaf.py"]
    for name in ("several.parts.leaf", "several.parts", "several"):
        sys.modules.pop(name)
    importlib.import_module("several.parts.leaf")  # of the bytes that Python has kept
    assert own(following, tmp_path) == first


def test_another_thread_that_imports_is_followed(tmp_path, following):
    (tmp_path / "in_a_thread.py").write_text("VALUE = 1\n")
    thread = threading.Thread(target=importlib.import_module, args=("in_a_thread",))
    thread.start()
    thread.join()
    assert [*own(following, tmp_path)] == ["in_a_thread.py"]


def test_what_python_and_packages_bring_is_not_read(following):
    seen: list[str] = []
    following.on_file = lambda path, _: seen.append(path)
    for name in ("sched", "gemini_lab.training.emulate"):
        sys.modules.pop(name, None)
        importlib.import_module(name)
    assert seen == []
