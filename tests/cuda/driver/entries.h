/* Declarations of all entry points, from the types of CUDA's own header: a wrong signature does not compile. */
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>

#define ENTRY(name, version) __typeof__(*(PFN_##name##_v##version)0) test_##name;
#define OTHER_ENTRY(name, version) __typeof__(*(PFN_##name##_v##version)0) test_##name##_v##version;
#include "entries.inc"
#undef ENTRY
#undef OTHER_ENTRY
