#ifndef EPS_CLI_MEASURE_BENCH_DEPTH_H_
#define EPS_CLI_MEASURE_BENCH_DEPTH_H_

// `eps bench depth`: the project's first promise, measured. A GPT-2 of growing depth is trained for
// a few steps through real servers and a real worker; the device's memory must not grow with the
// layers, the stash must be what arithmetic says, the servers' memory the job's state and a
// bounded rest.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "eps/v1/control.pb.h"
#include "base/job/job_spec.h"

namespace eps {

// What arithmetic says about a depth, in bytes.
struct DepthBounds {
  uint64_t stash = 0;   // stage inputs of all micro-batches, kept from forward to backward
  uint64_t state = 0;   // 12 bytes per parameter with AdamW, over all servers
  uint64_t server = 0;  // the most that state and contributions may take, over all servers
};
// REQUIRES an eager gpt2 job whose parts are all on one worker.
DepthBounds BoundsOf(const JobSpec& spec);

// What the worker's own report says at its last step.
struct WorkerReport {
  uint64_t steps = 0;
  uint64_t device_peak = 0;
  uint64_t stash_peak = 0;
  double seconds = 0;  // median over the steps
};
// Reads the lines of `eps-worker --report`. InvalidArgument names the line that is wrong.
absl::StatusOr<WorkerReport> ParseWorkerReport(absl::string_view lines);

// One depth as it was measured. Server figures are sums over the servers.
struct DepthRun {
  int layers = 0;
  uint64_t parameters = 0;
  WorkerReport worker;
  DepthBounds bounds;
  uint64_t state_peak = 0;         // by the servers' accounts
  uint64_t contribution_peak = 0;  // by the servers' accounts
  uint64_t worker_rss = 0;         // peak resident bytes, as the kernel counts; 0: not seen
  uint64_t server_rss = 0;
};
// Adds what one server's status says about its accounts.
void AddServerAccounts(const v1::StatusReply& status, DepthRun* run);

// The promises, each with what was found.
struct DepthVerdict {
  std::string name;  // stable, for --json
  bool ok = false;
  std::string text;  // "device flat within 1 %: ok (…)"
};
// REQUIRES at least one run.
std::vector<DepthVerdict> JudgeDepth(const std::vector<DepthRun>& runs);

std::string DepthTable(const std::vector<DepthRun>& runs);
std::string DepthJson(const std::vector<DepthRun>& runs);

// `arguments` come after "bench depth": --layers=8,16,32,64 --width=128 --json, and any
// configuration key. Prints one line per depth as it ends and then the verdicts. A status with
// ExitCode::kDifferent and no text: measured, and a promise is broken.
absl::Status RunBenchDepth(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_CLI_MEASURE_BENCH_DEPTH_H_
