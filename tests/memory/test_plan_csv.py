"""CSV files of buffers: there and back, and what is malformed."""

import pytest

from graphpool.errors import InvalidArgumentError
from graphpool.memory import BufferInfo, plan, read_csv, write_csv

BUFFERS = [
    BufferInfo("a", 0, 4, 100, 8),
    BufferInfo("b,c", 2, 9, 50, offset=256, gaps=((3, 4), (5, 7))),
    BufferInfo("d", -9, 9, 10, gaps=((-5, -3), (-1, 2))),
]


def test_what_is_written_is_read(tmp_path):
    write_csv(tmp_path / "buffers.csv", BUFFERS)
    assert read_csv(tmp_path / "buffers.csv") == BUFFERS


def test_a_plan_is_written_as_offsets(tmp_path):
    found = plan(BUFFERS)
    write_csv(tmp_path / "plan.csv", BUFFERS, found)
    assert {item.id: item.offset for item in read_csv(tmp_path / "plan.csv")} == found.offsets


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path):
    (tmp_path / "marked.csv").write_text("\ufeffid,lower,upper,size\nx,2,5,7\n")
    assert read_csv(tmp_path / "marked.csv") == [BufferInfo("x", 2, 5, 7)]


@pytest.mark.parametrize(
    ("buffers", "found", "message"),
    [
        (BUFFERS, plan(BUFFERS[:1]), "no such buffer.*got: 'b,c'"),
        ([BufferInfo("a", 0, 1, -1)], None, "buffer 'a': size -1"),
        ([*BUFFERS, BUFFERS[0]], None, "buffer 'a' occurs twice"),
        (BUFFERS, 3, "plan; accepted: an instance of MemoryPlan"),
    ],
)
def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path, buffers, found, message):
    path = tmp_path / "kept.csv"
    path.write_text("kept")
    with pytest.raises(InvalidArgumentError, match=message):
        write_csv(path, buffers, found)
    assert path.read_text() == "kept"


def test_only_four_columns_are_needed_and_others_ignored(tmp_path):
    path = tmp_path / "min.csv"
    path.write_text("size,id,hint,upper,lower\n7,x,9,5,2\n")
    assert read_csv(path) == [BufferInfo("x", 2, 5, 7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,upper\n1,2,3\n", "lacks columns"),
        ("", "lacks columns"),
        ("id,lower,upper,size\n1,2,x,3\n", "line 2"),
        ("id,lower,upper,size\n1,2,3\n", "line 2"),
        ("id,lower,upper,size,gaps\n1,2,3,4,5\n", "line 2"),
        ("lower,upper,size,id\n1,2,3\n", "line 2"),
        ("id,lower,upper,size\n1,2,3,4\n1,2,3," + "9" * 5000, "line 3"),
        ("id,lower,upper,size\n1,2,3,4\n" + "x" * 200_000 + ",2,3,4\n", "behind line 2; accepted: CSV in UTF-8"),
        ("x" * 200_000, "accepted: CSV in UTF-8"),
        ("id,lower,upper,size\n1,2,3,4,5\n", "line 2 is longer than the first; accepted: 4 values; got: 5"),
        ("id,lower,upper,size,size\n1,2,3,4,5\n", "has a column twice"),
        ("id,lower,upper,size\n1,2,3,4\n2,3,3,4\n", r"line 3: buffer '2': lifetime \[3, 3\) is empty"),
        ("id,lower,upper,size\n1,2,3,4\n1,5,6,4\n", "buffer '1' occurs twice"),
    ],
)
def test_malformed_files_are_named(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=message):
        read_csv(path)


@pytest.mark.parametrize("raw", [b"\xff", b"id,lower,upper,size\na,1,2,3\n\xff,1,2,3\n", "id".encode("utf-16")])
def test_other_encodings_are_refused(tmp_path, raw):
    (tmp_path / "bad.csv").write_bytes(raw)
    with pytest.raises(InvalidArgumentError, match="accepted: CSV in UTF-8"):
        read_csv(tmp_path / "bad.csv")


def test_numbers_too_long_to_write_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"buffer 'a': .* not all ints below 2\*\*62"):
        plan([BufferInfo("a", 0, 10**5000, 3)])
