"""Question: what does a word cost that a model generates, with states in a session, passed by hand, and in onnxruntime.

    python -m bench.bench_generate FILE [--past 128] [--words 64] [--threads 2] [--json]

FILE is an ONNX model with inputs ``past...`` and outputs ``present...`` of which one dimension grows. Of its others
``*position*`` takes the position, ``*mask*`` ones, any other the last word, which is the largest element of the first
output that is no state. Every way starts from the same random past; they take turns text by text.
"""

import argparse
import time

import numpy as np

import graphpool as gp
from bench.bench_shapes import onnxruntime_session, print_row

PAUSE_S = 0.1
"""Between two texts, until the threads of the first sleep."""


class Words:
    """Inputs of one word, made from the last one and the position."""

    def __init__(self, model):
        self.model, self.states = model, model.states
        taken = self.states.values()
        self.ports = [port for port in model.inputs if port.name not in taken]
        self.logits = next(port.name for port in model.outputs if port.name not in self.states)

    def past(self, length, seed=0):
        """A random past of so many positions, by input."""
        rng, found = np.random.default_rng(seed), {}
        for port in self.model.inputs:
            if port.name in self.states.values():
                grows = [dim for dim in port.shape if isinstance(dim, str) and "batch" not in dim]
                shape = [length if dim in grows else 1 if isinstance(dim, str) else dim for dim in port.shape]
                found[port.name] = rng.standard_normal(shape).astype(port.dtype.numpy)
        return found

    def inputs(self, word, position):
        """The inputs of a word."""
        found = {}
        for port in self.ports:
            is_mask, dtype = "mask" in port.name, port.dtype.numpy
            value = 1 if is_mask else position if "position" in port.name else word
            found[port.name] = np.full((1, position + 1) if is_mask else (1, 1), value, dtype)
        return found

    def growing(self):
        """Name of the dimension that grows."""
        port = next(port for port in self.model.inputs if port.name in self.states.values())
        return next(dim for dim in port.shape if isinstance(dim, str) and "batch" not in dim)


def by_hand(run, words, past):
    """A step that passes the states by hand."""
    states = dict(past)

    def step(inputs):
        results = run({**inputs, **states})
        states.update({source: results[result] for result, source in words.states.items()})
        return results[words.logits]

    return step


def restored(session, words, past):
    """A step in a session."""
    session.restore(past)
    return lambda inputs: session.run(inputs)[words.logits]


def generate(step, words, past, count):
    """Milliseconds of all words, and the words."""
    found = [1]
    start = time.perf_counter()
    for k in range(count):
        logits = step(words.inputs(found[-1], past + k))
        found.append(int(np.asarray(logits).reshape(-1).argmax()))
    return (time.perf_counter() - start) * 1e3, found


def measure(path, past, count, threads, repeats=5):
    """Milliseconds of all words each way, least of some repeats, and memory of the session."""
    with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(path, engine=engine) as model:
        words = Words(model)
        states, session = words.past(past), model.session(capacity={words.growing(): past + count})
        ways = {
            "session": lambda: restored(session, words, states),
            "by_hand": lambda: by_hand(model.run, words, states),
        }
        peer = onnxruntime_session(path, threads)
        if peer is not None:
            names = [output.name for output in peer.get_outputs()]

            def run(inputs):
                return dict(zip(names, peer.run(None, inputs), strict=True))

            ways["onnxruntime"] = lambda: by_hand(run, words, states)
        times, found = {name: [] for name in ways}, []
        for _ in range(repeats):  # whole texts take turns: threads that spin behind a word would take another's time
            for name, make in ways.items():
                time.sleep(PAUSE_S)
                spent, text = generate(make(), words, past, count)
                times[name].append(spent)
                found.append(text)
        least = {f"{name}_ms": min(spent) for name, spent in times.items()}
        restored(session, words, states)
        session.run(words.inputs(1, past))
        before = engine.budget.in_use
        for k in range(1, count):
            session.run(words.inputs(1, past + k))
        return {
            "model": model.name,
            "past": past,
            "words": count,
            **least,
            "is_same": all(text == found[0] for text in found),
            "state_nbytes": session.nbytes,
            "growth_nbytes": engine.budget.in_use - before,
        }


def main(argv=None):
    """The command."""
    parser = argparse.ArgumentParser(prog="bench_generate", description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--past", type=int, default=128)
    parser.add_argument("--words", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    print_row(measure(args.file, args.past, args.words, args.threads), args.json)


if __name__ == "__main__":
    main()
