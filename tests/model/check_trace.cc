// Checks the traces of a job's shards (servers.trace), all of which ran on one machine, against the
// rules of trace_monitor.h. Usage: check_trace [--logs] FOLDER. Prints the number of actions. Exits
// with 1 and the broken rules if there are any, with 2 if the traces cannot be read.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eps_server/core/testing/trace_monitor.h"
#include "eps_server/core/trace/trace_text.h"

namespace eps {
namespace {

constexpr size_t kShown = 10;

int Check(const std::string& folder, bool logs) {
  std::vector<std::pair<TraceLine, ShardId>> lines;
  uint32_t shards = 0;
  for (;; ++shards) {
    std::ifstream file(absl::StrCat(folder, "/shard-", shards, ".trace"));
    if (!file.is_open()) break;
    for (std::string text; std::getline(file, text);) {
      const absl::StatusOr<TraceLine> line = TraceLine::Parse(text);
      if (!line.ok()) {
        std::fprintf(stderr, "shard %u: %s\n", shards,
                     std::string(line.status().message()).c_str());
        return 2;
      }
      lines.emplace_back(*line, ShardId(shards));
    }
  }
  if (shards == 0) {
    std::fprintf(stderr, "no shard-0.trace in %s\n", folder.c_str());
    return 2;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.first.ns < b.first.ns; });
  TraceMonitor monitor(shards, logs);
  size_t processes = 0;
  for (const auto& [line, shard] : lines) {
    if (line.action.has_value()) {
      monitor.OnAction(shard, *line.action);
    } else {
      ++processes;
      monitor.OnProcess(shard);
    }
  }
  std::printf("%zu actions of %u shards and %zu processes, %zu violations\n",
              lines.size() - processes, shards, processes, monitor.violations().size());
  for (size_t i = 0; i < std::min(kShown, monitor.violations().size()); ++i) {
    std::printf("%s\n", monitor.violations()[i].c_str());
  }
  return monitor.violations().empty() ? 0 : 1;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  const bool logs = argc == 3 && std::string(argv[1]) == "--logs";
  if (argc != (logs ? 3 : 2)) {
    std::fprintf(stderr, "usage: check_trace [--logs] FOLDER\n");
    return 2;
  }
  return eps::Check(argv[argc - 1], logs);
}
