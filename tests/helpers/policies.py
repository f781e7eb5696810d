"""Eviction policies that go wrong."""

from graphpool.cache.policies import LruPolicy


class BrokenPolicy(LruPolicy):
    """Raises where it is told to."""

    name = "broken"

    def __init__(self, *methods):
        super().__init__()
        for method in methods:
            setattr(self, method, self._failing(method))

    @staticmethod
    def _failing(method):
        def fail(*_):
            raise ZeroDivisionError(method)

        return fail
