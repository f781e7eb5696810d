from graphpool.cache import Item
from graphpool.cache.policies import MEMORY, CostPolicy, choose_victims


def use(policy, kept, key, capacity, nbytes=10, cost=1.0):
    """One access, as a cache of `capacity` entries would handle it; whether it was a hit."""
    if key in kept:
        policy.on_hit(key, 1)
        return True
    victims = [] if len(kept) < capacity else choose_victims(policy, Item(key, nbytes, cost), nbytes, lambda k: nbytes)
    if victims is not None:
        for victim in victims:
            kept.discard(victim)
            policy.on_remove(victim)
        kept.add(key)
        policy.on_insert(Item(key, nbytes, cost))
    return False


def test_a_loop_over_more_than_fits_keeps_what_it_has():
    policy, kept = CostPolicy(), set()
    hits = sum(use(policy, kept, key, 5) for _ in range(20) for key in range(10))
    assert hits == 19 * 5


def test_a_model_that_is_no_longer_run_makes_way():
    policy, kept = CostPolicy(), set()
    for _ in range(20):
        for key in range(5):
            use(policy, kept, ("old", key), 5)
    hits = [sum(use(policy, kept, ("new", key), 5) for key in range(5)) for _ in range(20)]
    assert hits[0] == 0
    assert hits[-10:] == [5] * 10


def test_what_is_used_once_displaces_nothing():
    policy, kept = CostPolicy(), set()
    for turn in range(20):
        for key in range(5):
            use(policy, kept, key, 5)
        use(policy, kept, ("once", turn), 5)
    assert kept == set(range(5))


def test_dear_constants_are_kept_before_cheap_ones():
    policy, kept = CostPolicy(), set()
    for _ in range(10):
        for key in range(6):
            use(policy, kept, key, 3, cost=1.0 if key < 3 else 100.0)
    assert kept == {3, 4, 5}


def test_counts_of_warm_uses_shorten_the_interval():
    policy = CostPolicy()
    for key in "ab":
        policy.on_insert(Item(key, 10, 1.0))
    for _ in range(5):
        policy.on_hit("a", 1)
        policy.on_hit("b", 50)
    assert list(policy.victims()) == ["a", "b"]


def test_what_it_remembers_is_bounded():
    policy = CostPolicy()
    for key in range(MEMORY + 100):
        policy.admits(Item(key, 10, 1.0), [])
    assert len(policy._ghosts) == MEMORY
