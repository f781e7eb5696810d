/* Three threads own one team in turn and share out steps of tasks on it, under ThreadSanitizer. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/gp_team.h"

enum { THREADS = 4, MAX_TASKS = 64, REGIONS = 20000, TASK_BITS = 40 };

typedef struct {
    gp_team *team;
    int64_t place, done, ntasks, nsteps;
    int64_t *counts;    /* tasks add to plain memory: what two threads touch without order is a race */
} region;

static void run_thread(void *context, int64_t thread) {
    region *r = context;
    (void)thread;
    for (;;) {
        int64_t place = gp_team_load(&r->place), step = place >> TASK_BITS;
        int64_t begin = place & (((int64_t)1 << TASK_BITS) - 1), n = r->ntasks - begin;
        if (step == r->nsteps) return;
        if (n == 0) {
            gp_team_await(r->team, &r->place, 1, place);
            continue;
        }
        n = n > 4 ? n / 4 : 1;
        if (!gp_team_cas(&r->place, place, place + n)) continue;
        for (int64_t i = begin; i < begin + n; i++) r->counts[(i + step) % r->ntasks]++;
        if (gp_team_add(&r->done, n) == r->ntasks) {
            r->done = 0;
            gp_team_store(&r->place, (step + 1) << TASK_BITS);
            gp_team_announce(r->team);
        }
    }
}

static void *use(void *argument) {
    gp_team *team = argument;
    int64_t counts[MAX_TASKS];
    for (int i = 0; i < REGIONS; i++) {
        region r = {.team = team, .ntasks = 1 + i % MAX_TASKS, .nsteps = 1 + i % 5, .counts = counts};
        if (!gp_team_try_own(team)) {
            sched_yield();
            continue;
        }
        memset(counts, 0, sizeof counts);
        gp_team_run(team, gp_team_start(team, 2 + i % (THREADS - 1)), run_thread, &r);
        for (int64_t k = 0; k < r.ntasks; k++)
            if (counts[k] != r.nsteps) abort();
        if (i % 1000 == 0) gp_team_stop(team);
        gp_team_disown(team);
        if (i % 100 == 0) usleep(200);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[3];
    gp_team *team = aligned_alloc(GP_TEAM_ALIGNMENT, gp_team_nbytes(THREADS));
    gp_team_init(team, THREADS, 3000);
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, use, team);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    gp_team_own(team);
    gp_team_stop(team);
    gp_team_disown(team);
    gp_team_destroy(team);
    free(team);
    return 0;
}
