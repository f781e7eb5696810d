"""Whatever is still open when the interpreter ends goes quietly."""

import subprocess
import sys

import pytest

CREATE = """
import numpy as np
import graphpool as gp
engine = gp.Engine(memory_limit=10**8)
stream = gp.Stream(engine)
graph = gp.Graph()
x, y = gp.LogicalTensor(0, "f32", (4, 4)), gp.LogicalTensor(2, "f32", (4, 4))
w = gp.LogicalTensor(1, "f32", (4, 4), property="constant")
graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
graph.finalize()
[partition] = graph.get_partitions()
compiled = partition.compile([x, w], [y], engine)
source = gp.Tensor(x, engine, np.ones((4, 4), np.float32))
weight = gp.Tensor(w, engine, np.ones((4, 4), np.float32))
result = gp.Tensor(y, engine)
compiled.execute(stream, [source, weight], [result])
"""

ENDINGS = {
    "nothing closed": "",
    "a cycle": "cycle = [engine, compiled, result]; cycle.append(cycle)",
    "the engine closed": "engine.close()",
    "all but the tensors closed": "compiled.close(); engine.close()",
    "only a tensor kept": "del engine, stream, compiled, partition, graph, source, weight",
}


@pytest.mark.native
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_in_silence(ending):
    code = f"{CREATE}\n{ENDINGS[ending]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
