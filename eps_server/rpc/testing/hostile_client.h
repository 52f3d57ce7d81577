#ifndef EPS_SERVER_RPC_TESTING_HOSTILE_CLIENT_H_
#define EPS_SERVER_RPC_TESTING_HOSTILE_CLIENT_H_

// Requests that a stranger can send to a server, and an honest worker whose steps they could delay.
// For tests only.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "eps_server/rpc/testing/test_client.h"

namespace eps {

// Returns the gzip file of `mebibytes` MiB of zeros: about 1 KiB for each.
std::string GzipOfZeros(int mebibytes);

// Sends `message` as the request of a unary call, declared as compressed by gzip, and returns the
// status of the call. `method` is "/eps.v1.Control/Hello", for example.
absl::Status SendGzip(const std::string& address, const std::string& method,
                      const std::string& message);

// A worker that computes all parts of a job on one server: its gradients are constants. Creates and
// initializes the job, or ends the test process. Thread-compatible.
class HonestWorker {
 public:
  HonestWorker(const std::string& address, const JobSpec& spec);

  // Runs one step to its end: begins it, pushes all gradients, and waits for every acknowledgement
  // and for the next step to open. Returns the first error; nothing is repeated, so that every
  // error is a step of delay.
  absl::Status Step();
  uint64_t steps_done() const { return steps_done_; }

 private:
  absl::Status PushAll();

  const JobSpec spec_;
  const ChunkMap chunks_;
  TestClient client_;
  uint64_t steps_done_ = 0;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_HOSTILE_CLIENT_H_
