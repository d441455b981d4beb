"""The replica map in words: what would follow if a node died, chances, and what shapes mean."""

from collections.abc import Iterable
from typing import Any, Final

from gemini_lab.report.reducers.course import ENDED
from gemini_lab.report.tables.replica_map import LossOutcome, ReplicaTable
from gemini_lab.report.tables.status import NodeRow, Status
from gemini_lab_widgets.pictures.palette import BLUE, ORANGE, RED, SKY, css, esc, shown

SHARDS_NAMED: Final = 12
RACKS_NAMED: Final = 4


def when(status: Status) -> str:
    """Return when the node is thought to die: not now if the run is over, or looked back at."""
    if status.is_past:
        return "then"
    return "at the run's end" if status.phase in ENDED else "now"


def questions(table: ReplicaTable, when: str) -> dict[str, list[Any]]:
    """Return each node's name, its number, and what its loss would mean, as HTML."""
    answers = {answer.position: answer for answer in table.what_if}
    return {
        "name": [shown(node.name) for node in table.nodes],
        "key": [str(position) for position in range(len(table.nodes))],
        "html": [
            _html(placed(node), *_answer(answers.get(position), table), when=when) + keeps
            for position, (node, keeps) in enumerate(zip(table.nodes, _keepers(table), strict=True))
        ],
    }


def placed(node: NodeRow) -> str:
    """Return a node's name, its rack if the log names it, and what its ranks are if they differ."""
    name = f"{shown(node.name)} in {shown(node.rack)}" if node.rack else shown(node.name)
    return f"{name} ({shown('; '.join(node.places))})" if node.places else name


def _keepers(table: ReplicaTable) -> list[str]:
    """Return for each position who keeps its shard, and whose it keeps, as HTML."""
    kept_by: list[list[str]] = [[] for _ in table.nodes]
    keeps: list[list[str]] = [[] for _ in table.nodes]
    for copy in table.copies:
        if not copy.is_own:
            kept_by[copy.shard].append(_node(table, copy.position))
            keeps[copy.position].append(_node(table, copy.shard))
    return [
        f"<p>Its shard is also on: <b>{', '.join(by) or 'no other node'}</b>.</p>"
        f"<p>It keeps those of: <b>{', '.join(of) or 'no other node'}</b>.</p>"
        for by, of in zip(kept_by, keeps, strict=True)
    ]


def _node(table: ReplicaTable, position: int) -> str:
    return f"{esc(shown(table.nodes[position].name))} ({position})"


def _answer(answer: LossOutcome | None, table: ReplicaTable) -> tuple[str, str, str]:
    """Return what goes, what memory would lack, and from where the node's own shard would come."""
    if answer is None:
        return "no placement known", "", ""
    node = table.nodes[answer.position]
    if node.health == "lost":
        return "it is lost already", "see the map", _origin(answer, table)
    copies = "copy of shard" if len(answer.lost_copies) == 1 else "copies of shards"
    goes = f"its {copies} {_list(answer.lost_copies)} would go with it"
    lost = "no shard: each has another whole copy"
    if answer.lost_shards:
        lost = f"shard {_list(answer.lost_shards)}: no other copy is whole"
    elif table.version is None:
        lost = "no version is whole in memory anyway"
    return goes, lost, _origin(answer, table)


def _origin(answer: LossOutcome, table: ReplicaTable) -> str:
    if answer.tier == "memory" and answer.holder is not None:
        holder = shown(table.nodes[answer.holder].name)
        return f"memory of {holder}, version {answer.version:,}"
    if answer.tier == "persistent":
        return f"the persistent tier, version {answer.version:,}, as all other shards"
    return "nowhere: training would start from scratch"


def _html(name: str, goes: str, lost: str, origin: str, *, when: str) -> str:
    dies = "died now" if when == "now" else f"had died {when}"
    goes = goes if when == "now" else goes.replace("would go", "would have gone")
    come = "come" if when == "now" else "have come"
    return (
        f"<div class=if><p>If <b>{esc(name)}</b> {esc(dies)}, {esc(goes)}.</p>"
        f"<p>Lost from memory: <b>{esc(lost)}</b>.</p>"
        f"<p>Its own shard would {come} from: <b>{esc(origin)}</b>.</p></div>"
    )


def _list(shards: Iterable[int]) -> str:
    numbers = list(shards)
    some = ", ".join(map(str, numbers[:SHARDS_NAMED]))
    return f"{some} and {len(numbers) - SHARDS_NAMED} more" if numbers[SHARDS_NAMED:] else some


def describe(table: ReplicaTable) -> str:
    """Return the map in one or two sentences."""
    if not table.copies:
        return "The log has no placement yet."
    whole = sum(copy.state == "whole" for copy in table.copies)
    copies = f"{whole:,} of {len(table.copies):,} copies are whole"
    if whole == len(table.copies):
        copies = f"all {whole:,} copies are whole"
    version = (
        "no version is whole in memory"
        if table.version is None
        else (f"memory would give version {table.version:,}")
    )
    stored = table.persistent_version
    persistent = (
        "the persistent tier has none"
        if stored is None
        else (f"the persistent tier version {stored:,}")
    )
    kinds = {"group": "groups", "mixed": "groups and a ring", "uneven": "places by memory"}
    return (
        f"{len(table.nodes):,} nodes in {kinds.get(table.strategy, table.strategy)}, "
        f"{table.replicas} copies of each shard: {copies}; {version}, {persistent}."
        f"{_in_racks(table)}"
    )


def _in_racks(table: ReplicaTable) -> str:
    """Return what the loss of a rack would take; empty if the log names none."""
    if not table.racks:
        return ""
    count = f" The nodes are in {len(table.racks):,} rack{'s'[: len(table.racks) > 1]}"
    if not table.in_one_rack:
        return f"{count}, and no shard has all its copies in the same rack."
    shards = "shard" if len(table.in_one_rack) == 1 else "shards"
    racks = ", ".join(shown(rack) for rack in sorted(set(table.in_one_rack.values()))[:RACKS_NAMED])
    return f"{count}; all copies of {shards} {_list(table.in_one_rack)} are in one rack ({racks})."


def chances(table: ReplicaTable) -> str:
    """Return a small table of chances, as HTML."""
    if not table.survival:
        return ""
    rows = "".join(
        f"<tr><td>{one.lost} lost</td><td><b>{one.percent}</b></td><td>{one.how}</td></tr>"
        for one in table.survival
    )
    return (
        "<p>Chance that memory keeps every shard when any so many nodes are lost "
        f"at once (with all copies whole):</p><table>{rows}</table>"
    )


def key(*, is_round: bool) -> str:
    """Return what shapes and colours mean, as HTML."""
    own, peer = _coloured("■", BLUE), _coloured("■", SKY)
    missing = _whole(f"{_coloured('⇢', ORANGE)} not there yet")
    if not is_round:
        lines = [
            f"Each column is a shard: on top its owner's copy {own}, beneath replicas {peer};",
            "a number says on which position a copy lies; the root agent's have a frame",
            f"{_coloured('■', ORANGE)} not there yet &nbsp; {_coloured('■', RED)} node lost",
        ]
    else:
        lines = [
            " &nbsp; ".join(
                map(_whole, ("● training", "▲ recovering or failed", "⊠ lost", "□ standby"))
            ),
            f"{_whole(f'{own} own copy')} &nbsp; "
            + _whole(f"{_coloured('→', SKY)} replica, from owner to holder"),
            f"{missing} &nbsp; " + _whole(f"{_coloured('⇢', RED)} node lost"),
            "▷ a newer version is being written",
        ]
    return f"<div class=key>{'<br>'.join(lines)}</div>"


def _whole(meaning: str) -> str:
    return f"<span style='white-space:nowrap'>{meaning}</span>"


def _coloured(sign: str, colour: str) -> str:
    return f"<b style='color:{css(colour)}'>{sign}</b>"
