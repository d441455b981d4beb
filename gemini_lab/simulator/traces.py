"""A reader of a cluster's own history of failures."""

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.failures import KINDS, Outage
from gemini_lab.units import check_number


def read_trace(
    path: Path | str, *, nodes: int, racks: Sequence[str] | None = None
) -> tuple[Outage, ...]:
    """Read the failures in a CSV file with columns time (in s), node (a position) and kind.

    Kind is one of `KINDS`. Optional columns are cause, factor and lasts (in s); what they are is
    said at `Outage`. A rack's failure names any node of the rack.

    Raises:
        ConfigError: A column is missing, or a line cannot be; the message names it.
    """
    check_number("nodes", nodes, least=1, is_whole=True)
    if racks is not None and len(racks) != nodes:
        raise ConfigError(f"`racks` needs one entry a node: {nodes} (got {len(racks)})")
    needed = {"time", "node", "kind"}
    with _opened(path) as file:
        lines = _rows(file, path, needed)
        outages = [_parse(row, where=where, nodes=nodes, racks=racks) for where, row in lines]
    return tuple(sorted(outages, key=lambda outage: outage.at_s))


def _rows(file: TextIO, path: Path | str, needed: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each line's place, for people, and its columns by their names.

    Raises:
        ConfigError: A column is missing, or a line ends before the last one.
    """
    names = next(csv.reader(file), [])
    if missing := sorted(needed - set(names)):
        raise ConfigError(
            f"{path} lacks the column(s) {missing}; its first line has to be 'time,node,kind'"
        )
    reader = csv.DictReader(file, names)
    for row in reader:
        where = f"{path}, line {reader.line_num + 1}"
        if None in row.values():
            raise ConfigError(f"{where} has fewer columns than the first line")
        yield where, row


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


@contextmanager
def _opened(path: Path | str) -> Iterator[TextIO]:
    """Read the text of a trace's file.

    Raises:
        ConfigError: There is none, or it cannot be read, now or further on.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"cannot read a trace from {path} ({error.strerror}); name its file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error}); save it as such") from None
    except csv.Error as error:
        raise ConfigError(f"{path} is no CSV ({error}); save it as such") from None
