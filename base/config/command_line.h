#ifndef EPS_BASE_CONFIG_COMMAND_LINE_H_
#define EPS_BASE_CONFIG_COMMAND_LINE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace eps {

enum class Command {
  kHelp,  // `text` is to be printed
  kTrain,
  kServe,
  kPlan,  // these read their own arguments, which are `passed_on`
  kSimulate,
  kWorker,
  kVerify,
  kGenerate,
  kCheckpoint,
  kState,
  kBackup,
  kRestore,
  kCodec,
  kStatus,
  kDoctor,
  kConfigPrint,
  kConfigReference,
  kConfigImportDeepSpeed,  // `passed_on` is the file
};

// What the user typed, with short forms already turned into configuration keys. No key or value
// is checked here: Config does that.
struct CommandLine {
  Command command = Command::kHelp;
  std::string text;
  std::string config_file;                                    // --config
  std::vector<std::pair<std::string, std::string>> settings;  // key and value, in the order given
  std::vector<std::string> passed_on;
  bool json = false;
};

// Reads the arguments of the program without its name. InvalidArgument for an unknown command or
// option, with the nearest known one.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_COMMAND_LINE_H_
