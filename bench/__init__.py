"""Benchmarks, one question a file. The graphs that they share with the tests are in `tests.cases`.

bench_*.py      one question each, stated in its first line: pytest bench/bench_x.py, at the repository's root
ceilings.py     how fast this processor can compute and read, to hold times against
replay.py       what the calls of a logged resource cost on another
"""
