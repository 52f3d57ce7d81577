#ifndef EPS_BENCH_NEAR_NEAR_VARIANT_H_
#define EPS_BENCH_NEAR_NEAR_VARIANT_H_

#include <string>

#include "planner/papers/smart_infinity_model.h"

namespace eps {

// A way to update a state on storage devices. Plain value.
struct NearVariant {
  std::string name;
  bool host_updates = false;        // RAID0: the host reads, updates and writes
  bool host_is_papers = false;      // its software is as slow as the paper's
  bool hands_buffers_over = false;  // the paper's transfer handler
  int sets = 1;                     // chunks of a device that are updated at the same time
  bool gradients_in_memory = false;
  bool encodes_weights = false;    // bf16 comes up; otherwise FP32 comes from the medium
  bool eager = false;              // updates begin during backward
  std::string gradients = "fp32";  // the codec; a sparse one is decompressed in the device
  double gradient_bytes = 4;       // per parameter

  bool sparse() const { return gradient_bytes < 1; }
};

// The machine whose storage the devices emulate, and the job: GPT-2 4.0B of Smart-Infinity,
// section 7. Plain value.
struct NearJob {
  planner::smart_infinity::Machine machine = planner::smart_infinity::PaperMachine();
  planner::smart_infinity::Gpu gpu = planner::smart_infinity::kA5000;
  int devices = 1;
  // The state is smaller and all rates are lower, so that this machine keeps up: a step takes
  // `scale` * parameters / `full_parameters` of its time.
  double scale = 64;
  double full_parameters = 4.0e9;
};

// The seconds of a step's phases; those of an eager update that backward hides are not in `update`.
struct NearStep {
  double forward = 0;
  double backward = 0;
  double update = 0;
  double total() const { return forward + backward + update; }
};

}  // namespace eps

#endif  // EPS_BENCH_NEAR_NEAR_VARIANT_H_
