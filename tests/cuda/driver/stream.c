/* Streams and events. The legacy default stream waits for all blocking streams, and they for it. */
#include <stdlib.h>

#include "driver.h"
#include "entries.h"

static Stream *streams[4096]; /* those alive */
static int nstreams;
static Stream legacy_stream, thread_stream; /* not counted, never destroyed */

static Stream *default_stream(Stream *stream, int number) {
    stream->object = (Object){.kind = STREAM, .is_live = true, .number = number};
    return stream;
}

Stream *stream_of(CUstream handle) {
    uintptr_t value = (uintptr_t)handle;
    if (value <= (uintptr_t)CU_STREAM_LEGACY) return default_stream(&legacy_stream, -1);
    if (value == (uintptr_t)CU_STREAM_PER_THREAD) return default_stream(&thread_stream, -2);
    return live_object(handle, STREAM);
}

bool is_default_stream(const Stream *stream) {
    return stream == &legacy_stream || stream == &thread_stream;
}

static bool is_blocking(const Stream *stream) {
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

int predecessors(Stream *stream, int *preds, int room) {
    int count = 0;
    preds[count++] = stream->tail;
    if (stream != &legacy_stream) {
        if (is_blocking(stream)) preds[count++] = legacy_stream.tail;
        return count;
    }
    for (int i = 0; i < nstreams && count < room; i++)
        if (is_blocking(streams[i])) preds[count++] = streams[i]->tail;
    return count;
}

CUresult append_work(Stream *stream, const Work *work) {
    if (stream == &legacy_stream && is_any_capture_active()) {
        forbid_in_capture(NULL, "work on the default stream");
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        int preds[LENGTH(streams) + 1], npreds = predecessors(stream, preds, LENGTH(preds));
        stream->tail = enqueue(work, stream->object.number, preds, npreds);
        return CUDA_SUCCESS;
    }
    if (stream->capture->is_broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    set_single_node(&stream->heads, add_node(stream->capture->graph, work, &stream->heads));
    return CUDA_SUCCESS;
}

/* ---- entry points: streams */

CUresult test_cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
    LOCKED;
    if (!is_context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (nstreams == LENGTH(streams)) return CUDA_ERROR_OUT_OF_MEMORY;
    Stream *stream = new_object(STREAM, sizeof *stream);
    stream->flags = flags;
    stream->priority = priority;
    streams[nstreams++] = stream;
    *handle = (CUstream)stream;
    return CUDA_SUCCESS;
}

CUresult test_cuStreamCreate(CUstream *handle, unsigned flags) {
    return test_cuStreamCreateWithPriority(handle, flags, 0);
}

/* Work goes on without its stream; so does a capture, which has to be joined all the same. */
CUresult test_cuStreamDestroy(CUstream handle) {
    LOCKED;
    Stream *stream = stream_of(handle);
    if (!stream || is_default_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture && stream->capture->origin == stream) {
        report("capture", "stream %d was destroyed while it was captured", stream->object.number);
        stream->capture->is_broken = true;
    }
    destroy_object(stream);
    for (int i = 0; i < nstreams; i++)
        if (streams[i] == stream) streams[i] = streams[--nstreams];
    return CUDA_SUCCESS;
}

CUresult test_cuStreamGetPriority(CUstream handle, int *priority) {
    LOCKED;
    Stream *stream = stream_of(handle);
    *priority = stream ? stream->priority : 0;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuStreamGetFlags(CUstream handle, unsigned *flags) {
    LOCKED;
    Stream *stream = stream_of(handle);
    *flags = stream ? stream->flags : 0;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuStreamGetId(CUstream handle, unsigned long long *id) {
    LOCKED;
    Stream *stream = stream_of(handle);
    *id = stream ? (unsigned long long)(stream->object.number + 3) : 0; /* default streams: 1, 2 */
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuStreamGetDevice(CUstream handle, CUdevice *device) {
    LOCKED;
    *device = 0;
    return stream_of(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuStreamGetCtx(CUstream handle, CUcontext *context) {
    LOCKED;
    return stream_of(handle) ? test_cuDevicePrimaryCtxRetain(context, 0) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuStreamGetCtx_v12050(CUstream handle, CUcontext *context, CUgreenCtx *green) {
    if (green) *green = NULL;
    return test_cuStreamGetCtx(handle, context);
}

CUresult test_cuStreamSynchronize(CUstream handle) {
    LOCKED;
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return forbid_in_capture(stream, "cuStreamSynchronize");
    wait_on_host(stream->tail);
    return CUDA_SUCCESS;
}

/* Whether pending work has ended by now is chance. */
static CUresult query(int operation) {
    if (!is_done(operation) && random_below(2)) return CUDA_ERROR_NOT_READY;
    wait_on_host(operation);
    return CUDA_SUCCESS;
}

CUresult test_cuStreamQuery(CUstream handle) {
    LOCKED;
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return stream->capture ? forbid_in_capture(stream, "cuStreamQuery") : query(stream->tail);
}

CUresult test_cuStreamWaitEvent(CUstream stream_handle, CUevent event_handle, unsigned flags) {
    LOCKED;
    Stream *stream = stream_of(stream_handle);
    Event *event = live_object(event_handle, EVENT);
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture || event->capture) return wait_in_capture(stream, event);
    if (!event->is_recorded) return CUDA_SUCCESS; /* waits for nothing: what it should have ordered is reported */
    int preds[] = {stream->tail, event->operation};
    stream->tail = enqueue(&(Work){.kind = EMPTY}, stream->object.number, preds, 2);
    return CUDA_SUCCESS;
}

/* ---- entry points: events */

CUresult test_cuEventCreate(CUevent *handle, unsigned flags) {
    LOCKED;
    if (!is_context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    Event *event = new_object(EVENT, sizeof *event);
    event->flags = flags;
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult test_cuEventDestroy(CUevent handle) {
    LOCKED;
    Event *event = live_object(handle, EVENT);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    destroy_object(event);
    return CUDA_SUCCESS;
}

CUresult test_cuEventRecord(CUevent event_handle, CUstream stream_handle) {
    LOCKED;
    Event *event = live_object(event_handle, EVENT);
    Stream *stream = stream_of(stream_handle);
    if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
    event->is_recorded = true;
    event->capture = stream->capture;
    clear_nodes(&event->heads);
    if (stream->capture) {
        unite_nodes(&event->heads, &stream->heads);
        return stream->capture->is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    }
    int preds[LENGTH(streams) + 1], npreds = predecessors(stream, preds, LENGTH(preds));
    event->operation = enqueue(&(Work){.kind = EMPTY}, stream->object.number, preds, npreds);
    stream->tail = event->operation;
    return CUDA_SUCCESS;
}

CUresult test_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return flags ? CUDA_ERROR_NOT_SUPPORTED : test_cuEventRecord(event, stream);
}

static CUresult forbid_captured(const Event *event, const char *call) {
    report("capture", "%s of an event that was recorded in a capture", call);
    event->capture->is_broken |= event->capture->is_active;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult test_cuEventQuery(CUevent handle) {
    LOCKED;
    Event *event = live_object(handle, EVENT);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return event->capture ? forbid_captured(event, "cuEventQuery") : query(event->operation);
}

CUresult test_cuEventSynchronize(CUevent handle) {
    LOCKED;
    Event *event = live_object(handle, EVENT);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return forbid_captured(event, "cuEventSynchronize");
    wait_on_host(event->operation);
    return CUDA_SUCCESS;
}

/* Time is not modelled: every distance is zero. */
CUresult test_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    LOCKED;
    Event *events[] = {live_object(start, EVENT), live_object(end, EVENT)};
    *milliseconds = 0;
    for (size_t i = 0; i < LENGTH(events); i++) {
        if (!events[i] || !events[i]->is_recorded || events[i]->flags & CU_EVENT_DISABLE_TIMING)
            return CUDA_ERROR_INVALID_HANDLE;
        if (!is_done(events[i]->operation)) return CUDA_ERROR_NOT_READY;
    }
    return CUDA_SUCCESS;
}
