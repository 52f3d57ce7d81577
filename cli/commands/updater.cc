#include "cli/commands/updater.h"

#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "cli/commands/plugin/plugin_command.h"
#include "cli/launch/planned_run.h"
#include "cli/launch/plugin/chosen_plugin.h"
#include "nlohmann/json.hpp"
#include "optimizer/plugin/check/check_child.h"
#include "optimizer/plugin/template/eps_updater_h.h"
#include "optimizer/plugin/template/makefile.h"
#include "optimizer/plugin/template/readme.h"
#include "optimizer/plugin/template/updater_c.h"
#include "planner/hardware.h"

namespace eps {
namespace {

// The name of the template, which a new updater replaces with its own.
constexpr char kTemplateName[] = "rmsprop";
constexpr char kCommand[] = "updater";

std::string FieldsText(const PluginReport& report) {
  return report.fields.empty() ? "none" : absl::StrJoin(report.fields, ", ");
}

// Returns how many times the bytes of the device's updater one thread has processed: the plug-in
// and the updater read the gradient, the weight and the fields.
double RatioTo(const DeviceUpdater& device, const PluginReport& report) {
  const PluginSpeed& speed = *report.speed;
  const double elements = speed.update.median * 1e9 / static_cast<double>(speed.bytes_per_element);
  return elements * 4 * static_cast<double>(2 + report.fields.size()) / device.bytes_per_second;
}

// Returns the updater of the storage devices of some machines; nothing if none are named.
absl::StatusOr<std::optional<DeviceUpdater>> FindDevice(const std::string& name) {
  if (name.empty()) return std::nullopt;
  EPS_ASSIGN_OR_RETURN(const planner::StorageDevices storage, ReadUpdatingStorage(name));
  return DeviceUpdater{name, storage.update.value()};
}

absl::Status RunCheck(const std::string& path, double deadline, const std::string& hardware,
                      bool json) {
  EPS_ASSIGN_OR_RETURN(const std::optional<DeviceUpdater> device, FindDevice(hardware));
  EPS_ASSIGN_OR_RETURN(const PluginReport report,
                       CheckPlugin(path, ChildOfCommand(kCommand, deadline)));
  std::fputs((json ? CheckJson(report, device) : CheckText(report, device)).c_str(), stdout);
  return StatusOfChecks(path, absl::StrCat("updater ", report.name), report.checks);
}

}  // namespace

absl::Status WriteNewUpdater(const std::string& name, const std::string& out) {
  return WriteNewPlugin(name, out, kTemplateName,
                        {{name + ".c", kUpdaterC},
                         {"Makefile", kUpdaterMakefile},
                         {"README.md", kUpdaterReadme},
                         {"eps_updater.h", kEpsUpdaterH}});
}

std::string DescriptionText(const PluginReport& report) {
  std::string text = absl::StrCat("name: ", report.name, "\nsha256: ", report.sha256,
                                  "\nstate fields: ", FieldsText(report),
                                  "\nstate: ", 4 * report.fields.size(), " bytes per element\n");
  for (const PluginParameter& p : report.parameters) {
    absl::StrAppendFormat(&text, "parameter %s: %g to %g, usually %g\n", p.name, p.least, p.most,
                          p.usual);
  }
  return text;
}

std::string CheckText(const PluginReport& report, const std::optional<DeviceUpdater>& device) {
  std::string text = absl::StrCat("updater ", report.name, ", sha256 ", report.sha256, "\n",
                                  ChecksText(report.checks));
  if (report.speed.has_value()) {
    const PluginSpeed& s = *report.speed;
    absl::StrAppendFormat(&text,
                          "speed       %.3g elements/s on one thread, %d bytes each: %s\n"
                          "            a loop that only moves these bytes: %s\n"
                          "            ratio %.2f (%.2f to %.2f)\n",
                          s.update.median * 1e9 / static_cast<double>(s.bytes_per_element),
                          s.bytes_per_element, RateText(s.update), RateText(s.plain),
                          s.ratio.median, s.ratio.least, s.ratio.most);
    if (device.has_value()) {
      absl::StrAppendFormat(
          &text, "            %.2f times the updater of %s, which reads %.2f GB/s\n",
          RatioTo(*device, report), device->hardware, device->bytes_per_second / 1e9);
    }
  }
  absl::StrAppend(&text, "ok: ", report.ok() ? "true" : "false", "\n");
  return text;
}

std::string CheckJson(const PluginReport& report, const std::optional<DeviceUpdater>& device) {
  nlohmann::ordered_json object;
  object["name"] = report.name;
  object["sha256"] = report.sha256;
  object["fields"] = report.fields;
  object["parameters"] = nlohmann::ordered_json::array();
  for (const PluginParameter& p : report.parameters) {
    object["parameters"].push_back(
        {{"name", p.name}, {"usual", p.usual}, {"least", p.least}, {"most", p.most}});
  }
  object["checks"] = ChecksJson(report.checks);
  if (report.speed.has_value()) {
    const PluginSpeed& s = *report.speed;
    object["speed"] = {{"elements", s.elements},
                       {"bytes_per_element", s.bytes_per_element},
                       {"update_gb_per_s", RateJson(s.update)},
                       {"plain_gb_per_s", RateJson(s.plain)},
                       {"ratio", RateJson(s.ratio)}};
    if (device.has_value()) {
      object["device"] = {{"hardware", device->hardware},
                          {"updater_gb_per_s", device->bytes_per_second / 1e9},
                          {"ratio", RatioTo(*device, report)}};
    }
  }
  object["ok"] = report.ok();
  return object.dump(2) + "\n";
}

absl::Status RunUpdater(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == kPluginChild) {
    RunPluginCheckChild({arguments.begin() + 1, arguments.end()});
  }
  CLI::App app{"Begins, describes and checks a plug-in updater; needs no server or worker.",
               "eps updater"};
  app.require_subcommand(1);
  std::string name, out, file;
  CLI::App* const fresh = app.add_subcommand("new", "write an updater that works as it is");
  fresh->add_option("NAME", name, "its name: small letters, digits and _")->required();
  fresh->add_option("--out", out, "a new or empty folder")->required();
  CLI::App* const show = app.add_subcommand("show", "what an updater says of itself");
  show->add_option("FILE", file, "the shared object")->required();
  CLI::App* const check = app.add_subcommand("check", "whether an updater keeps its contract");
  check->add_option("FILE", file, "the shared object")->required();
  bool json = false;
  check->add_flag("--json", json, "as a JSON object");
  std::string hardware;
  check->add_option("--hardware", hardware,
                    "compares its speed with the updater of these machines' devices");
  double deadline = 60;
  check->add_option("--deadline", deadline, "seconds until the checks are ended (default 60)")
      ->check(CLI::Range(0.1, 86400.0));
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  if (check->parsed()) return RunCheck(file, deadline, hardware, json);
  if (show->parsed()) {
    EPS_ASSIGN_OR_RETURN(const PluginReport report,
                         DescribePlugin(file, ChildOfCommand(kCommand, deadline)));
    std::fputs(DescriptionText(report).c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_RETURN_IF_ERROR(WriteNewUpdater(name, out));
  std::printf("wrote %s.c, eps_updater.h, Makefile and README.md to %s\n", name.c_str(),
              out.c_str());
  return absl::OkStatus();
}

}  // namespace eps
