"""Claims about the text and the order in which ranks read it."""

import json
import os
import sysconfig
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.training.corpus import (
    Corpus,
    TokenBatches,
    folder_corpus,
    hugging_face_corpus,
    load_corpus,
)

TEXT = Corpus(name="a test", text=bytes(range(256)) * 8)


def test_the_default_text_is_pythons_own_and_the_same_each_time():
    corpus = load_corpus()

    assert b"class ThreadPoolExecutor" in corpus.text  # source
    assert b"The ``assert`` statement" in corpus.text or b'The "assert" statement' in corpus.text
    assert corpus.digest() == load_corpus().digest()


def test_installed_packages_and_tests_are_not_looked_into_wherever_python_lies(
    tmp_path, monkeypatch
):
    root = tmp_path / "test" / "lib" / "python3"
    for name in (
        "ast.py",
        "email/mime.py",
        "email/tests/test_mime.py",
        "site-packages/torch/nn.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    looked_into = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda at: looked_into.append(Path(at).name) or scandir(at))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(root))

    assert load_corpus().text == b"ast.py\nemail/mime.py"
    assert looked_into == ["python3", "email"]


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.txt").write_bytes(b"first")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden")

    assert folder_corpus(tmp_path).text == b"first\nsecond"
    assert load_corpus(str(tmp_path / "b.txt")).text == b"second"


def test_a_folder_below_a_hidden_one_is_not_hidden(tmp_path):
    folder = tmp_path / ".texts" / "mine"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"seen")

    assert folder_corpus(folder).text == b"seen"


def test_missing_or_empty_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no text is at"):
        load_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="holds no text"):
        load_corpus(str(tmp_path))
    with pytest.raises(ConfigError, match="needs 1025 bytes and short has 3"):
        TokenBatches(Corpus(name="short", text=b"abc"), 4, 64, world_size=4)


def test_a_hugging_face_data_set_is_read_once_and_kept(tmp_path):
    pytest.importorskip("datasets")
    data = tmp_path / "data"
    data.mkdir()
    records = [{"id": i, "text": f"article {i}"} for i in range(3)]
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, records)))
    cache = tmp_path / "cache"

    corpus = hugging_face_corpus(str(data), cache=cache)
    (data / "train.jsonl").unlink()  # from here on only the kept text can answer
    again = hugging_face_corpus(str(data), cache=cache)

    assert corpus.text == b"article 0\narticle 1\narticle 2\n"
    assert again.text == corpus.text


def test_a_hugging_face_data_set_stops_at_its_limit_and_says_what_it_lacks(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "a" * 100}))
    limited = hugging_face_corpus(str(tmp_path), limit_bytes=10, cache=tmp_path / "kept")
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.jsonl").write_text(json.dumps({"body": "no such column"}))

    assert limited.text == b"a" * 10
    with pytest.raises(ConfigError, match="no column `text`"):
        hugging_face_corpus(str(other), cache=tmp_path / "kept")
    with pytest.raises(ConfigError, match="cannot be read"):
        hugging_face_corpus(str(tmp_path / "absent"), cache=tmp_path / "kept")


def test_targets_are_the_bytes_that_follow():
    tokens, targets = next(TokenBatches(TEXT, 3, 16, seed=5))

    assert tokens.shape == targets.shape == (3, 16)
    assert tokens.dtype == torch.int64
    assert torch.equal(targets, (tokens + 1) % 256)


@given(
    world_size=st.integers(1, 4),
    batch=st.integers(1, 3),
    seed=st.integers(0, 9),
    before=st.integers(0, 40),
)
def test_a_restored_position_repeats_and_skips_nothing(world_size, batch, seed, before):
    """Also across the end of an epoch: 127 blocks of 16 bytes are dealt again and again."""

    def fresh():
        return TokenBatches(TEXT, batch, 16, seed, rank=world_size - 1, world_size=world_size)

    steady = fresh()
    for _ in range(before):
        next(steady)
    state = json.loads(json.dumps(steady.state_dict()))
    restored = fresh()
    restored.load_state_dict(state)

    for _ in range(20):
        assert all(map(torch.equal, next(steady), next(restored)))


def test_ranks_share_an_epoch_without_overlap():
    unique = Corpus(name="numbers", text=b"".join(i.to_bytes(2, "big") for i in range(257)))
    ranks = [TokenBatches(unique, 2, 2, 3, rank=rank, world_size=4) for rank in range(4)]
    read = [tuple(row) for _ in range(32) for rank in ranks for row in next(rank)[0].tolist()]

    assert len(read) == len(set(read)) == 256


def test_epochs_differ_in_order():
    batches = TokenBatches(TEXT, 127, 16)

    assert not torch.equal(next(batches)[0], next(batches)[0])


@pytest.mark.parametrize("change", [{"seed": 2}, {"rank": 1}, {"world_size": 3}, {"block_size": 8}])
def test_a_position_in_something_else_is_refused(change):
    settings = {"block_size": 16, "seed": 1, "rank": 0, "world_size": 2}
    state = TokenBatches(TEXT, 2, **settings).state_dict()

    with pytest.raises(ConfigError, match=next(iter(change))):
        TokenBatches(TEXT, 2, **(settings | change)).load_state_dict(state)


def test_a_position_in_another_text_is_refused():
    other = Corpus(name="another", text=TEXT.text[::-1])

    with pytest.raises(ConfigError, match="corpus="):
        TokenBatches(other, 2, 16).load_state_dict(TokenBatches(TEXT, 2, 16).state_dict())
