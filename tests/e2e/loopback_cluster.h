#ifndef EPS_TESTS_E2E_LOOPBACK_CLUSTER_H_
#define EPS_TESTS_E2E_LOOPBACK_CLUSTER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "worker/relay/testing/plain_loop.h"

namespace eps {

// Real servers in this process that hold one job. A failure here fails the test.
// Thread-compatible.
class LoopbackCluster {
 public:
  static constexpr std::chrono::seconds kTimeout{300};

  // The result of a training run.
  struct Outcome {
    Tensors weights;
    std::vector<double> losses;  // by step
    std::vector<uint64_t> tokens;
    std::vector<uint64_t> skipped;  // skipped steps
    absl::Status failure;           // the job's error
  };

  // Shares memory of `shm_bytes` for weights, and for each worker's gradients; 0 shares none.
  LoopbackCluster(const JobSpec& spec, int servers, uint64_t shm_bytes = 0);

  ~LoopbackCluster();

  // Fills the weights with their initial values.
  void Initialize();
  // Returns the weights after the last step and the step records of the lead.
  Outcome Result();
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  struct Processes;  // in the .cc file, because LibTorch's headers exclude those of protobuf

  bool ClipsStep(uint64_t step) const;

  const JobSpec spec_;
  const std::unique_ptr<Processes> processes_;
  std::vector<std::string> addresses_;
};

}  // namespace eps

#endif  // EPS_TESTS_E2E_LOOPBACK_CLUSTER_H_
