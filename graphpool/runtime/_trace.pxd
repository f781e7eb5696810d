from libc.stdint cimport int32_t, int64_t


# What one thread did of one step of one run.
cdef struct Slice:
    int64_t program     # serial number
    int64_t run         # counts within the recording
    int64_t thread      # that called
    int64_t step
    int32_t thread_index
    int32_t trip        # of the loop that the step is in, from 0 on
    int64_t ntasks
    int64_t start_ns
    int64_t end_ns


cdef struct Recording:
    Slice *slices
    int64_t capacity
    int64_t jitter_ns
    int64_t nruns
    int64_t nslices     # may exceed the capacity: the rest was dropped


cpdef current()
# The recording that is on, which stays until `leave_recording`; NULL, and nothing to leave, when none is.
cdef Recording *enter_recording() noexcept nogil
cdef void leave_recording(Recording *recording) noexcept nogil
cdef int64_t count_run(Recording *recording) noexcept nogil
cdef int64_t current_thread() noexcept nogil
cdef void put_slice(Recording *recording, const Slice *slice) noexcept nogil
# Sleep for a while that nobody can foresee, up to jitter_ns.
cdef void jitter(Recording *recording) noexcept nogil
