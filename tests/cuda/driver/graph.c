/* Graphs: nodes, executable copies, launches, updates, user objects. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "entries.h"

typedef struct UserObject {
    Object object;
    void *data;
    CUhostFn destroy;
    unsigned references;
} UserObject;

typedef struct {
    Object object;
    Graph *graph; /* a copy, not counted as a graph */
    int last;     /* operation that ends the last launch: launches of one executable graph follow each other */
} Exec;

/* ---- nodes */

Graph *new_graph(void) {
    return new_object(GRAPH, sizeof(Graph));
}

int add_node(Graph *graph, const Work *work, const NodeSet *needs) {
    Node *node = calloc(1, sizeof *node);
    *node = (Node){.graph = graph, .work = copy_work(work), .number = graph->count};
    unite_nodes(&node->needs, needs);
    graph->nodes = realloc(graph->nodes, sizeof(Node *) * (size_t)(graph->count + 1));
    graph->nodes[graph->count++] = node;
    return node->number;
}

bool node_reaches(const Graph *graph, int first, int second) {
    if (first >= second) return first == second; /* nodes need older ones only */
    const NodeSet *needs = &graph->nodes[second]->needs;
    for (int i = 0; i < needs->count; i++)
        if (node_reaches(graph, first, needs->nodes[i])) return true;
    return false;
}

static int edge_count(const Graph *graph) {
    int count = 0;
    for (int i = 0; i < graph->count; i++) count += graph->nodes[i]->needs.count;
    return count;
}

static CUresult add_node_after(CUgraphNode *out, CUgraph handle, const CUgraphNode *needs, size_t count,
                               const Work *work) {
    Graph *graph = live_object(handle, GRAPH);
    if (!graph) return CUDA_ERROR_INVALID_HANDLE;
    NodeSet set = {0};
    for (size_t i = 0; i < count; i++) unite_nodes(&set, &(NodeSet){&((Node *)needs[i])->number, 1});
    int number = add_node(graph, work, &set);
    *out = (CUgraphNode)graph->nodes[number];
    clear_nodes(&set);
    return CUDA_SUCCESS;
}

/* ---- user objects */

static void drop_references(UserObject *object, unsigned count) {
    object->references -= count;
    if (object->references > 0) return;
    destroy_object(object);
    object->destroy(object->data);
}

static void hold(Graph *graph, UserObject *object) {
    graph->held = realloc(graph->held, sizeof(UserObject *) * (size_t)(graph->nheld + 1));
    graph->held[graph->nheld++] = object;
}

static void empty_graph(Graph *graph) {
    for (int i = 0; i < graph->count; i++) release_work(&graph->nodes[i]->work);
    for (int i = 0; i < graph->nheld; i++) drop_references(graph->held[i], 1);
    graph->count = graph->nheld = 0;
}

/* ---- executable graphs */

static Graph *copy_graph(const Graph *graph) {
    Graph *copy = calloc(1, sizeof *copy);
    for (int i = 0; i < graph->count; i++) add_node(copy, &graph->nodes[i]->work, &graph->nodes[i]->needs);
    for (int i = 0; i < graph->nheld; i++) {
        graph->held[i]->references++;
        hold(copy, graph->held[i]);
    }
    return copy;
}

static bool is_same_set(const NodeSet *a, const NodeSet *b) {
    return a->count == b->count && (a->count == 0 || memcmp(a->nodes, b->nodes, sizeof(int) * (size_t)a->count) == 0);
}

/* What keeps an executable graph from taking over another graph's parameters. */
static CUgraphExecUpdateResult difference(const Graph *old, const Graph *new) {
    if (old->count != new->count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (int i = 0; i < old->count; i++) {
        const Work *a = &old->nodes[i]->work, *b = &new->nodes[i]->work;
        if (!is_same_set(&old->nodes[i]->needs, &new->nodes[i]->needs))
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (a->kind != b->kind) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (a->twin != b->twin) return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        if (a->kind == COPY && a->nbytes != b->nbytes) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static void launch(Exec *exec, Stream *stream) {
    const Graph *graph = exec->graph;
    int number = stream->object.number, count = 0, start_preds[64],
        *operations = malloc(sizeof(int) * (size_t)(graph->count + 1));
    int nstart = predecessors(stream, start_preds, LENGTH(start_preds) - 1);
    start_preds[nstart++] = exec->last;
    int start = enqueue(&(Work){.kind = EMPTY}, number, start_preds, nstart);
    for (; count < graph->count; count++) {
        const Node *node = graph->nodes[count];
        int *preds = malloc(sizeof(int) * (size_t)(node->needs.count + 1)), npreds = 0;
        preds[npreds++] = start;
        for (int i = 0; i < node->needs.count; i++) preds[npreds++] = operations[node->needs.nodes[i]];
        operations[count] = enqueue(&node->work, number, preds, npreds);
        free(preds);
    }
    operations[count++] = start;
    exec->last = stream->tail = enqueue(&(Work){.kind = EMPTY}, number, operations, count);
    free(operations);
}

/* ---- entry points: graphs */

CUresult test_cuGraphCreate(CUgraph *graph, unsigned flags) {
    LOCKED;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    *graph = (CUgraph)new_graph();
    return CUDA_SUCCESS;
}

CUresult test_cuGraphDestroy(CUgraph handle) {
    LOCKED;
    Graph *graph = live_object(handle, GRAPH);
    if (!graph) return CUDA_ERROR_INVALID_HANDLE;
    empty_graph(graph);
    destroy_object(graph);
    return CUDA_SUCCESS;
}

CUresult test_cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    LOCKED;
    const Graph *graph = live_object(handle, GRAPH);
    if (!graph) return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; nodes && i < *count && i < (size_t)graph->count; i++) nodes[i] = (CUgraphNode)graph->nodes[i];
    *count = (size_t)graph->count;
    return CUDA_SUCCESS;
}

CUresult test_cuGraphGetEdges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                              size_t *count) {
    LOCKED;
    const Graph *graph = live_object(handle, GRAPH);
    if (!graph) return CUDA_ERROR_INVALID_HANDLE;
    size_t room = *count, found = 0;
    for (int i = 0; from && i < graph->count; i++)
        for (int k = 0; k < graph->nodes[i]->needs.count && found < room; k++, found++) {
            from[found] = (CUgraphNode)graph->nodes[graph->nodes[i]->needs.nodes[k]];
            to[found] = (CUgraphNode)graph->nodes[i];
            if (edges) edges[found] = (CUgraphEdgeData){0};
        }
    *count = (size_t)edge_count(graph);
    return CUDA_SUCCESS;
}

CUresult test_cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    LOCKED;
    switch (((Node *)node)->work.kind) {
        case KERNEL: *type = CU_GRAPH_NODE_TYPE_KERNEL; break;
        case COPY: *type = CU_GRAPH_NODE_TYPE_MEMCPY; break;
        case FILL: *type = CU_GRAPH_NODE_TYPE_MEMSET; break;
        case HOST_FUNCTION: *type = CU_GRAPH_NODE_TYPE_HOST; break;
        default: *type = CU_GRAPH_NODE_TYPE_EMPTY; break;
    }
    return CUDA_SUCCESS;
}

CUresult test_cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count) {
    LOCKED;
    return add_node_after(node, graph, needs, count, &(Work){.kind = EMPTY});
}

static CUresult kernel_work(Work *work, const CUDA_KERNEL_NODE_PARAMS *params) {
    Kernel *kernel = params->func ? (Kernel *)params->func : (Kernel *)params->kern;
    const uint32_t grid[] = {params->gridDimX, params->gridDimY, params->gridDimZ};
    const uint32_t block[] = {params->blockDimX, params->blockDimY, params->blockDimZ};
    return prepare_launch(work, kernel, grid, block, params->sharedMemBytes, params->kernelParams, params->extra);
}

CUresult test_cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                   const CUDA_KERNEL_NODE_PARAMS *params) {
    LOCKED;
    Work work;
    CUresult result = kernel_work(&work, params);
    if (result != CUDA_SUCCESS) return result;
    result = add_node_after(node, graph, needs, count, &work);
    release_work(&work);
    return result;
}

CUresult test_cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                   const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    LOCKED;
    (void)context;
    if (params->height != 1) return CUDA_ERROR_NOT_SUPPORTED;
    Work work = {.kind = FILL,
                 .target = (char *)params->dst,
                 .value = params->value,
                 .width = params->elementSize,
                 .nbytes = params->width * params->elementSize};
    return add_node_after(node, graph, needs, count, &work);
}

CUresult test_cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                   const CUDA_MEMCPY3D *params, CUcontext context) {
    LOCKED;
    (void)context;
    if (params->Height != 1 || params->Depth != 1) return CUDA_ERROR_NOT_SUPPORTED;
    bool is_from_host = params->srcMemoryType == CU_MEMORYTYPE_HOST,
         is_to_host = params->dstMemoryType == CU_MEMORYTYPE_HOST;
    Work work = {.kind = COPY,
                 .nbytes = params->WidthInBytes,
                 .source = is_from_host ? params->srcHost : (const char *)params->srcDevice,
                 .target = is_to_host ? params->dstHost : (char *)params->dstDevice};
    return add_node_after(node, graph, needs, count, &work);
}

CUresult test_cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                                 const CUDA_HOST_NODE_PARAMS *params) {
    LOCKED;
    return add_node_after(node, graph, needs, count,
                          &(Work){.kind = HOST_FUNCTION, .function = params->fn, .data = params->userData});
}

/* ---- entry points: executable graphs */

CUresult test_cuGraphInstantiateWithFlags(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags) {
    LOCKED;
    (void)flags; /* memory nodes, which they are about, are not modelled */
    const Graph *graph = live_object(graph_handle, GRAPH);
    if (!graph) return CUDA_ERROR_INVALID_HANDLE;
    Exec *exec = new_object(GRAPH_EXEC, sizeof *exec);
    exec->graph = copy_graph(graph);
    *handle = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

CUresult test_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    CUresult result = test_cuGraphInstantiateWithFlags(exec, graph, params->flags);
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult test_cuGraphUpload(CUgraphExec exec, CUstream stream) {
    LOCKED;
    return live_object(exec, GRAPH_EXEC) && stream_of(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    LOCKED;
    Exec *exec = live_object(handle, GRAPH_EXEC);
    Stream *stream = stream_of(stream_handle);
    if (!exec || !stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return forbid_in_capture(stream, "cuGraphLaunch"); /* child graphs are not modelled */
    launch(exec, stream);
    return CUDA_SUCCESS;
}

CUresult test_cuGraphExecUpdate(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info) {
    LOCKED;
    Exec *exec = live_object(handle, GRAPH_EXEC);
    const Graph *graph = live_object(graph_handle, GRAPH);
    if (!exec || !graph) return CUDA_ERROR_INVALID_HANDLE;
    *info = (CUgraphExecUpdateResultInfo){.result = difference(exec->graph, graph)};
    if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    Graph *old = exec->graph; /* launches that are pending have copies of their work */
    exec->graph = copy_graph(graph);
    empty_graph(old);
    return CUDA_SUCCESS;
}

CUresult test_cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node_handle,
                                             const CUDA_KERNEL_NODE_PARAMS *params) {
    LOCKED;
    Exec *exec = live_object(handle, GRAPH_EXEC);
    int number = ((Node *)node_handle)->number;
    Work work;
    if (!exec || number >= exec->graph->count) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = kernel_work(&work, params);
    if (result != CUDA_SUCCESS) return result;
    Work *own = &exec->graph->nodes[number]->work;
    bool fits = own->kind == KERNEL && own->twin == work.twin;
    if (fits) release_work(own);
    if (fits) *own = work;
    else release_work(&work);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What a pending launch needs is held until it has ended. */
CUresult test_cuGraphExecDestroy(CUgraphExec handle) {
    LOCKED;
    Exec *exec = live_object(handle, GRAPH_EXEC);
    if (!exec) return CUDA_ERROR_INVALID_HANDLE;
    if (exec->graph->nheld) run(exec->last);
    empty_graph(exec->graph);
    destroy_object(exec);
    return CUDA_SUCCESS;
}

/* ---- entry points: user objects */

CUresult test_cuUserObjectCreate(CUuserObject *handle, void *data, CUhostFn destroy, unsigned references,
                                 unsigned flags) {
    LOCKED;
    if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0) return CUDA_ERROR_INVALID_VALUE;
    UserObject *object = new_object(USER_OBJECT, sizeof *object);
    object->data = data;
    object->destroy = destroy;
    object->references = references;
    *handle = (CUuserObject)object;
    return CUDA_SUCCESS;
}

CUresult test_cuUserObjectRelease(CUuserObject handle, unsigned count) {
    LOCKED;
    UserObject *object = live_object(handle, USER_OBJECT);
    if (!object || count > object->references) return CUDA_ERROR_INVALID_VALUE;
    drop_references(object, count);
    return CUDA_SUCCESS;
}

CUresult test_cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags) {
    LOCKED;
    Graph *graph = live_object(graph_handle, GRAPH);
    UserObject *object = live_object(handle, USER_OBJECT);
    if (!graph || !object) return CUDA_ERROR_INVALID_HANDLE;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
    for (unsigned i = 0; i < count; i++) hold(graph, object);
    return CUDA_SUCCESS;
}

CUresult test_cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count) {
    LOCKED;
    Graph *graph = live_object(graph_handle, GRAPH);
    UserObject *object = live_object(handle, USER_OBJECT);
    if (!graph || !object) return CUDA_ERROR_INVALID_HANDLE;
    for (int i = graph->nheld - 1; i >= 0 && count > 0; i--) {
        if (graph->held[i] != object) continue;
        graph->held[i] = graph->held[--graph->nheld];
        drop_references(object, 1);
        count--;
    }
    return count ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
