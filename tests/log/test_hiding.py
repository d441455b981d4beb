"""What a log tells nobody."""

import pytest

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Note, RunStarted
from gemini_lab.log.file import EventLog, hidden_arguments, read_log


def started(args, **settings):
    return RunStarted(
        name="run",
        script="train.py",
        args=args,
        module=False,
        nodes=1,
        standbys=0,
        workers_per_node=1,
        settings=settings,
    )


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc", "--lr", "1"], ["--api-key", "***", "--lr", "1"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["WANDB_API_KEY=abc", "--hub_token=x=y"], ["WANDB_API_KEY=***", "--hub_token=***"]),
        (["--password", "--token", "x"], ["--password", "***", "x"]),
        (["--keys", "a", "--monkeys", "b", "tokenizer=c"], None),
    ],
)
def test_arguments_that_go_by_a_secrets_name_are_hidden(given, shown):
    assert hidden_arguments(given) == (given if shown is None else shown)


def test_secrets_do_not_enter_a_log(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    url = "s3://me:hunter2@host/run"
    log.append(Entry(at_s=1.0, node="lab", event=started(("--token", "abc"), persistent_url=url)))
    log.append(Entry(at_s=2.0, node="lab", event=Note(text=f"{url} and https://host/@2")))
    log.close()
    text = log.path.read_text()
    assert "hunter2" not in text
    assert "abc" not in text
    _, note = read_log(log.path)
    assert note.event.text == "s3://***@host/run and https://host/@2"


def test_a_log_is_its_owners_alone(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.close()
    assert log.path.stat().st_mode & 0o077 == 0
