#ifndef EPS_BASE_TESTING_TEST_SPECS_H_
#define EPS_BASE_TESTING_TEST_SPECS_H_

// Small job specs for tests.

#include <string>

#include "base/job/job_spec.h"

namespace eps {

// Valid specs; every call returns the same one. A test changes the settings that it is about.
JobSpec TinyGpt2Spec();       // 2 layers of width 64, tied, 2 parts of 2 micro-batches
JobSpec TinySyntheticSpec();  // 4 layers of width 64, tied
// 3 layers of 200 x 200 in panels of 96 rows: ragged tiles, rank-1 chunks, a tied tensor with two
// uses.
JobSpec RaggedSpec();

// Freezes the tensors whose names contain `part`, or all others. REQUIRES that one stays.
void Freeze(const std::string& part, bool others, JobSpec* spec);

}  // namespace eps

#endif  // EPS_BASE_TESTING_TEST_SPECS_H_
