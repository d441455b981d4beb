"""Histories of real clusters: our own form, and those in which public traces come.

What a public trace does not say is an argument with a default, and named in its reader.
"""

import csv
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.failures import DAY_S, KINDS, Kind, Outage
from gemini_lab.simulator.times import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A cluster's failures.

    Attributes:
        outages: In order of time, since the trace's first entry.
        days: From its first entry to its last.
        machines: Names in the trace; machine i sits on position i, counted round the nodes.
        repairs: How long machines were away, where the trace says so.
        assumptions: What it does not say.
    """

    outages: tuple[Outage, ...]
    days: float
    machines: tuple[str, ...]
    repairs: Spread | None
    assumptions: str

    @property
    def per_machine_per_day(self) -> float:
        """The mean rate of failures; 0 of an empty trace."""
        known = len(self.machines) * self.days
        return len(self.outages) / known if known else 0.0


@dataclass(frozen=True, slots=True)
class _Failed:
    """One failure as a trace tells it."""

    when: datetime
    machine: str
    kind: Kind
    cause: str
    away_s: float | None = None


def _made(
    failures: Iterable[_Failed],
    *,
    nodes: int,
    span: tuple[datetime, datetime] | None = None,
    assumptions: str,
) -> Trace:
    found = sorted(failures, key=lambda one: one.when)
    if not found:
        raise ConfigError("the trace has no failure; give another file, or another system's")
    first, last = span or (found[0].when, found[-1].when)
    machines = tuple(sorted({one.machine for one in found}, key=lambda name: (len(name), name)))
    place = {name: i % nodes for i, name in enumerate(machines)}
    away_s = [one.away_s for one in found if one.away_s is not None]
    return Trace(
        outages=tuple(
            Outage(
                at_s=(one.when - first).total_seconds(),
                kind=one.kind,
                positions=(place[one.machine],),
                cause=one.cause,
            )
            for one in found
        ),
        days=(last - first).total_seconds() / DAY_S,
        machines=machines,
        repairs=Spread(samples_s=tuple(away_s)) if away_s else None,
        assumptions=assumptions,
    )


LANL_CAUSES: Final[dict[str, Kind]] = {
    "facilities": "hardware",
    "hardware": "hardware",
    "human error": "hardware",
    "network": "hardware",
    "undetermined": "hardware",
    "software": "software",
}
"""The columns of causes in LANL's table, and what each does to a machine: our reading."""


def read_lanl(path: Path, *, nodes: int, system: str | None = None) -> Trace:
    """Failures of Los Alamos' clusters, 1996 to 2005, from the table of all systems as CSV.

    Read are the columns whose names begin with System, nodenum, Prob Started and Prob Fixed (month,
    day, year, hour and minute), and those named by causes, in which an entry stands for the cause.

    Args:
        path: The file.
        nodes: Positions of the cluster that is simulated.
        system: Only this system's lines.

    Raises:
        ConfigError: A column is missing, or a line cannot be read.
    """
    failures = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        names = [name.strip().lower() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        column = {
            wanted: next((name for name in names if name.startswith(wanted)), None)
            for wanted in ("system", "nodenum", "prob started", "prob fixed")
        }
        if None in column.values():
            missing = sorted(wanted for wanted, name in column.items() if name is None)
            raise ConfigError(f"{path} has no column that begins with {missing}")
        keys = {wanted: name or "" for wanted, name in column.items()}
        for row in reader:
            if system is not None and row[keys["system"]].strip() != system:
                continue
            where = f"{path}, line {reader.line_num}"
            began = _moment(row[keys["prob started"]], where)
            fixed = row[keys["prob fixed"]].strip()
            cause = next((c for c in LANL_CAUSES if (row.get(c) or "").strip()), "undetermined")
            failures.append(
                _Failed(
                    when=began,
                    machine=f"{row[keys['system']].strip()}/{row[keys['nodenum']].strip()}",
                    kind=LANL_CAUSES[cause],
                    cause=cause,
                    away_s=(
                        max(0.0, (_moment(fixed, where) - began).total_seconds()) if fixed else None
                    ),
                )
            )
    return _made(
        failures,
        nodes=nodes,
        assumptions="all causes but software take the machine and its memory; a machine that never "
        "failed is not in the trace",
    )


def read_philly(path: Path, *, nodes: int, kind: Kind = "software") -> Trace:
    """Failures of Microsoft's Philly clusters, 2017, from `cluster_job_log` (JSON).

    An attempt fails that another one follows, or the last one of a job that failed; it counts for
    the first machine that it ran on.

    Args:
        path: The file.
        nodes: Positions of the cluster that is simulated.
        kind: What each does to its machine; the trace does not say.

    Raises:
        ConfigError: The file is no such list, or a job lacks what is read of it.
    """
    failures: list[_Failed] = []
    moments: list[datetime] = []
    for number, job in enumerate(_jobs(path)):
        where = f"{path}, job {number}"
        try:
            attempts = [a for a in job["attempts"] if a["end_time"] not in {None, "None"}]
            is_failed = job["status"] == "Failed"
            for place, attempt in enumerate(attempts):
                ended = _moment(attempt["end_time"], where)
                moments.append(ended)
                is_last = place == len(attempts) - 1
                if attempt["detail"] and (is_failed or not is_last):
                    machine = attempt["detail"][0]["ip"]
                    failures.append(_Failed(ended, machine, kind, f"job {job['status']}"))
        except (KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{where} is no job of Philly's trace: {error!r} is missing"
            ) from None
    span = (min(moments), max(moments)) if moments else None
    return _made(
        failures,
        nodes=nodes,
        span=span,
        assumptions=f"every failed attempt is a {kind} failure of the first machine that it ran "
        "on; a failure of the job's own program counts as well",
    )


def _jobs(path: Path) -> Sequence[Mapping[str, Any]]:
    try:
        jobs = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(jobs, list):
        raise ConfigError(f"{path} holds no list of jobs but a {type(jobs).__name__}")
    return jobs


ACME_FAILED: Final[dict[str, Kind]] = {"FAILED": "software", "NODE_FAIL": "hardware"}
"""The states of a job that failed, and what that does to a machine: our reading."""


def read_acme(path: Path, *, nodes: int, least_gpus: int = 8, seed: int = 0) -> Trace:
    """Failures of Shanghai AI Laboratory's Acme clusters, 2023, from `trace_seren.csv` and others.

    Read are the columns state, gpu_num, end_time and, where it is there, fail_time.

    Args:
        path: The file.
        nodes: Positions of the cluster that is simulated.
        least_gpus: Only jobs with so many GPUs or more.
        seed: The trace has no machines: they are drawn.

    Raises:
        ConfigError: A column is missing, or a line cannot be read.
    """
    draw = random.Random(seed)
    failures: list[_Failed] = []
    moments: list[datetime] = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = {"state", "gpu_num", "end_time"} - set(reader.fieldnames or ())
        if missing:
            raise ConfigError(f"{path} lacks the column(s) {sorted(missing)} of Acme's job trace")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not row["end_time"].strip() or _number(row["gpu_num"], where) < least_gpus:
                continue
            moments.append(_moment(row["end_time"], where))
            kind = ACME_FAILED.get(row["state"].strip())
            if kind is not None:
                when = _moment((row.get("fail_time") or "").strip() or row["end_time"], where)
                machine = f"m{draw.randrange(nodes)}"
                failures.append(_Failed(when, machine, kind, row["state"].strip().lower()))
    first = min([*moments, *(one.when for one in failures)], default=None)
    span = None if first is None else (first, max(moments))
    return _made(
        failures,
        nodes=nodes,
        span=span,
        assumptions="FAILED leaves machine and memory alone, NODE_FAIL takes both; machines are "
        "drawn; a failure of the job's own program counts as well",
    )


_FORMS: Final = ("%m/%d/%Y %H:%M", "%m/%d/%y %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%z")


def _moment(text: str, where: str) -> datetime:
    """A moment in one of the traces' forms; a time zone is dropped, for all of a file share one."""
    for form in _FORMS:
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ConfigError(f"{where}: {text!r} is no moment such as '2023-03-01 00:18:22'")


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is no number") from None


def read_trace(path: Path, *, nodes: int, racks: Sequence[str] | None = None) -> tuple[Outage, ...]:
    """The failures in a CSV file with the columns time (in s), node (a position) and kind.

    Kind is one of `KINDS`. Optional columns are cause, factor and lasts (in s); what they are is
    said at `Outage`. A rack's failure names any node of the rack.

    Raises:
        ConfigError: A column is missing, or a line cannot be; the message names it.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = {"time", "node", "kind"} - set(reader.fieldnames or ())
        if missing:
            raise ConfigError(
                f"{path} lacks the column(s) {sorted(missing)}; its first line has to be "
                "'time,node,kind'"
            )
        outages = [
            _parse(row, where=f"{path}, line {reader.line_num}", nodes=nodes, racks=racks)
            for row in reader
        ]
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _parse(row: dict[str, str], *, where: str, nodes: int, racks: Sequence[str] | None) -> Outage:
    try:
        at_s, position = float(row["time"]), int(row["node"])
        factor = float(row.get("factor") or 1.0)
        lasts_s = float(row["lasts"]) if row.get("lasts") else None
    except ValueError as error:
        raise ConfigError(
            f"{where}: time and node have to be numbers, and factor and lasts where they are there "
            f"({error})"
        ) from None
    kind = KINDS.get(row["kind"].strip())
    if not 0 <= position < nodes or not at_s >= 0 or kind is None:
        raise ConfigError(
            f"{where}: time {at_s}, node {position}, kind {row['kind']!r}; a time starts at 0, "
            f"nodes are 0 to {nodes - 1}, kinds are {', '.join(KINDS)}"
        )
    positions: tuple[int, ...] = (position,)
    if kind == "rack":
        if racks is None:
            raise ConfigError(f"{where}: a rack fails, but `racks` is not given")
        positions = tuple(i for i, rack in enumerate(racks) if rack == racks[position])
    try:
        return Outage(
            at_s=at_s,
            kind=kind,
            positions=positions,
            cause=(row.get("cause") or kind).strip(),
            factor=factor,
            lasts_s=lasts_s,
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
