#include "cli/driver/status_text.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "wire/job_state_names.h"

namespace eps {

std::string StageTimesText(const v1::StatusReply& status) {
  if (status.stage_times().empty()) return "";
  std::string text = "  per visit, ms:  quantize     wire   worker    slack\n";
  for (const v1::StageTimes& times : status.stage_times()) {
    absl::StrAppendFormat(&text, "    %-12s %9.2f %8.2f %8.2f %8.2f\n", times.name(),
                          1e3 * times.jit_seconds(), 1e3 * times.wire_seconds(),
                          1e3 * times.worker_seconds(), 1e3 * times.slack_seconds());
  }
  if (status.jit_saved_bytes() > 0) {
    absl::StrAppend(&text, "    quantizing just in time saves ",
                    FormatBytes(static_cast<double>(status.jit_saved_bytes())),
                    " of low-precision copies at rest\n");
  }
  return text;
}

namespace {

// Returns a line for each device: what it has transferred on each link, read and written.
std::string DeviceText(const v1::StatusReply& status) {
  std::map<std::string, std::map<std::string, double>> devices;
  for (const v1::LinkBytes& link : status.link_bytes()) {
    devices[link.device()][link.link() + "/" + link.direction()] +=
        static_cast<double>(link.bytes());
  }
  std::string text;
  for (auto& [device, bytes] : devices) {
    absl::StrAppend(&text, "  device ", device, ":");
    for (const char* const link : {"host", "internal", "media"}) {
      absl::StrAppend(&text, " ", link, " ", FormatBytes(bytes[absl::StrCat(link, "/read")]),
                      " read, ", FormatBytes(bytes[absl::StrCat(link, "/written")]), " written;");
    }
    text.back() = '\n';
  }
  return text;
}

}  // namespace

std::string StatusText(const std::string& address, const v1::StatusReply& status) {
  std::string text = absl::StrFormat("server %s: %s", address, JobStateName(status.state()));
  if (status.job_id() != 0) {
    absl::StrAppendFormat(&text, ", job %016x, shard %d of %d, step %d of %d, version %d, term %d",
                          status.job_id(), status.shard(), status.shards(), status.step(),
                          status.steps(), status.version(), status.term());
  }
  absl::StrAppendFormat(&text, ", up %s\n", FormatSeconds(status.uptime_seconds()));
  if (!status.failure().empty()) absl::StrAppend(&text, "  failure: ", status.failure(), "\n");
  for (const v1::HeldGate& gate : status.gates()) {
    absl::StrAppendFormat(&text, "  gate: %s holds the job after step %d\n", gate.holder(),
                          gate.step());
  }
  for (const uint32_t shard : status.draining()) {
    absl::StrAppendFormat(&text, "  draining: server %d ends soon\n", shard);
  }
  if (status.job_id() != 0) {
    absl::StrAppendFormat(&text, "  holds: %s parameters in %d chunks; %d workers joined\n",
                          FormatCount(status.parameters()), status.chunks(),
                          status.joined_workers());
  }
  for (const v1::WorkerStatus& worker : status.workers()) {
    absl::StrAppendFormat(&text, "  worker %016x%s%s: %s\n", worker.worker_nonce(),
                          worker.host().empty() ? "" : " on ", worker.host(),
                          worker.parts().empty()
                              ? "waits for parts"
                              : absl::StrCat("parts ", absl::StrJoin(worker.parts(), ",")));
  }
  const uint64_t limit = status.memory_limit_bytes();
  absl::StrAppend(
      &text, "  memory (limit ",
      limit == 0 || limit == UINT64_MAX ? "none" : FormatBytes(static_cast<double>(limit)), "):\n");
  for (const v1::MemoryUse& use : status.memory()) {
    absl::StrAppendFormat(&text, "    %-12s live %10s  peak %10s\n", use.kind(),
                          FormatBytes(static_cast<double>(use.live_bytes())),
                          FormatBytes(static_cast<double>(use.peak_bytes())));
  }
  absl::StrAppend(&text, DeviceText(status), "  counters:");
  // Sort the counters: a protobuf map is unordered.
  for (const auto& [name, value] :
       std::map<std::string, uint64_t>(status.counters().begin(), status.counters().end())) {
    absl::StrAppend(&text, " ", name, "=", value);
  }
  absl::StrAppend(&text, "\n", StageTimesText(status),
                  "  waits: ", status.waits_size() == 0 ? "none\n" : "\n");
  for (const v1::Wait& wait : status.waits()) {
    absl::StrAppendFormat(&text, "    %s waits %.1f s for %s\n", wait.what(), wait.seconds(),
                          wait.waits_for());
  }
  return text;
}

nlohmann::ordered_json StatusJson(const std::string& address, const v1::StatusReply& status) {
  nlohmann::ordered_json json;
  json["server"] = address;
  json["state"] = JobStateName(status.state());
  json["job"] = absl::StrFormat("%016x", status.job_id());
  json["failure"] = status.failure();
  json["failure_code"] = status.failure_code();
  json["shard"] = status.shard();
  json["shards"] = status.shards();
  json["term"] = status.term();
  json["step"] = status.step();
  json["steps"] = status.steps();
  json["version"] = status.version();
  json["chunks"] = status.chunks();
  json["parameters"] = status.parameters();
  json["joined_workers"] = status.joined_workers();
  json["workers"] = nlohmann::ordered_json::array();
  for (const v1::WorkerStatus& worker : status.workers()) {
    json["workers"].push_back(
        {{"worker", absl::StrFormat("%016x", worker.worker_nonce())},
         {"host", worker.host()},
         {"parts", std::vector<uint32_t>(worker.parts().begin(), worker.parts().end())}});
  }
  json["gates"] = nlohmann::ordered_json::object();
  for (const v1::HeldGate& gate : status.gates()) json["gates"][gate.holder()] = gate.step();
  json["draining"] = std::vector<uint32_t>(status.draining().begin(), status.draining().end());
  json["uptime_seconds"] = status.uptime_seconds();
  json["memory_limit_bytes"] = status.memory_limit_bytes();
  json["memory"] = nlohmann::ordered_json::object();
  for (const v1::MemoryUse& use : status.memory()) {
    json["memory"][use.kind()] = {{"live_bytes", use.live_bytes()},
                                  {"peak_bytes", use.peak_bytes()}};
  }
  json["counters"] =
      std::map<std::string, uint64_t>(status.counters().begin(), status.counters().end());
  json["link_bytes"] = nlohmann::ordered_json::array();
  for (const v1::LinkBytes& link : status.link_bytes()) {
    json["link_bytes"].push_back({{"device", link.device()},
                                  {"link", link.link()},
                                  {"direction", link.direction()},
                                  {"purpose", link.purpose()},
                                  {"bytes", link.bytes()}});
  }
  json["jit_saved_bytes"] = status.jit_saved_bytes();
  json["stage_times"] = nlohmann::ordered_json::array();
  for (const v1::StageTimes& times : status.stage_times()) {
    json["stage_times"].push_back({{"stage", times.stage()},
                                   {"name", times.name()},
                                   {"visits", times.visits()},
                                   {"jit_seconds", times.jit_seconds()},
                                   {"wire_seconds", times.wire_seconds()},
                                   {"worker_seconds", times.worker_seconds()},
                                   {"slack_seconds", times.slack_seconds()}});
  }
  json["stage_progress"] = nlohmann::ordered_json::array();
  for (const v1::StageProgress& progress : status.stage_progress()) {
    json["stage_progress"].push_back({{"stage", progress.stage()},
                                      {"name", progress.name()},
                                      {"chunks", progress.chunks()},
                                      {"updated", progress.updated()}});
  }
  json["waits"] = nlohmann::ordered_json::array();
  for (const v1::Wait& wait : status.waits()) {
    json["waits"].push_back(
        {{"what", wait.what()}, {"waits_for", wait.waits_for()}, {"seconds", wait.seconds()}});
  }
  return json;
}

std::string LineOf(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace eps
