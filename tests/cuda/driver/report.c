/* The lock, reports, objects, random numbers; and what tests call. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "driver.h"

enum { MAX_REPORTS = 256, REPORT_NBYTES = 400 };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* host functions call the driver again */
static long ncalls;

void lock_driver(void) {
    pthread_mutex_lock(&lock);
    ncalls++;
}

void unlock_driver(int *unused) {
    (void)unused;
    pthread_mutex_unlock(&lock);
}

/* ---- reports */

static char reports[MAX_REPORTS][REPORT_NBYTES];
static int nreports;

void report(const char *kind, const char *format, ...) {
    char text[REPORT_NBYTES];
    int length = snprintf(text, sizeof text, "%s: ", kind);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    for (int i = 0; i < nreports; i++)
        if (strcmp(reports[i], text) == 0) return;
    if (nreports < MAX_REPORTS) strcpy(reports[nreports++], text);
}

int test_driver_reports(char *text, size_t room) {
    LOCKED;
    int found = nreports;
    text[0] = 0;
    for (int i = 0; i < nreports; i++) {
        size_t length = strlen(text);
        snprintf(text + length, room - length, "%s\n", reports[i]);
    }
    nreports = 0;
    return found;
}

long test_driver_calls(void) {
    return ncalls;
}

/* ---- objects */

static const char *const object_names[OBJECT_KINDS] = {"stream",  "event",       "graph",      "executable graph",
                                                       "library", "memory pool", "user object"};
static int nlive[OBJECT_KINDS], nmade[OBJECT_KINDS];

void *new_object(ObjectKind kind, size_t nbytes) {
    Object *object = calloc(1, nbytes);
    *object = (Object){.kind = kind, .is_live = true, .number = nmade[kind]++};
    nlive[kind]++;
    return object;
}

void destroy_object(void *pointer) {
    Object *object = pointer;
    object->is_live = false;
    nlive[object->kind]--;
}

void *live_object(const void *handle, ObjectKind kind) {
    Object *object = (Object *)handle;
    if (object && object->kind == kind && object->is_live) return object;
    if (object) report("stale handle", "%s %d was used after it was destroyed", object_names[kind], object->number);
    return NULL;
}

int test_driver_live(char *text, size_t room) {
    LOCKED;
    int length = 0, count = 0;
    text[0] = 0;
    for (int kind = 0; kind < OBJECT_KINDS; kind++) {
        if (nlive[kind] == 0 || kind == LIBRARY) continue; /* cuda.core unloads no library */
        length += snprintf(text + length, room - (size_t)length, "%d of kind %s\n", nlive[kind], object_names[kind]);
        count += nlive[kind];
    }
    return count + describe_live_blocks(text + length, room - (size_t)length);
}

/* What nobody has asked for is not lost: it is printed when the process ends, with what was never given back. */
__attribute__((destructor)) static void report_at_exit(void) {
    char live[4096];
    for (int i = 0; i < nreports; i++) fprintf(stderr, "test driver: %s\n", reports[i]);
    if (test_driver_live(live, sizeof live) == 0) return;
    for (char *rest = live, *line; (line = strsep(&rest, "\n")) != NULL;)
        if (*line) fprintf(stderr, "test driver: leak: %s\n", line);
}

/* ---- random numbers: xorshift64* */

static uint64_t random_state;

void test_driver_seed(unsigned long seed) {
    random_state = (seed + 1) * 0x9E3779B97F4A7C15u;
}

unsigned random_below(unsigned n) {
    if (random_state == 0) test_driver_seed((unsigned long)setting("TEST_DRIVER_SEED", 0));
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (unsigned)((random_state * 0x2545F4914F6CDD1Du) >> 33) % n;
}

long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 0) : otherwise;
}
