#ifndef EPS_SERVER_RPC_TESTING_HONEST_WORKER_H_
#define EPS_SERVER_RPC_TESTING_HONEST_WORKER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "eps_server/rpc/testing/test_client.h"

namespace eps {

// A worker that computes all parts of a job: its gradients are constants. For tests only.
// Thread-compatible.
class HonestWorker {
 public:
  // Creates the job on `servers`, in shard order, and initializes it, or ends the test process. The
  // servers know each other as `named`, if that is not empty.
  HonestWorker(const std::vector<std::string>& servers, const JobSpec& spec,
               std::vector<std::string> named = {});

  // Runs one step to its end: begins it, pushes all gradients, and waits for every acknowledgement
  // and for the next step to open. Returns the first error; nothing is repeated, so that every
  // error is a step of delay. Waits up to `patience` for the acknowledgements,
  // and again for the next step.
  absl::Status Step(std::chrono::milliseconds patience = kCallTimeout);
  uint64_t steps_done() const { return steps_done_; }
  TestClient& client(size_t shard) { return *clients_[shard]; }

 private:
  absl::Status BeginAll(uint64_t step);
  absl::Status PushAll(size_t shard, std::chrono::milliseconds patience);

  const JobSpec spec_;
  const ChunkMap chunks_;
  const std::vector<ShardId> placement_;  // by chunk
  std::vector<std::unique_ptr<TestClient>> clients_;
  uint64_t steps_done_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_HONEST_WORKER_H_
