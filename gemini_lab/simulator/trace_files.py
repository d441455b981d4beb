"""Reading a trace's file: what is wrong with it is said with its place."""

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from gemini_lab.errors import ConfigError

Row = tuple[str, dict[str, str]]
"""Where a line stands, for people, and its columns by their names."""


@contextmanager
def opened(path: Path | str) -> Iterator[TextIO]:
    """The text of a trace's file.

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


def rows(file: TextIO, path: Path | str, names: Sequence[str]) -> Iterator[Row]:
    """Each line after the first, with its place.

    Raises:
        ConfigError: A line ends before the last column.
    """
    reader = csv.DictReader(file, names)
    for row in reader:
        where = f"{path}, line {reader.line_num + 1}"
        if None in row.values():
            raise ConfigError(f"{where} has fewer columns than the first line")
        yield where, row


def table(file: TextIO, path: Path | str, needed: set[str], instead: str) -> Iterator[Row]:
    """The lines of a file that has these columns.

    Raises:
        ConfigError: A column is missing, now; or a line is short, later.
    """
    names = next(csv.reader(file), [])
    missing = sorted(needed - set(names))
    if missing:
        raise ConfigError(f"{path} lacks the column(s) {missing}{instead}")
    return rows(file, path, names)


FORMS: Final = ("%m/%d/%Y %H:%M%z", "%m/%d/%y %H:%M%z", "%Y-%m-%d %H:%M:%S%z")


def moment(text: object, where: str) -> datetime:
    """A moment in one of the traces' forms; without a time zone it is taken to be in UTC.

    Raises:
        ConfigError: It is none.
    """
    told = text.strip() if isinstance(text, str) else ""
    for form in FORMS:
        for zoned in (told, f"{told}+0000"):
            try:
                return datetime.strptime(zoned, form).astimezone(UTC)
            except ValueError:
                continue
    raise ConfigError(f"{where}: {text!r} is no moment such as '2023-03-01 00:18:22'")


def number(text: str, where: str) -> float:
    """A finite number.

    Raises:
        ConfigError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {text!r} is no number")
    return value
