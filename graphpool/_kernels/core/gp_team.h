/* A team of threads, which share regions of work with the thread that owns the team at the moment: that is thread 0.
 *
 * A region is one call of a function on several threads at once. Its work must be handed out on demand, so that thread 0
 * could do all of it: a thread that has not woken up when thread 0 is done is called off, and nobody waits for it.
 *
 *     order of a thread:   IDLE --(owner)--> OFFERED --(thread)--> RUNNING --(thread)--> IDLE
 *                                            OFFERED --(owner, called off)-------------> IDLE
 *                          IDLE --(owner, at the end of the team)--> STOPPED
 *
 * Everybody waits in one way: until a word has changed. No wake-up is lost. A sleeper counts itself before it looks at
 * the word for the last time, with the mutex held; a changer looks at the count after it has changed the word, both
 * sequentially consistent. So either the changer sees the sleeper, takes the mutex (the sleeper is then in
 * pthread_cond_wait, or has yet to look) and wakes it, or the sleeper sees the change.
 *
 * Words are changed by atomic operations only; everything else of a region is written before the orders are and read
 * after. Memory belongs to the caller.
 */
#ifndef GP_TEAM_H
#define GP_TEAM_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { GP_IDLE = 0, GP_OFFERED = 1, GP_RUNNING = 2, GP_STOPPED = 3 };

#define GP_TEAM_ALIGNMENT 128   /* two cache lines: neighbours are fetched in pairs */

typedef void (*gp_region_fn)(void *context, int64_t thread);

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t sleepers;
} gp_gate;

typedef struct gp_team gp_team;

typedef struct {
    int64_t order;
    int64_t number;
    gp_team *team;
    gp_gate gate;
    pthread_t handle;
} __attribute__((aligned(GP_TEAM_ALIGNMENT))) gp_team_thread;

struct gp_team {
    pthread_mutex_t owner;      /* held by the thread whose region runs */
    int64_t nthreads;           /* thread 0 included */
    int64_t nstarted;           /* of them that exist: 1 while only thread 0 does */
    int64_t spin_ns;            /* how long a thread looks before it sleeps */
    gp_region_fn fn;            /* of the region that runs, like the next two */
    void *context;
    int64_t nactive;
    int64_t next_wake __attribute__((aligned(GP_TEAM_ALIGNMENT)));
    gp_gate turn __attribute__((aligned(GP_TEAM_ALIGNMENT)));  /* where threads of a region wait for one another */
    gp_team_thread threads[];   /* threads[0] is not used */
};

static inline int64_t gp_team_load(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static inline void gp_team_store(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
static inline int64_t gp_team_add(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
static inline int gp_team_cas(int64_t *p, int64_t expected, int64_t desired) {
    return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline int64_t gp_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void gp_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#else
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

/* ---- waiting */

static inline void gp_gate_init(gp_gate *gate) {
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->changed, NULL);
    gate->sleepers = 0;
}

static inline void gp_gate_destroy(gp_gate *gate) {
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->mutex);
}

/* To be called after every change of a word that somebody may wait for at this gate. Cost: a load while nobody sleeps. */
static inline void gp_gate_notify(gp_gate *gate) {
    if (gp_team_load(&gate->sleepers) == 0) return;
    pthread_mutex_lock(&gate->mutex);
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

/* What `n` words add up to, each at the head of GP_TEAM_ALIGNMENT bytes of its own. Where they only grow, it is another
 * sum as soon as one has. */
static inline int64_t gp_team_sum(int64_t *words, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += gp_team_load(words + i * (GP_TEAM_ALIGNMENT / (int64_t)sizeof(int64_t)));
    return sum;
}

/* Look at words for spin_ns; whether their sum stopped being `value`. The clock is read once in 16 looks. */
static inline int gp_spin_while(int64_t *words, int64_t n, int64_t value, int64_t spin_ns) {
    int64_t until = spin_ns > 0 ? gp_clock_ns() + spin_ns : 0;
    do {
        for (int i = 0; i < 16; i++) {
            if (gp_team_sum(words, n) != value) return 1;
            gp_pause();
        }
    } while (until != 0 && gp_clock_ns() < until);
    return 0;
}

/* Return when the sum of `n` words is not `value`. */
static inline void gp_wait_while(gp_gate *gate, int64_t *words, int64_t n, int64_t value, int64_t spin_ns) {
    if (gp_spin_while(words, n, value, spin_ns)) return;
    gp_team_add(&gate->sleepers, 1);
    pthread_mutex_lock(&gate->mutex);
    while (gp_team_sum(words, n) == value) pthread_cond_wait(&gate->changed, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
    gp_team_add(&gate->sleepers, -1);
}

/* ---- threads */

/* Wake the threads of the region that sleep; every thread that arrives helps, so many are woken in logarithmic time. */
static inline void gp_team_wake(gp_team *team) {
    int64_t i;
    while ((i = gp_team_add(&team->next_wake, 1)) < team->nactive) gp_gate_notify(&team->threads[i].gate);
}

static inline void gp_thread_name(int64_t number) {
#if defined(__linux__) && defined(_GNU_SOURCE)
    char name[16];
    snprintf(name, sizeof name, "graphpool/%d", (int)(number % 10000));
    pthread_setname_np(pthread_self(), name);
#else
    (void)number;
#endif
}

static inline void *gp_thread_main(void *argument) {
    gp_team_thread *me = argument;
    gp_team *team = me->team;
    gp_thread_name(me->number);
    for (;;) {
        gp_wait_while(&me->gate, &me->order, 1, GP_IDLE, team->spin_ns);
        if (gp_team_load(&me->order) == GP_STOPPED) return NULL;
        if (!gp_team_cas(&me->order, GP_OFFERED, GP_RUNNING)) continue;  /* called off */
        gp_team_wake(team);
        team->fn(team->context, me->number);
        gp_team_store(&me->order, GP_IDLE);
        gp_gate_notify(&team->turn);
    }
}

/* Start threads until `nthreads` threads exist; returns how many do, fewer when the system refuses threads. The threads
 * take no signals: those are for the interpreter's. */
static inline int64_t gp_team_start(gp_team *team, int64_t nthreads) {
    sigset_t all, before;
    if (nthreads > team->nthreads) nthreads = team->nthreads;
    if (team->nstarted >= nthreads) return nthreads;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team->nstarted < nthreads) {
        gp_team_thread *thread = &team->threads[team->nstarted];
        if (pthread_create(&thread->handle, NULL, gp_thread_main, thread) != 0) break;
        team->nstarted++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return nthreads < team->nstarted ? nthreads : team->nstarted;
}

/* ---- teams; gp_team_start, _stop and _run are for the owner */

static inline int gp_team_try_own(gp_team *team) { return pthread_mutex_trylock(&team->owner) == 0; }
static inline void gp_team_own(gp_team *team) { pthread_mutex_lock(&team->owner); }
static inline void gp_team_disown(gp_team *team) { pthread_mutex_unlock(&team->owner); }

static inline size_t gp_team_nbytes(int64_t nthreads) { return sizeof(gp_team) + (size_t)nthreads * sizeof(gp_team_thread); }

/* A team without threads: at birth, and in a forked child, where the threads are gone, whatever they were doing. */
static inline void gp_team_reset(gp_team *team) {
    pthread_mutex_init(&team->owner, NULL);
    gp_gate_init(&team->turn);
    team->nstarted = 1;
    for (int64_t i = 0; i < team->nthreads; i++) {
        team->threads[i].order = GP_IDLE;
        team->threads[i].number = i;
        team->threads[i].team = team;
        gp_gate_init(&team->threads[i].gate);
    }
}

static inline void gp_team_init(gp_team *team, int64_t nthreads, int64_t spin_ns) {
    team->nthreads = nthreads;
    team->spin_ns = spin_ns;
    gp_team_reset(team);
}

/* End the threads; the team can be started again. */
static inline void gp_team_stop(gp_team *team) {
    for (int64_t i = 1; i < team->nstarted; i++) {
        gp_team_store(&team->threads[i].order, GP_STOPPED);
        gp_gate_notify(&team->threads[i].gate);
    }
    for (int64_t i = 1; i < team->nstarted; i++) {
        pthread_join(team->threads[i].handle, NULL);
        team->threads[i].order = GP_IDLE;
    }
    team->nstarted = 1;
}

static inline void gp_team_destroy(gp_team *team) {
    for (int64_t i = 0; i < team->nthreads; i++) gp_gate_destroy(&team->threads[i].gate);
    gp_gate_destroy(&team->turn);
    pthread_mutex_destroy(&team->owner);
}

/* Run a region on the threads 0 .. nthreads - 1, which gp_team_start has started. */
static inline void gp_team_run(gp_team *team, int64_t nthreads, gp_region_fn fn, void *context) {
    team->fn = fn;
    team->context = context;
    team->nactive = nthreads;
    team->next_wake = 0;
    for (int64_t i = 1; i < nthreads; i++) gp_team_store(&team->threads[i].order, GP_OFFERED);
    gp_team_wake(team);
    fn(context, 0);
    for (int64_t i = 1; i < nthreads; i++)
        if (!gp_team_cas(&team->threads[i].order, GP_OFFERED, GP_IDLE))
            gp_wait_while(&team->turn, &team->threads[i].order, 1, GP_RUNNING, team->spin_ns);
}

/* Wait within a region until the sum of `n` words, which threads change and then call gp_team_announce, is not `value`. */
static inline void gp_team_await(gp_team *team, int64_t *words, int64_t n, int64_t value) {
    gp_wait_while(&team->turn, words, n, value, team->spin_ns);
}

static inline void gp_team_announce(gp_team *team) { gp_gate_notify(&team->turn); }

#endif
