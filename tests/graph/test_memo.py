"""CompileMemo: the same arguments again, found by identity, no longer than the backend keeps the template."""

import gc

from graphpool.graph._memo import CompileMemo
from graphpool.graph.logical_tensor import LogicalTensor


class Engine:
    """Anything that can be referred to weakly."""


class Template:
    """Counts its calls."""

    def __init__(self, result):
        self.result, self.calls = result, []

    def __call__(self, engine):
        self.calls.append(engine)
        return self.result


def tensor(n):
    return LogicalTensor(n, "f32", (4,))


def test_finds_the_same_objects_only():
    x, y, engine, template = (tensor(0),), (tensor(1),), Engine(), Template("compiled")
    memo = CompileMemo()
    assert memo.find(x, y, engine, "primitive", "cached") is None
    memo.remember(x, y, engine, "primitive", "cached", template)
    assert memo.find(tuple(x), tuple(y), engine, "primitive", "cached") == "compiled"
    assert template.calls == [engine]
    for arguments in [
        ((tensor(0),), y, engine, "primitive", "cached"),
        (x, (tensor(1),), engine, "primitive", "cached"),
        (x + x, y, engine, "primitive", "cached"),
        (x, (), engine, "primitive", "cached"),
        (x, y, Engine(), "primitive", "cached"),
        (x, y, engine, "shared", "cached"),
        (x, y, engine, None, "cached"),
        (x, y, engine, "primitive", "scoped"),
    ]:
        assert memo.find(*arguments) is None


def test_a_template_may_decline():
    x, engine, template = (tensor(0),), Engine(), Template(None)
    memo = CompileMemo()
    memo.remember(x, (), engine, "none", "cached", template)
    assert memo.find(x, (), engine, "none", "cached") is None
    assert template.calls == [engine]


def test_keeps_neither_engines_nor_templates():
    x, engine, template = (tensor(0),), Engine(), Template("compiled")
    memo = CompileMemo()
    memo.remember(x, (), engine, "none", "cached", template)
    del template
    gc.collect()
    assert memo.find(x, (), engine, "none", "cached") is None


def test_remembers_the_latest_eight():
    engine, memo = Engine(), CompileMemo()
    inputs = [(tensor(n),) for n in range(10)]
    templates = [Template(n) for n in range(10)]
    for x, template in zip(inputs, templates, strict=True):
        memo.remember(x, (), engine, "none", "cached", template)
    found = [memo.find(x, (), engine, "none", "cached") for x in inputs]
    assert found == [None, None, *range(2, 10)]
    memo.remember(inputs[5], (), engine, "none", "cached", templates[0])
    assert [memo.find(x, (), engine, "none", "cached") for x in inputs] == [None, None, 2, 3, 4, 0, 6, 7, 8, 9]
