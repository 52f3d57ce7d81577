#ifndef EPS_CLI_MEASURE_BENCH_DEPTH_H_
#define EPS_CLI_MEASURE_BENCH_DEPTH_H_

// `eps bench depth` checks that the device's memory does not grow with the depth of the model. It
// trains GPT-2s of growing depth for a few steps on real servers and a real worker. The device's
// memory must be constant, the stash must be as predicted, and the servers' memory must be the
// job's state plus a bounded rest.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job/job_spec.h"
#include "eps/v1/control.pb.h"

namespace eps {

// The predicted bytes of a depth.
struct DepthBounds {
  uint64_t stash = 0;   // stage inputs of all micro-batches, kept from forward to backward
  uint64_t state = 0;   // 12 bytes per parameter with AdamW, over all servers
  uint64_t server = 0;  // the limit of state and contributions, over all servers
};
// REQUIRES an eager gpt2 job whose parts are all on one worker.
DepthBounds BoundsOf(const JobSpec& spec);

// The worker's report of its last step.
struct WorkerReport {
  uint64_t steps = 0;
  uint64_t device_peak = 0;
  uint64_t stash_peak = 0;
  double seconds = 0;  // median over the steps
};
// Reads the lines of `eps-worker --report`. InvalidArgument names the malformed line.
absl::StatusOr<WorkerReport> ParseWorkerReport(absl::string_view lines);

// The measurement of one depth. Server figures are sums over the servers.
struct DepthRun {
  int layers = 0;
  uint64_t parameters = 0;
  WorkerReport worker;
  DepthBounds bounds;
  uint64_t state_peak = 0;         // by the servers' accounts
  uint64_t contribution_peak = 0;  // by the servers' accounts
  uint64_t worker_rss = 0;         // peak resident bytes, as the kernel counts; 0 if unknown
  uint64_t server_rss = 0;
};
// Adds the memory accounts in one server's status to `run`.
void AddServerAccounts(const v1::StatusReply& status, DepthRun* run);

// One check and its outcome.
struct DepthVerdict {
  std::string name;  // stable, for --json
  bool ok = false;
  std::string text;  // "device flat within 1 %: ok (…)"
};
// REQUIRES at least one run.
std::vector<DepthVerdict> JudgeDepth(const std::vector<DepthRun>& runs);

std::string DepthTable(const std::vector<DepthRun>& runs);
std::string DepthJson(const std::vector<DepthRun>& runs);

// `arguments` are those after "bench depth": --layers=8,16,32,64 --width=128 --json, and any
// configuration key. Prints one line after each depth and then the verdicts. If a check fails, the
// status carries ExitCode::kDifferent and no text.
absl::Status RunBenchDepth(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_BENCH_DEPTH_H_
