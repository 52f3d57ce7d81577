#include "wire/trace/trace_message.h"

#include <unistd.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/machine/host_name.h"

namespace eps {
namespace {

// A field of a message costs its bytes, a tag and a length.
constexpr size_t kFieldBytes = 6;

void SetSpan(const RecordedSpan& from, uint32_t name, int64_t ahead_ns, v1::TraceSpan* span) {
  span->set_name(name);
  span->set_thread(from.thread);
  span->set_start_ns(from.start_ns + ahead_ns);
  span->set_duration_ns(from.duration_ns);
  span->set_step(from.place.step);
  span->set_subject(from.place.subject);
  span->set_part(from.place.part);
}

}  // namespace

std::string TracedProcessName(const std::string& role) {
  return absl::StrCat(role, " (", HostName(), ", process ", getpid(), ")");
}

v1::TraceReport ToTraceReport(const std::string& process, const TraceRecording::Taken& taken,
                              int64_t ahead_ns, size_t most_bytes) {
  v1::TraceReport report;
  report.set_process(process);
  report.set_dropped(taken.dropped + taken.spans.size());
  size_t bytes = report.ByteSizeLong();
  std::map<const char*, uint32_t> names;
  for (const RecordedSpan& recorded : taken.spans) {
    const auto [name, is_new] =
        names.emplace(recorded.name, static_cast<uint32_t>(report.names_size()));
    v1::TraceSpan span;
    SetSpan(recorded, name->second, ahead_ns, &span);
    bytes += span.ByteSizeLong() + kFieldBytes;
    if (is_new) bytes += std::char_traits<char>::length(recorded.name) + kFieldBytes;
    if (bytes > most_bytes) break;
    if (is_new) report.add_names(recorded.name);
    *report.add_spans() = std::move(span);
  }
  report.set_dropped(report.dropped() - static_cast<uint64_t>(report.spans_size()));
  return report;
}

}  // namespace eps
