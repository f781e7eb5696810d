"""Batch files."""

import pytest

from graphpool.errors import GraphpoolError
from tests.benchdnn.batch import read_batch


def rows(path):
    return [{name: text for name, text in row.items() if name != "suite"} for row in read_batch(path)]


def test_knobs_hold_until_they_are_reset(tmp_path):
    (tmp_path / "all").write_text(
        "# comment\n--reset --dt=f32,bf16\n--in-shapes=0:2x3\\\n+1:4  --case=a.json\n--reset\n--case=b.json"
        "\n--expected-n-partitions=0 --batch=more\n--case=c.json # end"
    )
    (tmp_path / "more").write_text("--mb=2 --case=d.json")
    assert rows(tmp_path / "all") == [
        {"case": "a.json", "in-shapes": "0:2x3+1:4", "dt": "f32", "expected-n-partitions": "1"},
        {"case": "a.json", "in-shapes": "0:2x3+1:4", "dt": "bf16", "expected-n-partitions": "1"},
        {"case": "b.json", "expected-n-partitions": "1"},
        {"case": "d.json", "expected-n-partitions": "0", "mb": "2"},
        {"case": "c.json", "expected-n-partitions": "0", "mb": "2"},
    ]


def test_files_that_include_themselves(tmp_path):
    (tmp_path / "a").write_text("--batch=a")
    with pytest.raises(GraphpoolError):
        read_batch(tmp_path / "a")
