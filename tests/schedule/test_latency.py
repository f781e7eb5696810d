import pytest

from graphpool.errors import InvalidArgumentError
from graphpool.schedule.latency import LatencyCache


def test_keeps_what_was_put_last():
    cache = LatencyCache()
    assert cache.get("a") is None
    cache.put("a", 3.0)
    cache.put("a", 9.0)
    assert (cache.get("a"), len(cache), cache.version) == (9.0, 1, 2)
    assert repr(cache) == "LatencyCache(1 latencies)"


def test_keys_ignore_the_order_of_streams_but_not_inside_a_stream():
    key = LatencyCache.key
    assert key([["a", "b"], ["c"]]) == key([("c",), ("a", "b")])
    assert key([["a", "b"]]) != key([["b", "a"]]) != key([["a"], ["b"]])
    assert key([['a","b']]) != key([["a", "b"]])


def test_saves_and_reloads(tmp_path):
    path = tmp_path / "latencies.json"
    first = LatencyCache(path)
    first.put("a", 1.25)
    assert not path.exists()
    first.save()
    assert LatencyCache(path).get("a") == 1.25
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_saving_nowhere():
    with pytest.raises(InvalidArgumentError, match="no file"):
        LatencyCache().save()


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "latencies.json"
    path.mkdir()
    (path / "old").touch()
    cache = LatencyCache.__new__(LatencyCache)
    cache.__dict__.update(LatencyCache().__dict__, path=path)
    with pytest.raises(OSError):  # noqa: PT011  the message is the system's
        cache.save()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert (path / "old").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"a": 1}',
        '{"machine": ""}',
        '{"machine": "", "latencies": 3}',
        "{",
        *(f'{{"machine": "", "latencies": {{"a": {value}}}}}' for value in ("-1", '"x"', "NaN")),
    ],
)
def test_files_of_something_else(tmp_path, text):
    path = tmp_path / "latencies.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match="holds no latencies") as caught:
        LatencyCache(path)
    assert caught.value.path == str(path)


def test_latencies_of_another_machine_are_left_alone(tmp_path):
    path = tmp_path / "latencies.json"
    first = LatencyCache(path, machine="here")
    first.put("a", 1.0)
    first.save()
    assert LatencyCache(path, machine="here").get("a") == 1.0
    elsewhere = LatencyCache(path, machine="there")
    assert elsewhere.get("a") is None
    elsewhere.put("b", 2.0)
    elsewhere.save()
    assert LatencyCache(path, machine="here").get("a") is None
    assert LatencyCache(path, machine="there").get("b") == 2.0


def test_saving_keeps_what_others_have_saved(tmp_path):
    path = tmp_path / "latencies.json"
    first, second = LatencyCache(path), LatencyCache(path)
    first.put("a", 1.0)
    first.save()
    second.put("b", 2.0)
    second.put("a", 3.0)
    second.save()
    again = LatencyCache(path)
    assert (again.get("a"), again.get("b")) == (3.0, 2.0)


def test_the_capacity_holds_in_memory_and_on_disk(tmp_path):
    path = tmp_path / "latencies.json"
    cache = LatencyCache(path, capacity=2)
    for key in "ab":
        cache.put(key, 1.0)
    assert cache.get("a") == 1.0  # so b is the one that nobody asked for
    cache.put("c", 2.0)
    assert (len(cache), cache.get("b")) == (2, None)
    cache.save()
    assert len(LatencyCache(path, capacity=1)) == 1
    cache.save()  # with two on disk
    assert len(LatencyCache(path)) == 2


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, None])
def test_a_capacity_is_a_count(capacity):
    with pytest.raises(InvalidArgumentError, match="capacity"):
        LatencyCache(capacity=capacity)
