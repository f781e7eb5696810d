/* What tests ask of the driver, through ctypes. Settings in the environment: TEST_DRIVER_SEED,
 * TEST_DRIVER_DEVICES (0 or 1), TEST_DRIVER_ARCHITECTURE (90 for sm_90), TEST_DRIVER_VERSION (13000 for
 * CUDA 13.0), TEST_DRIVER_MEMORY (bytes), TEST_DRIVER_POOLS (0: the device has no memory pools). */
#pragma once
#include <stddef.h>

#define CONTROL __attribute__((visibility("default")))

/* Findings since the last call, one a line; returns how many. What was not asked for is printed at exit. */
CONTROL int test_driver_reports(char *text, size_t room);
/* What is alive now, one kind or allocation a line; returns how many. */
CONTROL int test_driver_live(char *text, size_t room);
/* Choose another order of work. */
CONTROL void test_driver_seed(unsigned long seed);
/* Calls of entry points so far. */
CONTROL long test_driver_calls(void);
/* How often so much work was pending that the driver ran it and forgot what was before what. */
CONTROL long test_driver_overflows(void);
/* Twins of kernels, from a shared library; returns how many, or -1 with a report. */
CONTROL int test_driver_load_twins(const char *path);
