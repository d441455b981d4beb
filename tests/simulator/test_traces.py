"""A cluster's own trace is read, or refused with the place at which it cannot be."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import read_trace


def test_a_file_may_begin_with_a_mark_of_its_encoding_and_be_named_by_text(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("\ufefftime,node,kind\n1,1,software\n", encoding="utf-8")
    assert len(read_trace(str(path), nodes=4)) == 1


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read a trace from .*No such file"):
        read_trace(tmp_path / "none", nodes=4)
    with pytest.raises(ConfigError, match=r"cannot read a trace from .*directory"):
        read_trace(tmp_path, nodes=4)
    (tmp_path / "latin").write_bytes(b"time,node,kind,state\n1,1,\xe9,\n")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_trace(tmp_path / "latin", nodes=4)
    for nodes in (0, -3, 2.5):
        with pytest.raises(ConfigError, match=f"`nodes` must be from 1 on.*got {nodes}"):
            read_trace(tmp_path / "none", nodes=nodes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,node,kind\n1,1\n", "line 2 has fewer columns"),
        ("time,node,kind\ninf,1,software\n", "time inf"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused_with_its_place(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_trace(path, nodes=4)
