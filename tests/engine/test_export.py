"""Exported weights are the engine's own, in files that load without gemini_lab."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gemini_lab.errors import ConfigError, IntegrityError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import PersistStarted
from gemini_lab.log.file import EventLog
from gemini_lab.shard.codec import decode_framed
from gemini_lab.shard.layout import ShardLayout
from gemini_lab.storage.export import command, export_weights, tier_url
from gemini_lab.storage.persistent import PersistentTier

CASES = [{"stage": stage, "optimizer": "Adam"} for stage in (1, 2, 3)]
CASES += [
    {"stage": 1, "optimizer": "Adam", "dtype": "bfloat16"},
    {"stage": 2, "optimizer": "SGD", "tied": True, "zero": {"round_robin_gradients": True}},
    {"stage": 3, "optimizer": "AdamW", "tied": True, "zero": {"sub_group_size": 50}},
    {"stage": 3, "optimizer": "AdamW", "dtype": "bfloat16", "frozen": True},
]


def trained(server, folder, case):
    """The persistent tier of a run that trained six updates, and DeepSpeed's own weights."""
    found = server.run(folder, case=case, seed=1, weights=True)
    tier = PersistentTier(str(folder / "persistent"))
    records = [
        tier.write_shard(
            6,
            rank,
            (folder / f"end-{rank}.bin").read_bytes(),
            ShardLayout.from_json(found[rank]["layout"]),
        )
        for rank in range(2)
    ]
    tier.commit(6, records, {})
    return tier, load_file(folder / "weights.safetensors")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_exported_weights_are_those_that_deepspeed_gathers(server, tmp_path, case):
    tier, expected = trained(server, tmp_path, case)
    done = export_weights(
        tmp_path, to=tmp_path / "out" / "model.safetensors", trained_only="frozen" in case
    )
    weights = load_file(done.path)
    payload, layout = tier.read_file(6, 0)
    names = {name for name in expected if name not in layout.frozen}
    buffers = decode_framed(payload)["buffers"]
    assert buffers.keys() == {"norm.mean", "passes"}
    assert weights.keys() == names | buffers.keys() | set(layout.aliases)
    for name in names:
        assert weights[name].dtype == torch.float32
        assert tuple(weights[name].shape) == tuple(layout.weights[name])
        assert torch.equal(weights[name].reshape(-1), expected[name])
    assert torch.equal(weights["norm.mean"], buffers["norm.mean"])
    if case.get("tied"):
        assert layout.aliases == {"again.weight": "middle.weight"}
        assert torch.equal(weights["again.weight"], weights["middle.weight"])
    assert (done.version, done.tensors, done.skipped) == (6, len(weights), {})


def test_frozen_weights_come_from_the_file_where_training_began(server, tmp_path):
    case = {"stage": 3, "optimizer": "AdamW", "frozen": True, "tied": True}
    _, expected = trained(server, tmp_path, case)
    target, base = tmp_path / "model.safetensors", tmp_path / "base.safetensors"
    with pytest.raises(ConfigError, match=r"2 weights were frozen .*first.weight.* --base"):
        export_weights(tmp_path, to=target)
    save_file({name: expected[name] for name in ("first.weight", "first.bias")}, base)
    weights = load_file(export_weights(tmp_path, to=target, base=base).path)
    assert torch.equal(weights["first.weight"], expected["first.weight"])
    assert "middle.weight" in weights


def test_the_command_writes_a_file_for_torch_too(server, tmp_path, capsys):
    _, expected = trained(server, tmp_path, {"stage": 2, "optimizer": "SGD", "tied": True})
    assert command([str(tmp_path), "--to", str(tmp_path / "model.pt")]) == 0
    assert "version 6: 10 tensors" in capsys.readouterr().out
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(weights["last.weight"].reshape(-1), expected["last.weight"])
    assert weights["again.weight"].data_ptr() == weights["middle.weight"].data_ptr()


def test_a_damaged_version_is_stepped_over_and_told(server, tmp_path):
    tier, _ = trained(server, tmp_path, {"stage": 2, "optimizer": "SGD"})
    layouts = [tier.read_file(6, rank)[1] for rank in range(2)]
    records = [
        tier.write_shard(7, rank, tier.read_file(6, rank)[0], layouts[rank]) for rank in range(2)
    ]
    tier.commit(7, records, {})
    path = next((tmp_path / "persistent").glob("*7/shard-0001-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = export_weights(tmp_path, to=tmp_path / "model.safetensors")
    assert done.version == 6
    assert "shard 1 of version 7" in done.skipped[7]
    with pytest.raises(IntegrityError, match="shard 1 of version 7"):
        export_weights(tmp_path, to=tmp_path / "model.safetensors", version=7)


def test_the_tier_of_a_run_is_found(tmp_path):
    with pytest.raises(ConfigError, match="has no persistent tier"):
        tier_url(tmp_path)
    log = EventLog(tmp_path / "events.jsonl")
    started = PersistStarted(version=3, url="s3://bucket/run")
    log.append(Entry(at_s=0.0, node="lab", event=started))
    log.close()
    assert tier_url(tmp_path) == "s3://bucket/run"
    (tmp_path / "persistent").mkdir()
    assert tier_url(tmp_path) == str(tmp_path / "persistent")
    assert tier_url("memory://x") == "memory://x"


def test_a_run_is_found_by_its_name_as_in_other_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gemini-runs" / "mine"
    (folder / "persistent").mkdir(parents=True)
    (folder / "events.jsonl").touch()
    for name in ("mine", "latest", "gemini-runs/mine"):
        assert Path(tier_url(name)).resolve() == folder / "persistent"
    monkeypatch.chdir("/")
    assert tier_url("mine", below=folder.parent) == str(folder / "persistent")
    with pytest.raises(ConfigError, match="'yours' is no run"):
        tier_url("yours")


def test_an_empty_tier_and_a_wrong_suffix_are_refused(tmp_path):
    (tmp_path / "persistent").mkdir()
    with pytest.raises(IntegrityError, match="no whole version yet"):
        export_weights(tmp_path, to=tmp_path / "model.pt")
    with pytest.raises(ConfigError, match=r"end its name in \.safetensors or \.pt"):
        export_weights(tmp_path, to=tmp_path / "model.bin")


def test_layouts_of_all_ranks_describe_one_model(server, tmp_path):
    tier, expected = trained(server, tmp_path, {"stage": 3, "optimizer": "Adam"})
    layouts = [tier.read_file(6, rank)[1] for rank in range(2)]
    assert layouts[0].identity == layouts[1].identity
    assert all(isinstance(layout, ShardLayout) for layout in layouts)
    pieces = [piece for layout in layouts for piece in layout.pieces if not piece.state]
    held = sum(piece.numel for piece in pieces)
    assert held == sum(math.prod(shape) for shape in layouts[0].weights.values())
    assert held == sum(weight.numel() for weight in expected.values())
