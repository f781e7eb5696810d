"""The order of uses: against a model, and through nodes that outlive their entries."""

import threading
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from graphpool.cache import LruCache
from graphpool.cache._recency import Recency
from tests.helpers.memory import run_threads

STEPS = st.lists(st.tuples(st.sampled_from(["put", "use", "pop", "charge", "find"]), st.integers(0, 5)), max_size=60)


@given(STEPS)
def test_is_an_ordered_dict(steps):
    recency, model = Recency(), OrderedDict()
    for number, (what, key) in enumerate(steps):
        if what == "put":
            recency.put(key, f"value {number}", number)
            model.pop(key, None)
            model[key] = (f"value {number}", number)
        elif what == "pop":
            assert recency.pop(key) == model.pop(key, None)
        elif what == "charge" and key in model:
            recency.charge(recency.find(key), number)
            model[key] = (model[key][0], number)
            model.move_to_end(key)
        else:
            node = recency.use(key) if what == "use" else recency.find(key)
            assert (node and (node.value, node.nbytes)) == model.get(key)
            if node and what == "use":
                model.move_to_end(key)
        assert recency.by_age() == list(model)
        assert (len(recency), key in recency) == (len(model), key in model)
        oldest = recency.first()
        assert (oldest and oldest.key) == next(iter(model), None)


def test_a_node_says_when_its_entry_has_left():
    cache = LruCache(2)
    cache.get_or_create("a", lambda: "value")
    node = cache.node("a")
    assert (node.key, node.value, node.is_live) == ("a", "value", True)
    assert cache.node("b") is None
    cache.remove("a")
    assert (node.value, node.is_live) == (None, False)


def test_threads_leave_the_list_whole():
    recency, changing = Recency(), threading.Lock()

    def churn(i):
        for n in range(2000):
            key = (n * 7 + i) % 11
            if n % 3 == 0:
                with changing:
                    recency.put(key, n, 0)
            elif n % 7 == 0:
                with changing:
                    recency.pop(key)
            else:
                recency.use(key)

    run_threads(4, churn)
    keys = recency.by_age()
    assert sorted(keys) == sorted(set(keys))
    assert len(keys) == len(recency)
    for key in keys:
        assert recency.pop(key) is not None
    assert recency.first() is None
