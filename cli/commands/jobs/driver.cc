// `eps driver`: runs the jobs of the board, one after the other.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "cli/commands/jobs/board.h"
#include "cli/launch/security/security_flags.h"
#include "cli/launch/service/service_driver.h"

namespace eps {

absl::Status RunDriver(const std::vector<std::string>& arguments) {
  CLI::App app{"Runs the jobs of the board one after the other, each in a folder of its own.",
               "eps driver"};
  DriverOptions options;
  BoardOptions board;
  AddBoardOptions(&app, &board);
  app.add_option("--out", options.out, "folder in which each job gets one")->required();
  app.add_option("--data-root", options.data_roots,
                 "folder below which jobs may read data and models (repeatable; default: the "
                 "working folder)");
  app.add_option("--on-saved", options.on_saved,
                 "command that runs after each checkpoint (checkpoint.on_saved)");
  app.add_option("--optimizer.plugin", options.updater_plugin,
                 "file of the updater of jobs with optimizer.name=plugin; the servers need the "
                 "same one")
      ->envname("EPS_OPTIMIZER__PLUGIN");
  app.add_option("--quantization.plugin", options.codec_plugin,
                 "file of the codec of jobs with quantization.gradients=plugin; servers and "
                 "workers need the same one")
      ->envname("EPS_QUANTIZATION__PLUGIN");
  app.add_flag("--once", options.once, "end after one job, with its exit code");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(options.servers, ServersOfBoard(board.servers));
  EPS_RETURN_IF_ERROR(UseSecurity(board.security));
  options.security = board.security;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ServiceDriver> driver, ServiceDriver::Open(options));
  return driver->Run();
}

}  // namespace eps
