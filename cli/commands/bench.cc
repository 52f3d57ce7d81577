// `eps bench {depth,calibrate}`: measures this machine.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/launch/arguments.h"
#include "cli/measure/bench_depth.h"
#include "cli/measure/calibrate.h"

namespace eps {

absl::Status RunBench(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return absl::InvalidArgumentError("eps bench needs depth or calibrate");
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (arguments[0] == "depth") return RunBenchDepth(rest);
  if (arguments[0] == "calibrate") return RunBenchCalibrate(rest);
  if (arguments[0] == "--help" || arguments[0] == "-h") {
    std::fputs("usage: eps bench depth | calibrate (each has --help)\n", stdout);
    return absl::OkStatus();
  }
  return UnknownCommand(arguments[0], {"depth", "calibrate"});
}

}  // namespace eps
