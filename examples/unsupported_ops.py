"""An op that graphpool does not know runs in your own code, between the partitions that it does run."""

import numpy as np

import graphpool as gp

SHAPE = (4, 16)
x, squashed, ordered, result = (gp.LogicalTensor(i, "f32", SHAPE) for i in range(4))

graph = gp.Graph("cpu")
graph.add_op(gp.Op(0, "Tanh", [x], [squashed]))
graph.add_op(gp.Op(1, "Wildcard", [squashed], [ordered], name="sort"))
graph.add_op(gp.Op(2, "Exp", [ordered], [result]))
graph.finalize()

own_ops = {"sort": lambda array: np.sort(array, axis=-1)}
values = {0: np.random.default_rng(0).standard_normal(SHAPE, np.float32)}

with gp.Engine("cpu") as engine:
    stream = gp.Stream(engine)
    for partition in graph.get_partitions():
        inputs, outputs = partition.input_ports, partition.output_ports
        if partition.is_supported:
            with partition.compile(inputs, outputs, engine) as compiled:
                results = compiled.execute(stream, [gp.Tensor(lt, engine, values[lt.id]) for lt in inputs])
                values.update((tensor.lt.id, tensor.numpy()) for tensor in results)
        else:
            [op] = partition.ops
            values[outputs[0].id] = own_ops[op.name](values[inputs[0].id])
        print(f"{partition}: {'graphpool' if partition.is_supported else 'own code'}")

np.testing.assert_allclose(values[3], np.exp(np.sort(np.tanh(values[0]), axis=-1)), rtol=1e-5)
