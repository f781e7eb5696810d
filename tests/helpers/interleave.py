"""A small explicit-state model checker: every interleaving of a few threads, each a table of atomic steps."""

from __future__ import annotations

BLOCKED = "blocked"
DONE = "done"


def explore(shared, threads, invariant=lambda shared: None):
    """Visit every reachable state; returns what went wrong, as a set of strings.

    Parameters
    ----------
    shared : dict
        Initial shared state; values hashable.
    threads : list of dict
        For each thread ``label -> step``; it starts at ``"start"``. ``step(shared, me)`` changes the two dicts it is
        given and returns the next label, `DONE`, or `BLOCKED` (then its changes are dropped). A step may raise
        AssertionError.
    invariant : callable
        Called with every state; returns a complaint or None.
    """
    first = (shared, tuple(("start", {}) for _ in threads))
    todo, seen, wrong = [first], {_key(first)}, set()
    while todo:
        state = todo.pop()
        moved = False
        for i, steps in enumerate(threads):
            after = _advance(state, i, steps, wrong)
            if after is None:
                continue
            moved = True
            if complaint := invariant(after[0]):
                wrong.add(complaint)
            elif _key(after) not in seen:
                seen.add(_key(after))
                todo.append(after)
        if not moved and any(label != DONE for label, _ in state[1]):
            wrong.add("deadlock")
    return wrong


def _advance(state, i, steps, wrong):
    """The state after one step of thread `i`; None when it is done, blocked, or the step failed."""
    shared, threads = state
    label, local = threads[i]
    if label == DONE:
        return None
    shared, local = dict(shared), dict(local)
    try:
        following = steps[label](shared, local)
    except AssertionError as error:
        wrong.add(str(error).splitlines()[0])
        following = DONE
    if following == BLOCKED:
        return None
    return shared, (*threads[:i], (following, local), *threads[i + 1 :])


def _key(state):
    shared, threads = state
    return (
        tuple(sorted(shared.items())),
        tuple((label, tuple(sorted(local.items()))) for label, local in threads),
    )
