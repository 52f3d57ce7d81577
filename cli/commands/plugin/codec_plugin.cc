#include "cli/commands/plugin/codec_plugin.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/commands/plugin/plugin_command.h"
#include "compression/plugin/codec_plugin.h"
#include "compression/plugin/template/codec_c.h"
#include "compression/plugin/template/eps_codec_h.h"
#include "compression/plugin/template/makefile.h"
#include "compression/plugin/template/readme.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

// The name of the template, which a new codec replaces with its own.
constexpr char kTemplateName[] = "sign";
constexpr char kCommand[] = "codec";

double BitsPerElement(const CodecSpeed& speed) {
  return 8 * static_cast<double>(speed.encoded_bytes) / static_cast<double>(speed.elements);
}

}  // namespace

absl::Status WriteNewCodec(const std::string& name, const std::string& out) {
  return WriteNewPlugin(name, out, kTemplateName,
                        {{name + ".c", kCodecC},
                         {"Makefile", kCodecMakefile},
                         {"README.md", kCodecReadme},
                         {"eps_codec.h", kEpsCodecH}});
}

std::string CodecDescriptionText(const CodecReport& report) {
  return absl::StrFormat(
      "name: %s\nsha256: %s\nsize: at most %d bytes, and %d for each 1024 elements (%g bits for an "
      "element)\nerror feedback: %s\nin a job: %s\n",
      report.name, report.sha256, report.head_bytes, report.bytes_per_1024,
      8 * static_cast<double>(report.bytes_per_1024) / 1024, report.error_feedback ? "yes" : "no",
      CodecNameOf(report));
}

std::string CodecCheckText(const CodecReport& report) {
  std::string text = absl::StrCat("codec ", report.name, ", sha256 ", report.sha256, "\n",
                                  ChecksText(report.checks));
  if (report.speed.has_value()) {
    const CodecSpeed& s = *report.speed;
    absl::StrAppendFormat(&text,
                          "speed       of elements on one thread, %.4g bits for each:\n"
                          "            encode %s\n"
                          "            decode %s\n"
                          "            a loop that only copies them: %s\n",
                          BitsPerElement(s), RateText(s.encode), RateText(s.decode),
                          RateText(s.copy));
  }
  absl::StrAppend(&text, "ok: ", report.ok() ? "true" : "false", "\n");
  return text;
}

std::string CodecCheckJson(const CodecReport& report) {
  nlohmann::ordered_json object;
  object["name"] = report.name;
  object["sha256"] = report.sha256;
  object["head_bytes"] = report.head_bytes;
  object["bytes_per_1024"] = report.bytes_per_1024;
  object["error_feedback"] = report.error_feedback;
  object["codec"] = CodecNameOf(report);
  object["checks"] = ChecksJson(report.checks);
  if (report.speed.has_value()) {
    const CodecSpeed& s = *report.speed;
    object["speed"] = {{"elements", s.elements},
                       {"encoded_bytes", s.encoded_bytes},
                       {"encode_gb_per_s", RateJson(s.encode)},
                       {"decode_gb_per_s", RateJson(s.decode)},
                       {"copy_gb_per_s", RateJson(s.copy)}};
  }
  object["ok"] = report.ok();
  return object.dump(2) + "\n";
}

CodecPluginCommands::CodecPluginCommands(CLI::App* app)
    : new_(app->add_subcommand("new", "write a codec of your own that works as it is")),
      show_(app->add_subcommand("show", "what a codec of your own says of itself")),
      check_(app->add_subcommand("check", "whether a codec of your own keeps its contract")) {
  new_->add_option("NAME", name_, "its name: small letters, digits and _")->required();
  new_->add_option("--out", out_, "a new or empty folder")->required();
  show_->add_option("FILE", file_, "the shared object")->required();
  check_->add_option("FILE", file_, "the shared object")->required();
  check_->add_flag("--json", json_, "as a JSON object");
  check_->add_option("--deadline", deadline_, "seconds until the checks are ended (default 60)")
      ->check(CLI::Range(0.1, 86400.0));
}

absl::Status CodecPluginCommands::Run() const {
  const PluginCheckOptions options = ChildOfCommand(kCommand, deadline_);
  if (check_->parsed()) {
    EPS_ASSIGN_OR_RETURN(const CodecReport report, CheckCodec(file_, options));
    std::fputs((json_ ? CodecCheckJson(report) : CodecCheckText(report)).c_str(), stdout);
    return StatusOfChecks(file_, absl::StrCat("codec ", report.name), report.checks);
  }
  if (show_->parsed()) {
    EPS_ASSIGN_OR_RETURN(const CodecReport report, DescribeCodec(file_, options));
    std::fputs(CodecDescriptionText(report).c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_RETURN_IF_ERROR(WriteNewCodec(name_, out_));
  std::printf("wrote %s.c, eps_codec.h, Makefile and README.md to %s\n", name_.c_str(),
              out_.c_str());
  return absl::OkStatus();
}

}  // namespace eps
