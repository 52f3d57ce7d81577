#ifndef EPS_BENCH_NEAR_NEAR_VARIANT_H_
#define EPS_BENCH_NEAR_NEAR_VARIANT_H_

#include <optional>
#include <string>
#include <vector>

#include "base/job/optimizers.h"
#include "planner/papers/smart_infinity_model.h"

namespace eps {

// An update rule, and what the paper calls it. Plain value.
struct NearRule {
  OptimizerName name;
  planner::smart_infinity::Optimizer paper;
  double momentum = 0;
};

// A way to update a state on storage devices. Plain value.
struct NearVariant {
  std::string name;
  NearRule rule{OptimizerName::kAdamW, planner::smart_infinity::kAdam};
  bool host_updates = false;        // RAID0: the host reads, updates and writes
  bool host_is_papers = false;      // its software is as slow as the paper's
  bool hands_buffers_over = false;  // the paper's transfer handler
  int sets = 1;                     // chunks of a device that are updated at the same time
  bool gradients_in_memory = false;
  bool encodes_weights = false;    // bf16 comes up; otherwise FP32 comes from the medium
  bool eager = false;              // updates begin during backward
  std::string gradients = "fp32";  // the codec; a sparse one is decompressed in the device
  double gradient_bytes = 4;       // per parameter
  std::optional<planner::smart_infinity::Variant> paper;
  bool has_devices = true;  // otherwise the state lies on this machine's disk: the NVMe backend

  bool sparse() const { return gradient_bytes < 4; }
  int arrays() const { return 1 + rule.paper.moments; }  // of weights and moments
};

// The paper's baseline, with its host or with one that only the link limits.
NearVariant Raid0(const NearRule& rule, bool host_is_papers);
// The paper's SU, and SU+O.
NearVariant Naive(const NearRule& rule);
NearVariant Handover(const NearRule& rule);
// The paper's SU+O+C: the volume of the gradient's pairs of an index and a value is c of that of
// the gradient.
NearVariant TopK(const NearRule& rule, double c);
// Ours, in mode sealed or eager.
NearVariant Ours(const NearRule& rule, bool eager);

// The machine whose storage the devices emulate, and the job: GPT-2 4.0B of Smart-Infinity,
// section 7. Plain value.
struct NearJob {
  planner::smart_infinity::Machine machine = planner::smart_infinity::PaperMachine();
  planner::smart_infinity::Gpu gpu = planner::smart_infinity::kA5000;
  int devices = 1;
  // With the GPUs on the devices' side of the host link (section 8-A): weights of the backward pass
  // and gradients share it. Otherwise the GPU has a link of its own.
  bool gpus_share_link = false;
  // Otherwise devices and links are as fast as this machine, and no GPU computes.
  bool paced = true;
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
  // For how long the busiest medium, or the host link, carried bytes at its rate. Of ours alone.
  double busiest = 0;
  double total() const { return forward + backward + update; }
};

}  // namespace eps

#endif  // EPS_BENCH_NEAR_NEAR_VARIANT_H_
