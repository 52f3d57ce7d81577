#ifndef EPS_WORKER_OPTIONS_H_
#define EPS_WORKER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "worker/models/sampler.h"
#include "worker/relay/stage_program.h"

namespace eps {

// Where a server is looked for on a host that is named without a port.
inline constexpr int kDefaultServerPort = 50151;

struct WorkerOptions {
  Config config;
  std::vector<std::string> servers;  // host:port, from config.servers.addresses
  std::string report_path;           // --report: one JSON line per step; empty: none
  int local_rank = 0;                // which of the workers of this machine, by LOCAL_RANK
  int local_count = 1;               // of how many, by LOCAL_WORLD_SIZE
};

struct GenerateOptions {
  std::string model_dir;
  std::string prompt;  // bytes; used if prompt_ids is empty
  std::vector<int32_t> prompt_ids;
  uint32_t tokens = 200;
  SamplerOptions sampling;
  RuntimeOptions runtime;
};

// A block of GPT-2 to measure (worker/stage_speed.h).
struct CalibrateOptions {
  uint32_t width = 256;
  uint32_t heads = 8;
  uint32_t seq_len = 256;
  uint32_t samples = 2;  // of a micro-batch
  RuntimeOptions runtime;
};

struct ProgramOptions {
  enum class Command { kHelp, kVersion, kWorker, kGenerate, kCalibrate };
  Command command = Command::kHelp;
  std::string help;            // of kHelp
  WorkerOptions worker;        // of kWorker
  GenerateOptions generate;    // of kGenerate
  CalibrateOptions calibrate;  // of kCalibrate
};

// Reads the arguments of eps-worker without its name. The configuration is layered flags >
// `environment` > the file of --config > defaults. What torchrun and its like set stands below our
// own variables: RANK and WORLD_SIZE for worker.rank and worker.count, LOCAL_RANK and
// LOCAL_WORLD_SIZE for the place on this machine, and MASTER_ADDR, with kDefaultServerPort, for
// servers.addresses. MASTER_PORT is where torchrun's own store listens; it is checked, not used.
// InvalidArgument or NotFound say which argument, key, variable or file is wrong.
absl::StatusOr<ProgramOptions> ParseProgramOptions(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment);

}  // namespace eps

#endif  // EPS_WORKER_OPTIONS_H_
