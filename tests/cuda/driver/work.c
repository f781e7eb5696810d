/* Work: copies of it, and what happens when it runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static char *copy_bytes(const char *bytes, size_t nbytes) {
    return bytes ? memcpy(malloc(nbytes + 1), bytes, nbytes) : NULL;
}

Work copy_work(const Work *work) {
    Work copy = *work;
    copy.staged = copy_bytes(work->staged, work->nbytes);
    for (int i = 0; work->kind == KERNEL && i < work->twin->nparams; i++)
        copy.params[i] = copy_bytes(work->params[i], (size_t)work->twin->sizes[i]);
    return copy;
}

void release_work(Work *work) {
    free(work->staged);
    for (int i = 0; work->kind == KERNEL && i < work->twin->nparams; i++) free(work->params[i]);
    *work = (Work){.kind = EMPTY};
}

const char *describe_work(const Work *work) {
    static const char *const names[] = {"nothing", "kernel", "copy", "fill", "allocation", "release", "host function"};
    static char texts[4][128]; /* for a few in one message */
    static int turn;
    char *text = texts[turn++ % 4];
    const char *kernel = work->kind == KERNEL ? work->twin->name : "";
    snprintf(text, sizeof texts[0], "%s%s%s", names[work->kind], *kernel ? " " : "", kernel);
    return text;
}

static void copy_memory(const Work *work) {
    const char *source = work->staged ? work->staged : work->source;
    access_memory(source, work->nbytes, 0);
    access_memory(work->target, work->nbytes, 1);
    memmove(work->target, source, work->nbytes);
}

static void fill_memory(const Work *work) {
    access_memory(work->target, work->nbytes, 1);
    for (size_t i = 0; i < work->nbytes; i += work->width) memcpy(work->target + i, &work->value, work->width);
}

static void run_kernel(const Work *work) {
    TwinLaunch launch = work->launch;
    launch.seed = random_below(1u << 30);
    work->twin->run(&launch, work->params);
}

/* Host functions may not touch device memory, and may take their time. */
static void call_host(const Work *work) {
    protect_device_memory(true);
    work->function(work->data);
    protect_device_memory(false);
}

void execute_work(const Work *work) {
    switch (work->kind) {
        case EMPTY: break;
        case KERNEL: run_kernel(work); break;
        case COPY: copy_memory(work); break;
        case FILL: fill_memory(work); break;
        case ALLOCATE: open_block(block_at(work->target)); break;
        case FREE: close_block(block_at(work->target)); break;
        case HOST_FUNCTION: call_host(work); break;
    }
}
