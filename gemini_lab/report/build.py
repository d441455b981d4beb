"""From a run's log to its report."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LOG_FILE, EventLog, log_of, name_of, read_log
from gemini_lab.report.recovery import WorkerExit
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab.report.tables import answers_of
from gemini_lab.report.tables.recoveries import wasted_time
from gemini_lab.report.values import RunReport, Traffic, VerifiedIterations


def load_report(run: Path | str) -> RunReport:
    """Return the report of the run in this folder, or with this log, as far as it is.

    Raises:
        ConfigError: The log there is not that of a run.
        EventError: A line of it is not an event.
    """
    log = log_of(Path(run))
    return build_report(read_log(log), name=name_of(log))


def save_events(events: Iterable[Entry], folder: Path | str) -> Path:
    """Write a simulated run's events as a log in a new folder, and return the log's path.

    `gemini-lab report FOLDER` and `gemini-lab serve FOLDER` show it as they show a run.

    `events` are the `Outcome.events` of `simulate(..., record=True)`.

    Raises:
        ConfigError: There are no events, or the folder has a log already.
    """
    entries = list(events)
    if not entries:
        raise ConfigError(
            "there are no events to save; simulate(..., record=True) keeps those of its run"
        )
    folder = Path(folder)
    path = folder / LOG_FILE
    if path.exists():
        raise ConfigError(f"{folder} has the log of a run already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    log = EventLog(path)
    for entry in entries:
        log.append(entry)
    log.close()
    return path


def build_report(entries: Iterable[Entry], *, name: str = "") -> RunReport:
    """Return the report of the run with these entries.

    The entries are in order of arrival: the whole log, or as much of it as there is.

    Raises:
        ConfigError: The log is not that of a run.
    """
    reducer = RunReducer(name=name, keep=FOR_REPORT)
    reducer.extend(entries)
    return report_of(reducer)


def report_of(run: RunReducer, *, earlier: Sequence[RunReducer] = ()) -> RunReport:
    """Return the report of a run so far, compared with other runs; see `build_report`."""
    course = run.course
    if course.job is None:
        raise ConfigError(
            f"the log of {run.name or 'this run'} has no run_started among {run.count} events; "
            f"a run's log is called {LOG_FILE}"
        )
    recoveries = run.recoveries.recoveries()
    newest_s = course.started_at_s if run.newest_s is None else run.newest_s
    return RunReport(
        name=run.name,
        answers=answers_of(run, earlier=earlier),
        simulated=course.is_simulated,
        script=course.job.script or "",
        nodes=course.nodes,
        ranks=course.ranks,
        started_at_s=course.started_at_s,
        ended_at_s=newest_s if course.ended_at_s is None else course.ended_at_s,
        outcome=course.outcome,
        reason=course.detail if course.outcome in {"failed", "stopped"} else "",
        cause=course.cause,
        output=course.output,
        exits=_last_exits(run),
        iterations=run.iterations.counted(),
        recoveries=recoveries,
        injections=tuple(sorted(run.recoveries.injections, key=lambda one: one.at_s)),
        wasted=wasted_time(run.pace, recoveries),
        traffic=_traffic(run),
        roots=tuple(name for _, name in sorted(run.nodes.roots, key=lambda told: told[0])),
        notes=tuple(f"{node}: {text}" for _, node, text in sorted(course.notes)),
        plans=run.plans.told(),
        unread=run.unread,
        code_changes=tuple(course.code_changes),
        places=tuple(run.copies.places) if any(run.copies.places) else (),
        divergences=tuple(run.divergences.found),
        not_finite=tuple(run.finite.found),
        rewinds=tuple(run.rewinds.found),
        ailments=tuple(run.ailments.told),
        verified=VerifiedIterations(
            iterations=run.verified.count,
            newest=run.verified.newest,
            took_s=run.verified.took_s,
            wrong=tuple(run.verified.wrong),
        ),
        resizes=tuple(run.sizes.found),
        copies_placed=tuple(run.copies_placed.found),
        began_from=course.began_from,
        lost_standbys=tuple(run.nodes.lost_standbys),
    )


def _last_exits(run: RunReducer) -> tuple[WorkerExit, ...]:
    """Return the workers that ended in the try because of which the run failed."""
    if run.course.outcome != "failed" or not run.course.output:
        return ()
    newest = max((one.epoch for one in run.recoveries.exits), default=0)
    return tuple(one for one in run.recoveries.exits if one.epoch == newest)


def _traffic(run: RunReducer) -> Traffic:
    sums, persistent = run.sums, run.persistent
    return Traffic(
        checkpoint_bytes=sums.checkpoint_bytes,
        versions=len(sums.versions),
        recovery_bytes=sums.recovery_bytes,
        persistent_bytes=persistent.size_bytes,
        persistent_versions=tuple(sorted(persistent.versions)),
        persistent_failures=tuple(persistent.failures),
    )
