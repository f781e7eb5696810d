"""Where the memory of a model goes: commands that run it and draw what they found.

    python -m bench.profile.timeline MODEL     over the time of a run
    python -m bench.profile.tensors MODEL      by tensor: temporaries in the arena, constants
    python -m bench.profile.shapes MODEL       over batch sizes and other dimensions, predicted and measured
    python -m bench.profile.cache MODEL        over capacities of the constant tensor cache, against latency
    python -m bench.profile.schedules MODEL    over schedules, numbers of streams and scratch modes
    python -m bench.profile.versus MODEL       against onnxruntime, a process each

MODEL is an ONNX file; without one the demonstration's convolutional network is taken. All take ``--shape NAME=SIZE``
for named dimensions, ``--threads``, and ``--json FILE``, ``--png FILE``, ``--html FILE`` (the last two need matplotlib,
from the extra ``graphpool[profile]``); a table is always printed.

    common.py         arguments, models and inputs, times; a report: table, JSON, picture
    one_library.py    what `versus` runs in each process
    page.py           the HTML page of a report, which stands alone
"""
