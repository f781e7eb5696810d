/* A CUDA driver without a device: what its files share.
 *
 * Every entry point holds the one lock (`LOCKED`). Calls that enqueue work keep it back; it is run when somebody waits
 * for it, in a random order that streams, events and graphs allow. Two operations are ordered where one is `before` the
 * other in that sense, whatever order they ran in; `access.c` reports accesses that are not. */
#pragma once
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "twin.h"

#define EXPORTED __attribute__((visibility("default")))
#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* ---- report.c: the lock, what was found, objects with handles, random numbers, settings */

void lock_driver(void);
void unlock_driver(int *unused);
#define LOCKED __attribute__((cleanup(unlock_driver), unused)) int locked = (lock_driver(), 0)

/* Record a finding of a kind; the same text counts once. */
void report(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef enum { STREAM, EVENT, GRAPH, GRAPH_EXEC, LIBRARY, POOL, USER_OBJECT, OBJECT_KINDS } ObjectKind;

/* First member of everything that has a handle. Never freed, so that a stale handle is recognised. */
typedef struct {
    ObjectKind kind;
    bool is_live;
    int number; /* from 0, for each kind */
} Object;

void *new_object(ObjectKind kind, size_t nbytes);
void destroy_object(void *object);
/* The object, or NULL with a report where the handle is stale or of another kind. */
void *live_object(const void *handle, ObjectKind kind);

unsigned random_below(unsigned n);
/* An environment variable as a number. */
long setting(const char *name, long otherwise);

/* ---- work.c: what can be enqueued */

typedef enum { EMPTY, KERNEL, COPY, FILL, ALLOCATE, FREE, HOST_FUNCTION } WorkKind;

typedef struct {
    WorkKind kind;
    const Twin *twin; /* KERNEL */
    TwinLaunch launch;
    char *params[64];   /* owned */
    char *target;       /* COPY, FILL, ALLOCATE, FREE */
    const char *source; /* COPY */
    char *staged;       /* COPY from pageable memory: its content at the time of the call; owned */
    size_t nbytes;
    unsigned value, width; /* FILL: the pattern and its bytes */
    CUhostFn function;     /* HOST_FUNCTION */
    void *data;
} Work;

Work copy_work(const Work *work);
void release_work(Work *work);
const char *describe_work(const Work *work);
void execute_work(const Work *work);

/* ---- order.c: operations and what is before what. Operations have numbers from 1; 0 is none. */

int enqueue(const Work *work, int stream, const int *preds, int npreds);
const Work *work_of(int operation);
int stream_of_operation(int operation);
int running_operation(void);
/* Whether `first` is before whatever comes behind these operations, or is known to the host to have ended. */
bool is_before_any(int first, const int *preds, int npreds);
/* Whether `first` is before `second`; so is what was forgotten after the host had waited for everything. */
bool is_before(int first, int second);
bool is_done(int operation);
bool is_forgotten(int operation);
/* Run an operation and what it needs, and perhaps others. */
void run(int operation);
/* The same, and let the host know that they ended. */
void wait_on_host(int operation);
void wait_for_all_on_host(void);

/* ---- access.c: who may touch which byte when */

typedef struct Pool Pool;
typedef struct Record Record;

typedef struct {
    char *start;
    size_t nbytes;
    Pool *pool;      /* NULL: of cuMemAlloc, cuMemAllocHost */
    int number;      /* in the order of allocation */
    bool is_host;    /* page-locked host memory */
    bool is_live;    /* not given back yet, as the host sees it */
    bool is_open;    /* between its allocation and its release, as the work sees it */
    bool is_closed;  /* behind its release */
    int freed_by;    /* operation */
    uint8_t *is_set; /* for each byte, whether anything was written; NULL where the host may write unseen */
    Record *records; /* accesses that something to come may be unordered to */
    int nrecords;
} Block;

/* Memory that is a block's alone for all time: addresses are never used again. NULL: no address space. */
Block *new_block(size_t nbytes, bool is_host, Pool *pool);
void open_block(Block *block);
void close_block(Block *block);
Block *block_at(const void *address);
bool is_device_address(const void *address);
/* Tell of an access by the running operation. */
void access_memory(const void *address, size_t nbytes, int is_write);
/* Compare what the running operation accessed with all that is not ordered to it. */
void end_accesses(void);
void protect_device_memory(bool is_protected);
int describe_live_blocks(char *text, size_t room);

/* ---- pool.c */

struct Pool {
    Object object;
    size_t max_nbytes, used, used_high, reserved, reserved_high;
    cuuint64_t release_threshold;
    int reuse[3]; /* of event dependencies, opportunistically, of internal dependencies */
    bool is_host;
    struct Returning *returning; /* given back, not known to be free for everybody */
    int nreturning;
};

/* After the host has waited: what was given back is free, and goes to the system beyond the threshold. */
void settle_pools(void);

/* ---- stream.c, capture.c */

typedef struct Capture Capture;
typedef struct Graph Graph;

typedef struct {
    int *nodes; /* numbers in the graph */
    int count;
} NodeSet;

typedef struct {
    Object object;
    unsigned flags;
    int priority;
    int tail;         /* last operation */
    Capture *capture; /* NULL: none */
    NodeSet heads;    /* of a capture: what the next node depends on */
} Stream;

typedef struct {
    Object object;
    unsigned flags;
    bool is_recorded;
    int operation;
    Capture *capture; /* recorded in one, over or not */
    NodeSet heads;
} Event;

struct Capture {
    Graph *graph;
    Stream *origin;
    CUstreamCaptureMode mode;
    unsigned long thread;
    bool is_active, is_broken;
    int number;
    Stream **members; /* those destroyed meanwhile too */
    int nmembers;
};

Stream *stream_of(CUstream handle);
bool is_default_stream(const Stream *stream);
/* Append work to a stream, or to the graph that is captured from it. */
CUresult append_work(Stream *stream, const Work *work);
/* The operations that work appended now would follow. At most `room`. */
int predecessors(Stream *stream, int *preds, int room);

void unite_nodes(NodeSet *to, const NodeSet *from);
void set_single_node(NodeSet *set, int node);
void clear_nodes(NodeSet *set);
/* Break the capture that a stream takes part in, because of a call that captures forbid. */
CUresult forbid_in_capture(Stream *stream, const char *call);
/* The same for calls that concern no stream: forbidden by captures that are not relaxed. */
CUresult forbid_beside_capture(const char *call);
bool is_any_capture_active(void);
CUresult wait_in_capture(Stream *stream, const Event *event);
void join_capture(Stream *stream, Capture *capture);

/* ---- graph.c */

typedef struct {
    Graph *graph;
    Work work;
    int number;
    NodeSet needs;
} Node;

struct Graph {
    Object object;
    Node **nodes;
    int count;
    struct UserObject **held;
    int nheld;
};

Graph *new_graph(void);
int add_node(Graph *graph, const Work *work, const NodeSet *needs);
/* Whether a node is the other one, or comes before it. */
bool node_reaches(const Graph *graph, int first, int second);

/* ---- library.c, launch.c */

typedef struct Library Library;

typedef struct {
    Library *library;
    char *name;
    uint32_t symbol; /* its number in the cubin */
    int nparams, sizes[64], offsets[64], params_nbytes;
    int nregisters, max_dynamic_shared;
} Kernel;

int device_architecture(void);
const Twin *find_twin(const char *name);
/* What a launch says, as work; refused with a report where the device could not run it. */
CUresult prepare_launch(Work *work, Kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                        unsigned shared_nbytes, void **params, void **extra);
/* Whether the calling thread may make streams and memory. */
bool is_context_current(void);
