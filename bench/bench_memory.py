"""Question: what do models take and give back: heap allocations, peak against the bound, scratch modes, plans.

    python -m bench.bench_memory --zoo FOLDER [allocations] [peak] [scratch] [--json]

FOLDER holds ONNX files NAME.onnx with inputs NAME.npz, as ``shared/peers/models.py`` writes them; what is missing there
is skipped with a reason. Allocations are counted below the interpreter, by a library that stands before the C heap.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import graphpool as gp
from graphpool import demo
from graphpool.memory import BufferInfo, plan

MODELS = ("resnet50", "inception_v3", "bert_base", "digits_cnn", "digits_transformer")

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>
static long calls;
long gp_count_allocations(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED); }
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
#define COUNT __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED)
void *malloc(size_t n) { COUNT; return __libc_malloc(n); }
void *calloc(size_t m, size_t n) { COUNT; return __libc_calloc(m, n); }
void *realloc(void *p, size_t n) { COUNT; return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { COUNT; return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { COUNT; return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { COUNT; *p = __libc_memalign(a, n); return *p ? 0 : 12; }
"""


def inputs_of(name, zoo):
    """Path of a model, and arrays for its inputs; None where there is no such file."""
    if name in demo.MODELS:
        images, _ = demo.test_images()
        return demo.model_path(name), {"image": images[:1]}
    path = zoo / f"{name}.onnx"
    if not path.exists() or not path.with_suffix(".npz").exists():
        return None
    with np.load(path.with_suffix(".npz")) as data:
        found = {key.removeprefix("in."): data[key] for key in data.files}
    with gp.onnx.load(path, threads=1) as model:
        names = [port.name for port in model.inputs]
    return path, {key: found[key] for key in names}


# ---- allocations


def count_allocations(name, zoo):
    """Heap allocations of a warm run, in a process of its own with the counter before the heap."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "count.c")
        source.write_text(COUNTER)
        library = str(source.with_suffix(".so"))
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", library, "-ldl"], check=True)
        command = [sys.executable, "-m", "bench.bench_memory", "--zoo", str(zoo), "--count", name]
        done = subprocess.run(
            command, env=os.environ | {"LD_PRELOAD": library}, capture_output=True, text=True, check=True
        )
    return json.loads(done.stdout)


def print_counts(name, zoo, runs=20):
    """What the process with the counter does."""
    import ctypes
    import gc

    count = ctypes.CDLL(None).gp_count_allocations
    count.restype = ctypes.c_long
    path, inputs = inputs_of(name, zoo)
    with gp.Engine(threads=1) as engine, gp.onnx.load(fixed_model(path, inputs), engine=engine) as model:
        executable = model.specialise(inputs)
        calls = bind_all(executable, engine, inputs, "primitive")
        for _ in range(5):
            outputs = model.run(inputs)
            for call in calls:
                call()
        gc.disable()
        made = engine.stats().total_count
        start = count()
        for _ in range(runs):
            for call in calls:
                call()
        executed = count() - start
        start = count()
        for _ in range(runs):
            model.run(inputs, outputs)
        ran = count() - start
        outputs = len(model.outputs)
        print(
            json.dumps(
                {
                    "kernel_partitions": len(calls),
                    "numpy_partitions": len(executable.partitions) - len(calls),
                    "execute_allocations": executed / runs,
                    "run_allocations": ran / runs,
                    "outputs": outputs,
                    "engine_allocations": engine.stats().total_count - made,
                }
            )
        )


# ---- peak


def measure_peak(name, zoo):
    """Predicted and measured peak of one model, and its arena against the bound on live bytes."""
    path, inputs = inputs_of(name, zoo)
    with gp.Engine(threads=1) as engine, gp.onnx.load(path, engine=engine) as model:
        executable = model.specialise(inputs)
        predicted = model.predict_peak(inputs)
        model.run(inputs)
        found = plan(activations(executable))
        return {
            "predicted_nbytes": predicted,
            "measured_nbytes": engine.budget.peak,
            "constants_nbytes": executable.constants_nbytes,
            "cached_nbytes": executable.cached_nbytes,
            "programs_nbytes": executable.programs_nbytes,
            "arena_nbytes": executable.arena_nbytes,
            "ops": sum(len(partition.ops) for partition in executable.partitions),
            "activations_bound": found.lower_bound,
            "activations_ratio": found.ratio,
            "plan_seconds": found.seconds,
        }


def activations(executable):
    """Every tensor between two partitions, not merged, from its birth to its last use."""
    last, births = {}, {}
    for number, partition in enumerate(executable.partitions):
        for lt in partition.output_ports:
            births[lt.id] = number
        for lt in (*partition.input_ports, *partition.output_ports):
            last[lt.id] = number
    tensors = executable.tensors
    return [BufferInfo(i, birth, last[i] + 1, tensors[i].nbytes) for i, birth in births.items()]


# ---- scratch


def compare_scratch(name, zoo, seconds):
    """Median processor time of all partitions of a model, one after another, in each mode of scratch."""
    path, inputs = inputs_of(name, zoo)
    with gp.Engine(threads=1) as engine, gp.onnx.load(fixed_model(path, inputs), engine=engine) as model:
        executable = model.specialise(inputs)
        programs = {mode: bind_all(executable, engine, inputs, mode) for mode in ("primitive", "none")}
        scratch = [call.args[0].scratchpad_nbytes for call in programs["none"]]
        samples = {mode: [] for mode in programs}
        until = time.monotonic() + seconds
        while time.monotonic() < until or len(samples["none"]) < 5:
            for mode, calls in programs.items():
                start = time.thread_time()
                for call in calls:
                    call()
                samples[mode].append(time.thread_time() - start)
        medians = {f"{mode}_ms": statistics.median(times) * 1e3 for mode, times in samples.items()}
        for calls in programs.values():
            for call in calls:
                call.args[0].close()
        return medians | {
            "ratio": medians["none_ms"] / medians["primitive_ms"],
            "partitions": len(scratch),
            "with_scratch": sum(n > 0 for n in scratch),
            "scratch_nbytes": sum(scratch),
            "largest_nbytes": max(scratch),
        }


def fixed_model(path, inputs):
    """The ONNX model with the shapes of these inputs: partitions compiled by themselves have no sizes that vary."""
    import onnx

    model = onnx.load(path)
    for port in model.graph.input:
        if port.name in inputs:
            for dim, size in zip(port.type.tensor_type.shape.dim, inputs[port.name].shape, strict=True):
                dim.dim_value = size
    return model


def bind_all(executable, engine, inputs, mode):
    """Calls of every supported partition, compiled by itself, on tensors of its own."""
    from functools import partial

    form, stream = executable.form, gp.Stream(engine)
    tensors = {}
    for name, tensor_id in form.inputs.items():
        if tensor_id in executable.tensors:
            tensors[tensor_id] = gp.Tensor(executable.tensors[tensor_id], engine, inputs[name])
    calls = []
    for part in executable.partitions:
        ports = [executable.tensors[lt.id] for lt in part.input_ports]
        results = [executable.tensors[lt.id] for lt in part.output_ports]
        for lt in ports:
            if lt.id in form.constants:
                tensors.setdefault(lt.id, gp.Tensor(lt, engine, form.constants[lt.id]))
        for lt in results:
            tensors.setdefault(lt.id, gp.Tensor(lt, engine))
        if not part.is_supported:
            continue
        compiled = part.compile(ports, results, engine, scratch=mode)
        sources = [tensors.setdefault(lt.id, gp.Tensor(lt, engine)) for lt in ports]
        calls.append(partial(run_one, compiled, stream, sources, [tensors[lt.id] for lt in results]))
    for call in calls:
        call()
    return calls


def run_one(compiled, stream, sources, results):
    """One execution."""
    compiled.execute(stream, sources, results)


# ---- the command


def main():
    """Print a row for each model and question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["allocations", "peak", "scratch", []])
    parser.add_argument("--zoo", type=Path, default=Path("zoo"))
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--count", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        print_counts(arguments.count, arguments.zoo)
        return
    questions = {
        "allocations": count_allocations,
        "peak": measure_peak,
        "scratch": lambda name, zoo: compare_scratch(name, zoo, arguments.seconds),
    }
    for question in arguments.what or questions:
        for name in arguments.models:
            if inputs_of(name, arguments.zoo) is None:
                row = {"skipped": f"no {name}.onnx and {name}.npz in {arguments.zoo}"}
            elif question == "allocations" and shutil.which("cc") is None:
                row = {"skipped": "needs a C compiler"}
            else:
                row = questions[question](name, arguments.zoo)
            if arguments.json:
                print(json.dumps({"question": question, "model": name, **row}), flush=True)
            else:
                values = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()]
                print(f"{question:12}{name:20}" + ", ".join(values), flush=True)


if __name__ == "__main__":
    main()
