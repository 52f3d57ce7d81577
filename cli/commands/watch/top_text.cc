#include "cli/commands/watch/top_text.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "cli/commands/jobs/board.h"
#include "wire/job_state_names.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

using Lines = std::vector<std::string>;

constexpr size_t kMostWaits = 6;
constexpr size_t kMostStages = 6;
constexpr size_t kMostEvents = 6;

// Returns the lead's job and its last step.
Lines Heading(const ClusterWatch::View& view) {
  const ClusterWatch::ServerView& lead = view.servers[0];
  if (!lead.seen) return {absl::StrCat("the lead ", lead.address, " does not answer")};
  const v1::StatusReply& status = lead.status;
  if (status.job_id() == 0) return {absl::StrCat("the lead ", lead.address, " has no job")};
  Lines lines = {absl::StrFormat("job %s  %s  step %d of %d  %d workers  term %d",
                                 NameOfJob(status, view.board), JobStateName(status.state()),
                                 std::min(status.step(), status.steps()), status.steps(),
                                 status.joined_workers(), status.term())};
  if (status.has_last_step()) {
    const v1::StepRecord& last = status.last_step();
    const double seconds = last.step_seconds();
    lines.push_back(absl::StrFormat(
        "last step %d: loss %.4f, gradient norm %.3g, %.2f s, %s tokens/s", last.step(),
        last.loss(), last.grad_norm(), seconds,
        FormatCount(seconds > 0 ? static_cast<uint64_t>(last.tokens() / seconds) : 0)));
  }
  return lines;
}

Lines ServerLines(const ClusterWatch::View& view) {
  Lines lines = {absl::StrFormat("%-28s %-10s %8s %10s %10s %8s", "server", "state", "step",
                                 "memory", "of", "up")};
  for (const ClusterWatch::ServerView& server : view.servers) {
    if (!server.error.empty()) {
      lines.push_back(absl::StrFormat("%-28s %s", server.address, server.error));
      continue;
    }
    const v1::StatusReply& status = server.status;
    double used = 0;
    for (const v1::MemoryUse& use : status.memory()) used += static_cast<double>(use.live_bytes());
    lines.push_back(absl::StrFormat("%-28s %-10s %8d %10s %10s %8s", server.address,
                                    JobStateName(status.state()), status.step(), FormatBytes(used),
                                    FormatBytes(static_cast<double>(status.memory_limit_bytes())),
                                    FormatSeconds(status.uptime_seconds())));
  }
  return lines;
}

// Returns the stages with the least slack.
Lines StageLines(const ClusterWatch::View& view) {
  std::map<uint32_t, v1::StageTimes> least;
  for (const ClusterWatch::ServerView& server : view.servers) {
    for (const v1::StageTimes& times : server.status.stage_times()) {
      if (times.visits() == 0) continue;
      const auto [it, added] = least.try_emplace(times.stage(), times);
      if (!added && times.slack_seconds() < it->second.slack_seconds()) it->second = times;
    }
  }
  if (least.empty()) return {};
  std::vector<v1::StageTimes> sorted;
  for (auto& [stage, times] : least) sorted.push_back(times);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const v1::StageTimes& a, const v1::StageTimes& b) {
                     return a.slack_seconds() < b.slack_seconds();
                   });
  if (sorted.size() > kMostStages) sorted.resize(kMostStages);
  Lines lines = {absl::StrFormat("%-28s %10s %10s %10s %10s", "layers with the least slack, ms",
                                 "quantize", "wire", "worker", "slack")};
  for (const v1::StageTimes& times : sorted) {
    lines.push_back(absl::StrFormat("%-31s %10.2f %10.2f %10.2f %10.2f", times.name(),
                                    1e3 * times.jit_seconds(), 1e3 * times.wire_seconds(),
                                    1e3 * times.worker_seconds(), 1e3 * times.slack_seconds()));
  }
  return lines;
}

Lines WaitLines(const ClusterWatch::View& view) {
  std::vector<std::pair<double, std::string>> waits;
  for (const ClusterWatch::ServerView& server : view.servers) {
    if (!server.error.empty()) continue;
    for (const v1::Wait& wait : server.status.waits()) {
      waits.emplace_back(wait.seconds(),
                         absl::StrFormat("%8s  %s: %s waits for %s", FormatSeconds(wait.seconds()),
                                         server.address, wait.what(), wait.waits_for()));
    }
  }
  if (waits.empty()) return {};
  std::stable_sort(waits.begin(), waits.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  Lines lines = {absl::StrCat("waits: ", waits.size())};
  for (size_t i = 0; i < std::min(waits.size(), kMostWaits); ++i) lines.push_back(waits[i].second);
  return lines;
}

Lines JobLines(const ClusterWatch::View& view) {
  if (view.board.jobs().empty()) return {};
  Lines lines = {"jobs on the board"};
  for (const v1::Job& job : view.board.jobs()) {
    if (!HasEnded(job.phase())) lines.push_back("  " + BoardJobLine(job));
  }
  for (const v1::Job& job : view.board.jobs()) {
    if (HasEnded(job.phase())) lines.push_back("  " + BoardJobLine(job));
  }
  return lines;
}

Lines EventLines(const ClusterWatch::View& view) {
  if (view.events.empty()) return {};
  Lines lines = {"events"};
  const size_t count = std::min(view.events.size(), kMostEvents);
  for (size_t i = view.events.size(); i-- > view.events.size() - count;) {
    const ClusterEvents::Event& event = view.events[i];
    const std::time_t seconds = event.time_ms / 1000;
    std::tm local = {};
    localtime_r(&seconds, &local);
    lines.push_back(absl::StrFormat("  %02d:%02d:%02d  %s", local.tm_hour, local.tm_min,
                                    local.tm_sec, event.text));
  }
  return lines;
}

// Cuts a line after `columns` characters of UTF-8, and makes control characters visible.
std::string Cut(const std::string& line, size_t columns) {
  std::string result;
  size_t width = 0;
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    const bool begins = (byte & 0xC0) != 0x80;
    if (begins && ++width > columns) break;
    result.push_back(byte < 0x20 || byte == 0x7F ? '?' : c);
  }
  return result;
}

}  // namespace

std::string TopText(const ClusterWatch::View& view, size_t columns, size_t rows) {
  Lines all;
  for (const Lines& block : {Heading(view), ServerLines(view), WaitLines(view), JobLines(view),
                             StageLines(view), EventLines(view)}) {
    if (block.empty()) continue;
    if (!all.empty()) all.emplace_back();
    all.insert(all.end(), block.begin(), block.end());
  }
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), rows); ++i) {
    absl::StrAppend(&text, Cut(all[i], columns), "\n");
  }
  return text;
}

}  // namespace eps
