// `eps bench {depth,calibrate,gpu}`: measures this machine.

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "cli/measure/bench_depth.h"
#include "cli/measure/bench_gpu.h"
#include "cli/measure/calibrate.h"

namespace eps {

absl::Status RunBench(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
    if (arguments[0] == "depth") return RunBenchDepth(rest);
    if (arguments[0] == "calibrate") return RunBenchCalibrate(rest);
    if (arguments[0] == "gpu") return RunBenchGpu(rest);
  }
  CLI::App app{"Measures this machine.", "eps bench"};
  app.add_subcommand("depth", "device memory against depth (eps bench depth --help)");
  app.add_subcommand("calibrate", "writes a description of this machine for eps plan");
  app.add_subcommand("gpu", "overlap, memory and MFU of this machine's device");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  std::fputs(help.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace eps
