"""What tests run on and benchmarks time: graphs, their inputs, one table of cases. Nothing here measures or compares.

training.py          attention as training spells it, forward and backward
graphs.py            GraphBuilder: graphs in a few lines
inputs.py            random content of tensors, the same in every run
workloads.py         CASES: one row for each thing that the CPU backend lowers
unknown_sizes.py     MODELS: small ONNX models of which input sizes are unknown
many_models.py       models of differing sizes, more than fit, and requests for them
two_programs.py      an ONNX model of two programs with host functions between them
session_models.py    PAIRS: small ONNX models with states
stream_graphs.py     graphs whose steps may run side by side
schedule_graphs.py   dependency graphs to schedule: known blocks and random families
buffers.py           planning problems that are hard
resource_log.py      the calls of a `LoggingResource`, read from its file and repeated

``tests`` has no installation: what imports this runs at the repository's root, or has it on its path.
"""
