from importlib import metadata
from types import SimpleNamespace

import pytest

from graphpool.cache import Item, Policy
from graphpool.cache.policies import LruPolicy, choose_victims, make_policy
from graphpool.errors import BackendError, InvalidArgumentError

NAMES = ["no_evict", "lru", "cost"]


def insert(policy, *keys):
    for key in keys:
        policy.on_insert(Item(key, 10, 1.0))


@pytest.mark.parametrize("name", NAMES)
def test_contract(name):
    """What every policy must do, whatever it decides."""
    policy = make_policy(name)
    assert isinstance(policy, Policy)
    assert policy.name == name
    assert list(policy.victims()) == []
    insert(policy, "a", "b", "c")
    policy.on_hit("a", 3)
    policy.on_remove("b")
    assert sorted(policy.victims()) == ["a", "c"]
    assert isinstance(policy.admits(Item("d", 10, 1.0), ["a"]), bool)
    assert sorted(policy.victims()) == ["a", "c"]
    insert(policy, "b")
    assert sorted(policy.victims()) == ["a", "b", "c"]
    for key in "abc":
        policy.on_remove(key)
    assert list(policy.victims()) == []


@pytest.mark.parametrize("name", NAMES)
def test_each_cache_gets_a_policy_of_its_own(name):
    assert make_policy(name) is not make_policy(name.upper())


def test_lru_orders_by_last_use():
    policy = LruPolicy()
    insert(policy, "a", "b", "c")
    policy.on_hit("a", 1)
    assert list(policy.victims()) == ["b", "c", "a"]


def test_the_shortest_prefix_that_makes_room_leaves():
    policy = LruPolicy()
    insert(policy, "a", "b", "c")
    assert choose_victims(policy, Item("d", 15, 1.0), 15, lambda key: 10) == ["a", "b"]
    assert choose_victims(policy, Item("d", 99, 1.0), 99, lambda key: 10) is None
    assert choose_victims(make_policy(None), Item("d", 5, 1.0), 5, lambda key: 10) is None


def test_a_policy_that_names_a_key_twice_frees_it_once():
    twice = SimpleNamespace(victims=lambda: ["a", "a", "b"], admits=lambda item, victims: True)
    assert choose_victims(twice, Item("d", 15, 1.0), 15, lambda key: 10) == ["a", "b"]


def test_a_class_or_function_makes_a_new_policy_each_time():
    first, second = make_policy(LruPolicy), make_policy(lambda: LruPolicy())
    assert first is not second
    assert {first.name, second.name} == {"lru"}


def test_a_factory_that_fails_is_named():
    def hopeless():
        raise ZeroDivisionError("no luck")

    with pytest.raises(BackendError, match="hopeless failed"):
        make_policy(hopeless)


@pytest.mark.parametrize("bad", ["best", "", 3, object(), int, lambda: None, lambda: LruPolicy])
def test_what_is_no_policy_is_refused(bad):
    with pytest.raises(InvalidArgumentError):
        make_policy(bad)


def test_installed_policies_are_found_by_name(monkeypatch):
    class Mine(LruPolicy):
        name = "mine"

    entry = SimpleNamespace(name="mine", load=lambda: Mine)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [entry] if group == "graphpool.policies" else [])
    assert isinstance(make_policy("Mine"), Mine)
    assert make_policy("mine") is not make_policy("mine")
    with pytest.raises(InvalidArgumentError, match="no_evict, lru, cost, mine"):
        make_policy("other")
