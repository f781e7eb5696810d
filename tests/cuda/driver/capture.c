/* Capture of streams into graphs, and what it forbids. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "entries.h"

static Capture *captures[256]; /* those active */
static int ncaptures, nstarted;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- sets of nodes */

void unite_nodes(NodeSet *to, const NodeSet *from) {
    for (int i = 0; i < from->count; i++) {
        bool is_there = false;
        for (int k = 0; k < to->count; k++) is_there |= to->nodes[k] == from->nodes[i];
        if (is_there) continue;
        to->nodes = realloc(to->nodes, sizeof(int) * (size_t)(to->count + 1));
        to->nodes[to->count++] = from->nodes[i];
    }
}

void clear_nodes(NodeSet *set) {
    free(set->nodes);
    *set = (NodeSet){0};
}

void set_single_node(NodeSet *set, int node) {
    clear_nodes(set);
    unite_nodes(set, &(NodeSet){&node, 1});
}

/* ---- what is forbidden */

bool is_any_capture_active(void) {
    return ncaptures > 0;
}

CUresult forbid_in_capture(Stream *stream, const char *call) {
    report("capture", "%s is not allowed while a stream is captured", call);
    for (int i = 0; i < ncaptures; i++)
        if (!stream || captures[i] == stream->capture) captures[i]->is_broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool forbids(const Capture *capture) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    bool is_own = capture->thread == pthread_self();
    if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) return is_own || thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    return capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && is_own;
}

CUresult forbid_beside_capture(const char *call) {
    for (int i = 0; i < ncaptures; i++) {
        if (!forbids(captures[i])) continue;
        captures[i]->is_broken = true;
        report("capture", "%s is not allowed while a stream is captured", call);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

/* ---- members */

void join_capture(Stream *stream, Capture *capture) {
    stream->capture = capture;
    clear_nodes(&stream->heads);
    capture->members = realloc(capture->members, sizeof(Stream *) * (size_t)(capture->nmembers + 1));
    capture->members[capture->nmembers++] = stream;
}

static CUresult break_capture(Capture *capture, CUresult error, const char *why) {
    capture->is_broken = true;
    report("capture", "%s", why);
    return error;
}

CUresult wait_in_capture(Stream *stream, const Event *event) {
    if (event->capture && !event->capture->is_active) {
        report("capture", "stream %d waits for an event of a capture that is over", stream->object.number);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!event->capture)
        return break_capture(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                             "a captured stream waits for an event from outside");
    if (stream->capture && stream->capture != event->capture)
        return break_capture(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures were merged");
    if (!stream->capture) join_capture(stream, event->capture);
    unite_nodes(&stream->heads, &event->heads);
    return CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, Graph *graph, CUstreamCaptureMode mode) {
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (is_default_stream(stream)) {
        report("capture", "the default stream cannot be captured");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture || ncaptures == LENGTH(captures)) return CUDA_ERROR_ILLEGAL_STATE;
    Capture *capture = calloc(1, sizeof *capture); /* kept: events refer to it */
    *capture = (Capture){.graph = graph ? graph : new_graph(),
                         .origin = stream,
                         .mode = mode,
                         .thread = pthread_self(),
                         .is_active = true,
                         .number = ++nstarted};
    captures[ncaptures++] = capture;
    join_capture(stream, capture);
    return CUDA_SUCCESS;
}

/* ---- the end */

static bool is_joined(const Capture *capture, const Stream *member) {
    for (int i = 0; i < member->heads.count; i++) {
        bool is_reached = false;
        for (int k = 0; k < capture->origin->heads.count; k++)
            is_reached |= node_reaches(capture->graph, member->heads.nodes[i], capture->origin->heads.nodes[k]);
        if (!is_reached) return false;
    }
    return true;
}

static CUresult check_joined(const Capture *capture) {
    for (int i = 0; i < capture->nmembers; i++) {
        if (is_joined(capture, capture->members[i])) continue;
        report("capture", "work on stream %d was not joined to the stream where the capture began",
               capture->members[i]->object.number);
        return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    return CUDA_SUCCESS;
}

static void end(Capture *capture) {
    capture->is_active = false;
    for (int i = 0; i < capture->nmembers; i++) {
        capture->members[i]->capture = NULL;
        clear_nodes(&capture->members[i]->heads);
    }
    for (int i = 0; i < ncaptures; i++)
        if (captures[i] == capture) captures[i] = captures[--ncaptures];
}

/* ---- entry points */

CUresult test_cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    LOCKED;
    return begin(stream, NULL, mode);
}

CUresult test_cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle, const CUgraphNode *needs,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    LOCKED;
    Graph *graph = live_object(graph_handle, GRAPH);
    if (!graph || edges) return graph ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_HANDLE;
    CUresult result = begin(handle, graph, mode);
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        unite_nodes(&stream_of(handle)->heads, &(NodeSet){&((Node *)needs[i])->number, 1});
    return result;
}

CUresult test_cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    LOCKED;
    Stream *stream = stream_of(handle);
    *graph = NULL;
    if (!stream || !stream->capture) return stream ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_HANDLE;
    Capture *capture = stream->capture;
    if (capture->origin != stream)
        return break_capture(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                             "a capture ended on a stream that it did not begin on");
    CUresult result = capture->is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : check_joined(capture);
    end(capture);
    if (result == CUDA_SUCCESS) *graph = (CUgraph)capture->graph;
    else if (capture->graph->object.is_live) destroy_object(capture->graph);
    return result;
}

static CUstreamCaptureStatus status_of(const Stream *stream) {
    if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->is_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult test_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    LOCKED;
    Stream *stream = stream_of(handle);
    *status = stream ? status_of(stream) : CU_STREAM_CAPTURE_STATUS_NONE;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                     const CUgraphNode **needs, const CUgraphEdgeData **edges, size_t *count) {
    LOCKED;
    static CUgraphNode found[1024]; /* valid until the next call, as the driver has it */
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const Capture *capture = stream->capture;
    int nfound = capture ? stream->heads.count : 0;
    if (nfound > (int)LENGTH(found)) return CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < nfound; i++) found[i] = (CUgraphNode)capture->graph->nodes[stream->heads.nodes[i]];
    *status = status_of(stream);
    if (id) *id = capture ? (cuuint64_t)capture->number : 0;
    if (graph) *graph = capture ? (CUgraph)capture->graph : NULL;
    if (needs) *needs = found;
    if (edges) *edges = NULL;
    if (count) *count = (size_t)nfound;
    return CUDA_SUCCESS;
}

CUresult test_cuStreamGetCaptureInfo_v11030(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **needs, size_t *count) {
    return test_cuStreamGetCaptureInfo(handle, status, id, graph, needs, NULL, count);
}

CUresult test_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
