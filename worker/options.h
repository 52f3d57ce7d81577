#ifndef EPS_WORKER_OPTIONS_H_
#define EPS_WORKER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config/config.h"
#include "worker/models/generate/sampler.h"
#include "worker/relay/stage_program.h"

namespace eps {

// The port of servers whose address has no port.
inline constexpr int kDefaultServerPort = 50151;

// The settings of `eps-worker worker`.
struct WorkerOptions {
  Config config;
  std::vector<std::string> servers;  // host:port, from config.servers.addresses
  std::string report_path;           // --report: one JSON line per step; empty disables it
  int local_rank = 0;                // number among the workers of this machine (LOCAL_RANK)
  int local_count = 1;               // number of workers of this machine (LOCAL_WORLD_SIZE)
};

// The prompt and the settings of `eps-worker generate`.
struct GenerateOptions {
  std::string model_dir;
  std::string prompt;  // bytes; used if prompt_ids is empty
  bool chat = false;   // the prompt is a message to the assistant
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
  uint32_t samples = 2;  // per micro-batch
  RuntimeOptions runtime;
};

// A training step of a GPT-2 to measure (worker/measure/step_speed.h).
struct StepOptions {
  uint32_t layers = 12;
  uint32_t width = 768;
  uint32_t heads = 12;
  uint32_t vocab = 50257;
  uint32_t seq_len = 1024;
  uint32_t samples = 8;  // per micro-batch
  uint32_t micro_batches = 2;
  uint32_t steps = 5;  // to time
  std::string precision = "fp32";
  std::string gradient_sum = "tree";
  std::string trace;  // a file; empty: none
  RuntimeOptions runtime;
};

// The command and the options that belong to it.
struct ProgramOptions {
  enum class Command { kHelp, kVersion, kWorker, kGenerate, kCalibrate, kStep };
  Command command = Command::kHelp;
  std::string help;            // for kHelp
  WorkerOptions worker;        // for kWorker
  GenerateOptions generate;    // for kGenerate
  CalibrateOptions calibrate;  // for kCalibrate
  StepOptions step;            // for kStep
};

// Parses the arguments of eps-worker, without its name. Flags override `environment`, which
// overrides the file of --config, which overrides defaults. Variables of torchrun and similar
// launchers yield to our own: RANK and WORLD_SIZE set worker.rank and worker.count, LOCAL_RANK and
// LOCAL_WORLD_SIZE the place on this machine, and MASTER_ADDR, with kDefaultServerPort,
// servers.addresses. MASTER_PORT belongs to torchrun's own store; it is checked but not used.
// Returns InvalidArgument or NotFound with the argument, key, variable or file that is wrong.
absl::StatusOr<ProgramOptions> ParseProgramOptions(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment);

}  // namespace eps

#endif  // EPS_WORKER_OPTIONS_H_
