"""Runs compiled partitions: engines, streams, tensors, and the step loop.

    engine.py       Engine: a device with its memory and its number of threads
    device.py       what depends on the kind of device: protocols; host_device.py: the CPU; cuda: GPUs
    engine_primitives.py, engine_constants.py   what its budget is charged for programs and weights
    engine_models.py   in which order its models give memory up; model_memory.py: what one has, and what that saves
    idle_decay.py   gives idle arenas back after a while
    process_report.py  ProcessReport: what of the process's resident memory is whose; heap.py: trims the C heap
    memory_queue.py which runs and loads wait for memory that others use
    allowed_memory.py, threads.py   how much memory and how many threads the process may use; cgroups.py: who says so;
                    group_room.py: what a group has left
    _tensor.pyx     Tensor: a logical tensor bound to data
    tensor_file.py  tensors in files, packed weights among them
    _stream.pyx     Stream, Event: an ordered queue of an engine, with a team of threads
    _program.pyx    Program: a C array of steps, run without the GIL on raw pointers, alone or shared by a team
    _row_loops.pyx  RowLoops: those of its steps that run once for each slice of a batch
    outside_axis.py what a run raises when it has met an index outside the axis that it counts
    _variable.pyx   VariableProgram: what of a program changes with sizes that vary, and the programs for other sizes
    _streams.pyx    StreamLists: the same steps on several streams, which wait for one another
    scheduling.py   which schedule a program gets: options, the choice
    machine.py      the machine that they reckon with until something is measured
    costs.py        what was measured of steps, stages and programs; stage_model.py: what stages take
    _trace.pyx      Recorder: what each thread did when, while somebody wants to know
    primitive.py    Primitive: a cached program; _share.pyx: its users and pool on one engine
    shared_arenas.py   arenas that all partitions of an engine, or all forms of a model, share
    constant_part.py   what is made of constants once, and the names of their contents
    packed_weight.py   weights of which only the form that kernels want is kept; nibbles.py: those of 4 bits
    constant_memory.py   what of constants lies in memory: elements, those of 4 bits, or one number that all are
    _constants.pyx  which cached buffers stand for a compiled partition's constants, asked at every execution
    _compiled.pyx   CompiledPartition: checks its tensors, leases an arena, runs its Program
    _template.pyx   Template: makes another one without a look-up
    thread_limits.py makes those threads known to threadpoolctl
    blas_threads.py keeps SciPy's BLAS to one thread while programs run
    model.py        Model: a whole graph, compiled once for all shapes for which its decisions hold
    model_forms.py  its compiled forms and what they share: compiles, counts, gives back
    _model_run.pyx  what each run of a model goes through: checks inputs, finds a form, runs it in turn
    _counters.pyx   what each run passes: it counts itself among the jobs of its engine, and as a use of its model
    dynamic_partition.py  a partition of unknown shapes
    request_batches.py  many requests to a model: side by side, or filled up to batches
    _form_cache.pyx forms of either, each closed after the last run that uses it
    model_port.py   its inputs and outputs: what they are, and whether a value fits
    model_metadata.py  what a file says of the model in it
    model_form.py   what an importer hands over: a graph of known shapes, constants, host functions
    inner_models.py host functions that run models of their own:
                    data_dependent.py: the part whose shapes follow from what a run computes,
                    branches.py: one of two, loop.py: a body so many times; trip_places.py: where its trips
                    read and write, open_trips.py: those whose shapes change, _trip_sizes.pyx: their sizes,
                    inner_calls.py: models inside them, nested_loop.py: loops among these
    _host_call.pyx  the call of a host function, and the steps and time of those of one run; host_room.py: what they
                    take at most
    partition_runs.py  which of its partitions are compiled as one
    executable.py   a form of a model: compiled partitions and host functions over one arena
    load_room.py    room for what its making computes, and the limit that would do where there is none
    form_parts.py   what it is made of on each kind of device
    variable_forms.py  compiles for shapes, or finds a form for all shapes for which its decisions hold:
                       variable_form.py, variable_partition.py: a partition of it, resizable_form.py: how it lives
    memory_peak.py     MemoryPeak: what a run of a model takes at most; mapped_reads.py: and reads of mapped files;
                       untouched.py: and leaves out of memory
    shape_ranges.py    shapes that a model is declared for; declared_shapes.py: what it promises for them
    range_cover.py     the forms that serve all of them, and what runs take at most
    model_step.py   a partition of it, and where the tensors between partitions lie
    form_constants.py   its constants: bound as they are, or kept packed alone
    form_steps.py   its partitions, compiled; form_plan.py: places in the arena, for one set of shapes or a range
    form_record.py  it as bytes for other processes; stored_forms.py: those of a model, found or stored, some of them
                    a while later (late_forms.py); _package_files.pyx: which code compiled them
    temporaries.py  temporaries of a program, and their places for one set of sizes after another
    _form_sizes.pyx shapes of its inputs and outputs for each set of sizes; described.py: what they say of an array
    form_charge.py  what the budget is charged for it
    _form_run.pyx   a run of a form: leases an arena, binds arrays, calls the steps, collects results
    runner.py       how it runs on addresses: where its tensors lie, and which calls its steps are
    _step_call.pyx  a program on addresses that the runner knows, which `execute` would check; a loop's trips
    session.py      Session: runs of a model that share states, in memory of its own
    session_states.py  which outputs are inputs of the next run; held_states.py: forms for the memory where they stay
    state_buffers.py   that memory, shared by forks; open_sessions.py   the sessions of a model
    shared_model.py share, SharedModel: the weights of a model once for all processes of a machine
    file_arrays.py  what pickles hold of arrays in files: path, content and place
    _result_arrays.pyx arrays for results, in memory that earlier results have left

    execute(stream, inputs, outputs) -> bind pointers -> find constants -> lease an arena -> Program.run -> release

What an execution changes lives in its arena; everything else may be used by any number of threads.
"""

from typing import TYPE_CHECKING

from .._collection import collection_paused, settle_objects
from .._lazy import lazy_names

with collection_paused():  # what modules hold stays
    from ._compiled import CompiledPartition
    from ._program import Program
    from ._stream import Event, Stream
    from ._tensor import Tensor
    from .constant_part import ExecuteOptions
    from .engine import Engine
    from .model import Model

    settle_objects()

if TYPE_CHECKING:
    from .dynamic_partition import DynamicPartition
    from .session import Session
    from .shared_model import SharedModel, share
    from .tensor_file import load_tensor, save_tensor

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DynamicPartition": "dynamic_partition",
        "Session": "session",
        "SharedModel": "shared_model",
        "share": "shared_model",
        "load_tensor": "tensor_file",
        "save_tensor": "tensor_file",
    },
)

__all__ = [
    "CompiledPartition",
    "DynamicPartition",
    "Engine",
    "Event",
    "ExecuteOptions",
    "Model",
    "Program",
    "Session",
    "SharedModel",
    "Stream",
    "Tensor",
    "load_tensor",
    "save_tensor",
    "share",
]
