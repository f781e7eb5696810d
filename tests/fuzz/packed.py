"""Mutated files of a packed store: the weight that was stored, or a miss.

python -m tests.fuzz.packed --count 100000 --seed 1
"""

from __future__ import annotations

import ast
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from graphpool.cache import PackedKey, PackedStore, fingerprint
from graphpool.cache.identity import digest_of_text
from tests.fuzz import harness
from tests.fuzz.mutate_bytes import mutate_bytes

DATA = np.arange(300, dtype=np.float32).tobytes()
KEY = PackedKey(fingerprint(np.arange(3)), "f32_k8n64", "avx2")
PAGE = 4096
JUNK = [None, True, -1, 0, 2**63, 1e308, "", "x" * 100, [], {}, [[]], {"key": 1}]


def stored() -> tuple[str, bytes]:
    """Name and content of the weight's file."""
    with tempfile.TemporaryDirectory() as folder:
        store = PackedStore(folder)
        store.put(KEY, DATA)
        [path] = Path(folder).glob("*.packed")
        return path.name, path.read_bytes()


NAME, RAW = stored()


def mutant(seed: int, number: int) -> bytes:
    """The file with other bytes, or with another description under a digest that fits."""
    rng = random.Random(f"{seed}:{number}")
    if rng.random() < 0.4:
        return mutate_bytes(RAW, rng)
    text = RAW[28 : 28 + int.from_bytes(RAW[24:28], "little")]
    about = list(ast.literal_eval(text.decode()))
    field = rng.randrange(len(about))
    action = rng.randrange(5)
    if action == 0:
        del about[field]
    elif action == 1:
        about[field] = rng.choice(JUNK)
    elif action == 2:
        about[0][rng.randrange(len(about[0]))] = rng.choice(JUNK)
    text = ascii(tuple(about)).encode()
    if action == 3:
        text = rng.choice([b"[" * 4000, b"null", b"[]", b"{", b"\xff", b"1e999", b"9" * 4000, mutate_bytes(text, rng)])
    length = rng.choice([0, PAGE, 2**32 - 1]) if action == 4 else len(text)
    rest = (length.to_bytes(4, "little") + text).ljust(PAGE - 24, b"\0")[: PAGE - 24]
    blob = mutate_bytes(RAW[PAGE:], rng) if rng.random() < 0.3 else RAW[PAGE:]
    return RAW[:8] + digest_of_text(rest) + rest + blob


def open_store(raw: bytes) -> None:
    """Look the weight up where its file has other bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, NAME)
        path.write_bytes(raw)
        buffer = PackedStore(folder).get(KEY)
        assert (buffer is None) == (raw != RAW)
        assert buffer is None or bytes(buffer) == DATA
        assert path.exists() == (buffer is not None)


TARGET = harness.Target("packed", mutant, open_store, 1 << 20)

if __name__ == "__main__":
    sys.exit(harness.main(TARGET, __doc__))
