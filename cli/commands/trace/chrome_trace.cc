#include "cli/commands/trace/chrome_trace.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/trace/span_names.h"
#include "base/trace/trace_log.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::ordered_json;

// Returns JSON on one line; bytes that are not UTF-8 are replaced.
std::string LineOf(const ordered_json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

// Returns the time in microseconds, with all digits.
std::string Microseconds(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

std::string NameEvent(const char* what, size_t pid, uint32_t tid, const std::string& name) {
  ordered_json event;
  event["name"] = what;
  event["ph"] = "M";
  event["pid"] = pid;
  event["tid"] = tid;
  event["args"]["name"] = name;
  return LineOf(event);
}

std::string ThreadName(uint32_t thread) {
  if (thread > kFirstQueue && thread <= kFirstQueue + std::size(kQueueNames)) {
    return kQueueNames[thread - kFirstQueue - 1];
  }
  return thread == 0 ? "steps" : absl::StrCat("thread ", thread);
}

}  // namespace

ChromeTrace::Process* ChromeTrace::Find(const std::string& name) {
  for (Process& process : processes_) {
    if (process.name == name) return &process;
  }
  processes_.push_back({name, {}});
  return &processes_.back();
}

void ChromeTrace::Add(const v1::TraceReport& report, int64_t ahead_ns) {
  dropped_ += report.dropped();
  if (report.spans().empty()) return;
  Process* const process = Find(report.process());
  for (const v1::TraceSpan& from : report.spans()) {
    if (from.name() >= static_cast<uint32_t>(report.names_size())) continue;
    Span span;
    span.name = report.names(static_cast<int>(from.name()));
    span.thread = from.thread();
    span.start_ns = from.start_ns() - ahead_ns;
    span.duration_ns = from.duration_ns();
    span.step = from.step();
    span.subject = from.subject();
    span.part = from.part();
    process->spans.push_back(std::move(span));
    ++spans_;
  }
}

void ChromeTrace::NoteClock(const std::string& server, int64_t ahead_ns, int64_t error_ns) {
  clocks_[server] = {ahead_ns, error_ns};
}

std::string ChromeTrace::ArgsOf(const Span& span) const {
  ordered_json args = ordered_json::object();
  if (span.step > 0) args["step"] = span.step;
  if (span.subject > 0 && SubjectIsStage(span.name)) {
    const auto stage = stages_.find(span.subject - 1);
    args["stage"] = stage == stages_.end() ? absl::StrCat(span.subject - 1) : stage->second;
  } else if (span.subject > 0) {
    args["chunk"] = span.subject - 1;
  }
  if (span.part > 0) args["part"] = span.part - 1;
  return LineOf(args);
}

void ChromeTrace::WriteSpan(size_t pid, const Span& span, int64_t first_ns,
                            std::string* json) const {
  absl::StrAppend(json, ",\n{\"name\":", LineOf(span.name),
                  ",\"ph\":\"X\",\"ts\":", Microseconds(span.start_ns - first_ns),
                  ",\"dur\":", Microseconds(static_cast<int64_t>(span.duration_ns)),
                  ",\"pid\":", pid, ",\"tid\":", span.thread, ",\"args\":", ArgsOf(span), "}");
}

std::string ChromeTrace::Json() const {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  for (const Process& process : processes_) {
    for (const Span& span : process.spans) first_ns = std::min(first_ns, span.start_ns);
  }
  ordered_json about;
  about["dropped_spans"] = dropped_;
  about["clocks"] = ordered_json::object();
  for (const auto& [server, clock] : clocks_) {
    about["clocks"][server]["ahead_us"] = static_cast<double>(clock.ahead_ns) / 1e3;
    about["clocks"][server]["error_us"] = static_cast<double>(clock.error_ns) / 1e3;
  }
  std::string json =
      absl::StrCat("{\"displayTimeUnit\":\"ms\",\n\"otherData\":", LineOf(about),
                   ",\n\"traceEvents\":[\n", NameEvent("process_name", 0, 0, "eps trace"));
  for (size_t i = 0; i < processes_.size(); ++i) {
    const size_t pid = i + 1;
    absl::StrAppend(&json, ",\n", NameEvent("process_name", pid, 0, processes_[i].name));
    std::set<uint32_t> threads;
    for (const Span& span : processes_[i].spans) threads.insert(span.thread);
    for (const uint32_t thread : threads) {
      absl::StrAppend(&json, ",\n", NameEvent("thread_name", pid, thread, ThreadName(thread)));
    }
    for (const Span& span : processes_[i].spans) WriteSpan(pid, span, first_ns, &json);
  }
  return json + "\n]}\n";
}

}  // namespace eps
