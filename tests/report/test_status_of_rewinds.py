"""Training that went back to a version in memory, in the status that people look at."""

from told_runs import ToldRun

from gemini_lab.log import events
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.recoveries import losses
from gemini_lab.report.tables.status import status


def notes_after(*, reason=""):
    run = ToldRun().protect().train(1, 5)
    told = {"iteration": 5, "version": 3, "rewinds": 1, "skips": True, "duration_s": 0.1}
    run.say_worker(events.Rewound, 0, cause="script", reason=reason, **told)
    reducer = RunReducer()
    reducer.extend(run.entries)
    return status(reducer, now_s=run.now_s, losses=losses(reducer)).notes


def test_a_status_says_once_that_training_went_back():
    (note,) = notes_after()
    assert note.startswith("training went back to version 3; iterations 4 to 5 are taken back")
    (note,) = notes_after(reason="the loss is NaN")
    assert note.startswith("the loss is NaN: back to version 3")
