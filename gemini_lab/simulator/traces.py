"""Histories of real clusters: our own form, and those in which public traces come.

What a public trace does not say is an argument with a default, and named in its reader.
"""

import csv
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.failures import DAY_S, KINDS, Kind, Outage
from gemini_lab.simulator.trace_files import Row, moment, number, opened, rows, table
from gemini_lab.units import check_number

MOST_CHARACTERS: Final = 1 << 30
"""Of a list of jobs, which is read as a whole."""
ONE_MACHINE: Final[tuple[Kind, ...]] = ("software", "gpu", "hardware")
"""Kinds of failures that a machine's name alone tells all of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A cluster's failures.

    Attributes:
        outages: In order of time, since the trace's first entry.
        days: From its first entry to its last.
        machines: Names of those that failed; the trace may not know the others.
        assumptions: What it does not say.
    """

    outages: tuple[Outage, ...]
    days: float
    machines: tuple[str, ...]
    assumptions: str


@dataclass(frozen=True, slots=True)
class _Failed:
    """One failure as a trace tells it, with the machine's position where that is known."""

    when: datetime
    machine: str
    kind: Kind
    cause: str
    position: int | None = None


def _made(
    failures: Iterable[_Failed],
    *,
    nodes: int,
    seed: int = 0,
    span: tuple[datetime, datetime] | None = None,
    assumptions: str,
) -> Trace:
    found = sorted(failures, key=lambda one: one.when)
    if not found:
        raise ConfigError("the trace has no failure; give another file, or another system's")
    first, last = span or (found[0].when, found[-1].when)
    place = _places(found, nodes=nodes, seed=seed)
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
        machines=tuple(place),
        assumptions=assumptions,
    )


def _places(failures: Iterable[_Failed], *, nodes: int, seed: int) -> dict[str, int]:
    """Where each machine sits: where it is known to, if all are, else anywhere.

    Machines are dealt to positions at random, for neighbours keep one another's replicas; with more
    machines than positions, several of them share one.
    """
    known = {one.machine: one.position for one in failures}
    names = sorted(known, key=lambda name: (len(name), name))
    given = [known[name] for name in names]
    fit = [position for position in given if position is not None and 0 <= position < nodes]
    if len(set(fit)) == len(names):
        return dict(zip(names, fit, strict=True))
    dealt = random.Random(f"positions {seed}").sample(range(nodes), nodes)
    return {name: dealt[number % nodes] for number, name in enumerate(names)}


LANL_CAUSES: Final[dict[str, Kind]] = {
    "facilities": "hardware",
    "hardware": "hardware",
    "human error": "hardware",
    "network": "hardware",
    "undetermined": "hardware",
    "software": "software",
}
"""The columns of causes in LANL's table, and what each does to a machine: our reading."""


def read_lanl(
    path: Path | str,
    *,
    nodes: int,
    system: str | None = None,
    seed: int = 0,
) -> Trace:
    """Failures of Los Alamos' clusters, 1996 to 2005, from the table of all systems as CSV.

    Read are the columns whose names begin with System, nodenum and Prob Started (month, day, year,
    hour and minute), and those named by causes, in which an entry stands for the cause.
    A machine sits on the position of its nodenum, if that is one of the positions and all are of
    one system.

    Args:
        path: The file.
        nodes: Positions of the cluster that is simulated.
        system: Only this system's lines.
        seed: Of the positions, where no number tells them.

    Raises:
        ConfigError: A column is missing, or a line cannot be read.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    failures = []
    with opened(path) as file:
        keys, rows = _lanl_rows(file, path)
        for where, row in rows:
            of, number = row[keys["system"]].strip(), row[keys["nodenum"]].strip()
            if system is not None and of != str(system):
                continue
            cause = next((c for c in LANL_CAUSES if (row.get(c) or "").strip()), "undetermined")
            failures.append(
                _Failed(
                    when=moment(row[keys["prob started"]], where),
                    machine=f"{of}/{number}",
                    kind=LANL_CAUSES[cause],
                    cause=cause,
                    position=int(number) if number.isdecimal() else None,
                )
            )
    return _made(
        failures,
        nodes=nodes,
        seed=seed,
        assumptions="all causes but software take the machine and its memory; a machine that never "
        "failed is not in the trace; machines whose numbers are no positions are dealt to them at "
        "random",
    )


def _lanl_rows(file: TextIO, path: Path | str) -> tuple[dict[str, str], Iterator[Row]]:
    """The names of the columns that are read, by how they begin, and the lines."""
    names = [name.strip().lower() for name in next(csv.reader(file), ())]
    wanted = ("system", "nodenum", "prob started")
    keys = {begin: next((name for name in names if name.startswith(begin)), "") for begin in wanted}
    missing = sorted(begin for begin, name in keys.items() if not name)
    if missing:
        raise ConfigError(f"{path} has no column that begins with {missing}")
    return keys, rows(file, path, names)


def read_philly(
    path: Path | str,
    *,
    nodes: int,
    kind: Kind = "software",
    seed: int = 0,
) -> Trace:
    """Failures of Microsoft's Philly clusters, 2017, from `cluster_job_log` (JSON).

    An attempt fails that another one follows, or the last one of a job that failed; it counts for
    the first machine that it ran on.

    Args:
        path: The file.
        nodes: Positions of the cluster that is simulated.
        kind: What each does to its machine, one of `ONE_MACHINE`; the trace does not say.
        seed: Of the positions, which the trace does not tell.

    Raises:
        ConfigError: The file is no such list, or a job lacks what is read of it.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    if kind not in ONE_MACHINE:
        raise ConfigError(f"`kind` must be one of {', '.join(ONE_MACHINE)} (got {kind!r})")
    failures: list[_Failed] = []
    moments: list[datetime] = []
    for index, job in enumerate(_jobs(path)):
        where = f"{path}, job {index}"
        try:
            attempts = [a for a in job["attempts"] if a["end_time"] not in {None, "None"}]
            is_failed = job["status"] == "Failed"
            for place, attempt in enumerate(attempts):
                ended = moment(attempt["end_time"], where)
                moments.append(ended)
                is_last = place == len(attempts) - 1
                if attempt["detail"] and (is_failed or not is_last):
                    machine = attempt["detail"][0]["ip"]
                    if not isinstance(machine, str):
                        raise ConfigError(f"{where}: a machine's `ip` is {machine!r}, no name")
                    failures.append(_Failed(ended, machine, kind, f"job {job['status']}"))
        except (KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{where} is no job of Philly's trace: {error!r} is missing"
            ) from None
    span = (min(moments), max(moments)) if moments else None
    return _made(
        failures,
        nodes=nodes,
        seed=seed,
        span=span,
        assumptions=f"every failed attempt is a {kind} failure of the first machine that it ran "
        "on; a failure of the job's own program counts as well; a machine on which no attempt "
        "failed is not counted; machines are dealt to positions at random",
    )


def _jobs(path: Path | str) -> Sequence[Mapping[str, Any]]:
    with opened(path) as file:
        text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"{path} has more than {MOST_CHARACTERS:,} characters, which is too long for a list "
            "of jobs; name another file, or a part of it"
        )
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(jobs, list):
        raise ConfigError(f"{path} holds no list of jobs but a {type(jobs).__name__}")
    return jobs


ACME_FAILED: Final[dict[str, Kind]] = {"FAILED": "software", "NODE_FAIL": "hardware"}
"""The states of a job that failed, and what that does to a machine: our reading."""


def read_acme(path: Path | str, *, nodes: int, least_gpus: int = 8, seed: int = 0) -> Trace:
    """Failures of Shanghai AI Laboratory's Acme clusters, 2023, from `trace_seren.csv` and others.

    Read are the columns state, gpu_num, end_time and, where it is there, fail_time.

    Args:
        path: The file.
        nodes: Positions of the cluster that is simulated.
        least_gpus: Only jobs with so many GPUs or more.
        seed: The trace has no machines: they are drawn, each position as likely as any other.

    Raises:
        ConfigError: A column is missing, or a line cannot be read.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    draw = random.Random(seed)
    failures: list[_Failed] = []
    moments: list[datetime] = []
    with opened(path) as file:
        needed = {"state", "gpu_num", "end_time"}
        for where, row in table(file, path, needed, " of Acme's job trace"):
            if not row["end_time"].strip() or number(row["gpu_num"], where) < least_gpus:
                continue
            moments.append(moment(row["end_time"], where))
            kind = ACME_FAILED.get(row["state"].strip())
            if kind is not None:
                when = moment((row.get("fail_time") or "").strip() or row["end_time"], where)
                spot = draw.randrange(nodes)
                cause = row["state"].strip().lower()
                failures.append(_Failed(when, f"m{spot}", kind, cause, position=spot))
    first = min([*moments, *(one.when for one in failures)], default=None)
    span = None if first is None else (first, max(moments))
    return _made(
        failures,
        nodes=nodes,
        span=span,
        assumptions="FAILED leaves machine and memory alone, NODE_FAIL takes both; machines are "
        "drawn; a failure of the job's own program counts as well",
    )


def read_trace(
    path: Path | str, *, nodes: int, racks: Sequence[str] | None = None
) -> tuple[Outage, ...]:
    """The failures in a CSV file with the columns time (in s), node (a position) and kind.

    Kind is one of `KINDS`. Optional columns are cause, factor and lasts (in s); what they are is
    said at `Outage`. A rack's failure names any node of the rack.

    Raises:
        ConfigError: A column is missing, or a line cannot be; the message names it.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    if racks is not None and len(racks) != nodes:
        raise ConfigError(f"`racks` needs one entry a node: {nodes} (got {len(racks)})")
    needed = {"time", "node", "kind"}
    with opened(path) as file:
        lines = table(file, path, needed, "; its first line has to be 'time,node,kind'")
        outages = [_parse(row, where=where, nodes=nodes, racks=racks) for where, row in lines]
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
    if not 0 <= position < nodes or not 0 <= at_s < math.inf or kind is None:
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
