"""`gemini-lab inject RUN FAILURE [PLACE]`: break something in a live run, from a shell."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import FAILURES, Failure
from gemini_lab.lab.run import CONTROL_FILE
from gemini_lab.log.file import find_run
from gemini_lab.recovery.messages import (
    ControlHello,
    Done,
    InjectFailure,
    Message,
    Refused,
    StopRun,
)
from gemini_lab.wire.tcp import connect


def command(arguments: list[str]) -> int:
    """Ask the lab of a live run to make a failure happen."""
    parser = argparse.ArgumentParser(prog="gemini-lab inject", description=command.__doc__)
    parser.add_argument("run", help="the run's folder, or 'latest'")
    parser.add_argument("failure", choices=[*FAILURES, "stop"], help="what breaks; stop ends it")
    parser.add_argument("place", nargs="*", help="node-2, rank-2 (the node of that rank) or root")
    parser.add_argument("--shard", type=int, help="for bit_flip: which shard's replica")
    options = parser.parse_args(arguments)
    folder = find_run(options.run)
    if options.failure == "stop":
        print(ask(folder, StopRun()))  # noqa: T201
        return 0
    failure = read_failure(options.failure, options.place, options.shard)
    print(ask(folder, InjectFailure(failure=failure.to_json())))  # noqa: T201
    return 0


def read_failure(kind: str, places: list[str], shard: int | None) -> Failure:
    """The failure that the command line means.

    Raises:
        ConfigError: The kind needs another number of places.
    """
    record: dict[str, Any] = {"kind": kind}
    if kind == "nodes_loss":
        record["nodes"] = places
    elif kind == "rack_loss":
        record["rack"] = " ".join(places)
    elif len(places) == 1:
        record["node"] = places[0]
    elif places:
        raise ConfigError(f"{kind} takes one place (got {len(places)}: {' '.join(places)})")
    if shard is not None:
        record["shard"] = shard
    return Failure.from_json(record)


def ask(folder: Path, message: StopRun | InjectFailure) -> str:
    """Send one message to the lab of the run in `folder`; returns what it did.

    Raises:
        ConfigError: No live run is there, or the lab refuses.
    """
    try:
        control = json.loads((folder / CONTROL_FILE).read_text(encoding="utf-8"))
        answer = asyncio.run(_ask(control, message))
    except (OSError, TimeoutError) as error:
        raise ConfigError(
            f"no live run is in {folder} ({type(error).__name__}); give the folder of one that is "
            "under way"
        ) from error
    match answer:
        case Done():
            return answer.text
        case Refused():
            raise answer.to_error()
    raise ConfigError(f"the lab of {folder} is closing")


async def _ask(control: dict[str, str], message: StopRun | InjectFailure) -> Message | None:
    channel = await connect(control["address"], control["token"], ControlHello(), timeout_s=5)
    channel.send(message)
    answer = await asyncio.wait_for(channel.receive(), 5)
    channel.close()
    return answer
