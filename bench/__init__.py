"""Benchmarks, one question a file. The graphs that they share with the tests are in `tests.cases`.

bench_*.py      one question each, stated in its first line: ./run bench bench/bench_x.py
conftest.py     what pytest adds: operations and bytes a second, and the share of the ceiling
cuda/           layers and models on a GPU
profile/        where the memory of a model goes: tables, JSON, pictures
ceilings.py     how fast this processor can compute and read, to hold times against
replay.py       what the calls of a logged resource cost on another
"""

import os

os.environ.setdefault("GRAPHPOOL_PROGRAM_FOLDER", "off")  # what compiles is measured, for processes of a bench, too
