#ifndef EPS_WORKER_OPTIONS_H_
#define EPS_WORKER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config.h"
#include "worker/models/sampler.h"
#include "worker/relay/stage_program.h"

namespace eps {

struct WorkerOptions {
  Config config;
  std::vector<std::string> servers;  // host:port, from config.servers.addresses
  std::string report_path;           // --report: one JSON line per step; empty: none
};

struct GenerateOptions {
  std::string model_dir;
  std::string prompt;  // bytes; used if prompt_ids is empty
  std::vector<int32_t> prompt_ids;
  uint32_t tokens = 200;
  SamplerOptions sampling;
  RuntimeOptions runtime;
};

struct ProgramOptions {
  enum class Command { kHelp, kVersion, kWorker, kGenerate };
  Command command = Command::kHelp;
  std::string help;          // of kHelp
  WorkerOptions worker;      // of kWorker
  GenerateOptions generate;  // of kGenerate
};

// Reads the arguments of eps-worker without its name. The configuration is layered flags >
// `environment` > the file of --config > defaults; RANK and WORLD_SIZE, as torchrun sets them,
// stand for worker.rank and worker.count below EPS_WORKER__RANK and EPS_WORKER__COUNT.
// InvalidArgument or NotFound say which argument, key or file is wrong.
absl::StatusOr<ProgramOptions> ParseProgramOptions(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment);

}  // namespace eps

#endif  // EPS_WORKER_OPTIONS_H_
