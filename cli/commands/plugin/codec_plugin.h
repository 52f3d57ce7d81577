#ifndef EPS_CLI_COMMANDS_PLUGIN_CODEC_PLUGIN_H_
#define EPS_CLI_COMMANDS_PLUGIN_CODEC_PLUGIN_H_

// `eps codec {new,show,check}` begins, describes and checks a plug-in codec
// (docs/guides/write_a_codec.md). Needs no servers and no model. None of them runs code of the
// plug-in in this process.

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "compression/plugin/check/codec_check.h"

namespace eps {

// Writes a codec that works as it is into the folder `out`: NAME.c, eps_codec.h, Makefile and
// README.md. Errors as WriteNewPlugin (plugin_command.h).
absl::Status WriteNewCodec(const std::string& name, const std::string& out);

// Return what a codec says of itself, and what checks have found: as lines of text, or as a JSON
// object.
std::string CodecDescriptionText(const CodecReport& report);
std::string CodecCheckText(const CodecReport& report);
std::string CodecCheckJson(const CodecReport& report);

// The subcommands new, show and check, and their options.
class CodecPluginCommands {
 public:
  // Adds them to `eps codec`, which must outlive this object.
  explicit CodecPluginCommands(CLI::App* app);
  CodecPluginCommands(const CodecPluginCommands&) = delete;
  CodecPluginCommands& operator=(const CodecPluginCommands&) = delete;

  // Whether the arguments name one of them.
  bool parsed() const { return new_->parsed() || show_->parsed() || check_->parsed(); }
  // Runs it. InvalidArgument for objects that are no codec; a status with exit code kDifferent if a
  // check fails; other errors are those of WriteNewCodec and of the files.
  absl::Status Run() const;

 private:
  CLI::App* const new_;
  CLI::App* const show_;
  CLI::App* const check_;
  std::string name_;
  std::string out_;
  std::string file_;
  bool json_ = false;
  double deadline_ = 60;
};

}  // namespace eps

#endif  // EPS_CLI_COMMANDS_PLUGIN_CODEC_PLUGIN_H_
