"""`gemini-lab run --dry-run`: every decision with its origin; nothing is started."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.job import Job
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.submission import Submission
from gemini_lab.launch.mpi import find_mpiexec
from gemini_lab.limits import read_file
from gemini_lab.recovery.resizes import smaller_sizes
from gemini_lab.seats import Seats, node_name
from gemini_lab.settings import Settings, SettingValue, origins
from gemini_lab.storage import absolute_url, persistent_tier
from gemini_lab.units import format_bytes, format_seconds

MOST_NODES: Final = 16
_NAMED: Final = re.compile(r"""["']([^"'\s]+\.json)["']""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBlock:
    """The `"gemini"` block of the configuration that a script will read, as far as it is seen."""

    settings: Mapping[str, SettingValue] = field(default_factory=dict)  # what stands in it
    source: str  # the file, or why none was found, for people


def find_block(job: Job) -> ConfigBlock:
    """Return the block in a JSON file that the job's arguments name, or its script.

    The script alone decides what it hands to `deepspeed.initialize`, so this is a guess, and says
    so.

    Raises:
        ConfigError: Such a file has a block that cannot be read.
    """
    in_script: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        if not job.module:
            in_script = _NAMED.findall(read_file(Path(job.cwd) / job.script))
    given = [value for arg in job.args for value in (arg, arg.partition("=")[2])]
    for where, names in (("its arguments name", given), (f"{job.script} names", in_script)):
        for name in names:
            block = _block_in(Path(job.cwd) / name) if name.endswith(".json") else None
            if block is not None:
                return ConfigBlock(settings=block, source=f"in {name}, which {where}")
    return ConfigBlock(
        source="not seen from here: what the script gives to deepspeed.initialize or to protect "
        "counts, and the report has it"
    )


def look_at_tier(wanted: Submission, block: ConfigBlock) -> None:
    """Refuse a persistent tier, named in the script's configuration alone, that the run would.

    One that the command names has been looked at before.

    Raises:
        ConfigError: It is another run's, or a folder in which this user may not write.
        GeminiError: The store failed.
    """
    url = block.settings.get("persistent_url")
    if isinstance(url, str) and "persistent_url" not in wanted.settings:
        tier = persistent_tier(absolute_url(url, cwd=wanted.job.cwd))
        tier.look(is_resumed=wanted.is_resumed)


def _block_in(path: Path) -> dict[str, SettingValue] | None:
    """Return the block in a file; `None` if there is none.

    Raises:
        ConfigError: It cannot be read, or is too large for a configuration.
    """
    try:
        text = read_file(path)
    except (OSError, UnicodeDecodeError):
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if '"gemini"' not in text:
            return None
        raise ConfigError(f"{path} is no JSON: {error}; correct it there") from error
    block = content.get("gemini") if isinstance(content, dict) else None
    if block is None or isinstance(block, dict):
        return block
    raise ConfigError(
        f'"gemini" in {path} has to be an object, such as {{"replicas": 2}} (got '
        f"{json.dumps(block)})"
    )


def describe_decided(
    config: LabConfig, wanted: Submission, block: ConfigBlock, *, with_defaults: bool = False
) -> Iterator[str]:
    """Yield every decision on a line, for the user.

    Args:
        config: The lab.
        wanted: The job with the settings of the command line.
        block: The settings that its script is seen to name.
        with_defaults: Whether settings with default values have a line, too.

    Raises:
        ConfigError: The script's block is impossible.
    """
    is_shared = not config.hosts.names and config.join is None
    defaults = wanted.order(number=1, shared=config.folder / wanted.name if is_shared else None)
    layers = (defaults.defaults, block.settings, wanted.settings)
    settings = Settings.layered(*layers)
    seats = wanted.seats.seated([node_name(number) for number in range(config.nodes)])
    job = wanted.job
    rows = {
        "script": shlex.join([*(["-m"] if job.module else []), job.script, *job.args]),
        "in": job.cwd,
        "ranks": f"{seats.world_size}: {config.workers_per_node} on each of {config.nodes} nodes; "
        f"and standbys: {config.standbys}",
        "machines": _machines(config),
        "store": _store(config),
        "folder": str(config.folder / wanted.name),
        "if short": _if_short(seats, settings),
        "resumes": _resumes(wanted, settings, ranks=seats.world_size),
    }
    yield from (f"{name:<10}{text}" for name, text in rows.items())
    yield ""
    yield from _seating(config, seats, settings)
    yield ""
    yield f"settings  the config block is {block.source}"
    said, values = origins(*layers), settings.to_json()
    named = [name for name in values if with_defaults or said[name] != "default"]
    for name in named:
        yield f"  {name:<26}{said[name]:<14}{_shown(name, values[name])}"
    if left_out := len(values) - len(named):
        yield f"  {left_out} more settings have their defaults; --all lists them"


def _if_short(seats: Seats, settings: Settings) -> str:
    """Return what the run does if a machine is lost and there is no other."""
    if settings.when_short == "wait":
        return "waits for a machine"
    placed = None if seats.placement is None else seats.placement.nodes
    sizes = smaller_sizes(settings, seats.nodes, placed=placed)
    if not sizes:
        return (
            f"WAITS for a machine: with replicas={settings.replicas} and "
            f"strategy={settings.strategy!r} no fewer than {seats.nodes} nodes can continue"
        )
    after = (
        f"after {format_seconds(settings.shrink_after_s)}" if settings.shrink_after_s else "then"
    )
    return f"{after} continues with those that are left: {', '.join(map(str, sizes))} nodes"


def _machines(config: LabConfig) -> str:
    if config.join is not None:
        return f"those that join as {config.join!r}, waited for {format_seconds(config.wait_s)}"
    try:
        by = f"started by {find_mpiexec()}"
    except GeminiError as error:
        by = f"NOT TO BE STARTED: {error}"
    if not config.hosts.names:
        return f"this one alone: every node is a process group here, {by}"
    spare = len(config.hosts.names) - config.seats.machines
    return f"{len(config.hosts.names)} hosts, {spare} of them spare, {by}"


def _store(config: LabConfig) -> str:
    if config.etcd is not None:
        return ", ".join(config.etcd.endpoints)
    return "an etcd of its own, on this machine"


def _resumes(wanted: Submission, settings: Settings, *, ranks: int) -> str:
    url = settings.persistent_url
    if not wanted.is_resumed:
        return "nothing: it begins at its start (--resume)"
    if url is None:
        return "nothing: no persistent tier is named (--persistent-url)"
    try:
        there = persistent_tier(url).survey()
        if there.unclear:
            return f"not known yet: {there.unclear[-1].seen}"
        if not there.stored:
            return f"no version is there yet, so its start, from {url}"
        newest = there.stored[-1].version
        then = persistent_tier(url).shards(newest)
    except GeminiError as error:
        return f"not known yet: {error}"
    recut = "" if then == ranks else f" of {then} ranks, divided again for {ranks}"
    return f"version {newest}{recut}, from {url}"


def _seating(config: LabConfig, seats: Seats, settings: Settings) -> Iterator[str]:
    """Yield the nodes with their hosts, ranks and shards."""
    placed = seats.placed(settings)
    copies = f"{settings.replicas} copies of each shard"
    if settings.adapt_replicas:
        copies = (
            f"{placed.holders.replicas} copies of each shard at least, if shards fit; workers "
            "choose when they know their sizes, and copies follow the risk"
        )
    yield f"placement {placed.holders.strategy}: {copies}; {_survival(placed)}"
    hosts = config.hosts.names
    for number in range(min(seats.machines, MOST_NODES)):
        host = f"on {hosts[number]}" if hosts else ""
        if number >= seats.nodes:
            role = "standby"
        else:
            ranks = placed.ranks_at(number)
            kept = sorted({shard for rank in ranks for shard in placed.kept_shards(rank)})
            role = f"{_span(ranks)}, keeps shards {' '.join(map(str, kept))}"
        rack = seats.rack_of.get(node_name(number))
        role += f", in rack {rack}" if rack else ""
        yield f"  {node_name(number):<10}{host:<16}{role}".rstrip()
    if seats.machines > MOST_NODES:
        yield f"  ... and {seats.machines - MOST_NODES} more nodes in the same way"


def _survival(placed: Seats) -> str:
    singly = all(placed.holders.survives([position]) for position in range(placed.nodes))
    return "any one node may be lost" if singly else "NO node may be lost: raise replicas"


def _span(ranks: range) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def _shown(name: str, value: SettingValue) -> str:
    if value is None:
        return "none"
    if name.endswith("_s") and not name.endswith("_per_s") and isinstance(value, int | float):
        return format_seconds(value)
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if name.endswith("_bytes_per_s") and isinstance(value, int | float):
        return f"{format_bytes(value)}/s"
    return str(value)
