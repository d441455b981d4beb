"""Reads what Weights & Biases wrote while it was offline."""

import json
from pathlib import Path


def rows_in(folder: Path):
    """The rows of the only run's curves below `folder`, by name, in order."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return [_row(record.history) for record in _records(file.read_bytes()) if record.history.item]


def axes_in(folder: Path):
    """The axis over which each pattern of curves is drawn, in the only run below `folder`."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    told = (record.metric for record in _records(file.read_bytes()))
    return {one.glob_name: one.step_metric for one in told if one.glob_name}


def _row(history):
    keys = (one.key or "/".join(one.nested_key) for one in history.item)
    values = (json.loads(one.value_json) for one in history.item)
    return dict(zip(keys, values, strict=True))


def _records(data):
    """The records of W&B's file: seven bytes, then LevelDB's log format in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    place, whole = 7, b""
    while place + 7 <= len(data):
        if 0x8000 - place % 0x8000 < 7:
            place += 0x8000 - place % 0x8000
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if place + 7 + size > len(data):
            return  # still being written
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in {1, 4}:  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""
