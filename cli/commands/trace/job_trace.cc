#include "cli/commands/trace/job_trace.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/trace/span_names.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectTimeout{5};
constexpr std::chrono::milliseconds kLook{100};  // between two looks at the interrupt
// Servers other than the lead are traced until the lead has its steps.
constexpr uint32_t kMostSteps = 1000;
constexpr size_t kLead = 0;

}  // namespace

JobTrace::~JobTrace() { Close(); }

absl::Status JobTrace::Connect() {
  for (size_t i = 0; i < options_.servers.size(); ++i) {
    EPS_ASSIGN_OR_RETURN(
        streams_[i].client,
        TraceClient::Connect(options_.servers[i],
                             std::min(options_.deadline, Clock::now() + kConnectTimeout)));
  }
  return absl::OkStatus();
}

absl::Status JobTrace::Run(ChromeTrace* trace) {
  streams_ = std::vector<Stream>(options_.servers.size());
  EPS_RETURN_IF_ERROR(Connect());
  const absl::Status status = Collect();
  Close();
  // The servers in their order, then the workers, whose reports the lead has.
  std::vector<const v1::TraceReport*> of_workers;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const Stream& stream = streams_[i];
    if (stream.answered) trace->NoteClock(options_.servers[i], stream.ahead_ns, stream.error_ns);
    for (const v1::TraceReport& report : stream.reports) {
      if (i == kLead && report.process() != stream.reports.front().process()) {
        of_workers.push_back(&report);
      } else {
        trace->Add(report, stream.ahead_ns);
      }
    }
  }
  for (const v1::TraceReport* const report : of_workers) {
    trace->Add(*report, streams_[kLead].ahead_ns);
  }
  return status;
}

uint32_t JobTrace::steps_ended() {
  MutexLock lock(&mu_);
  return steps_ended_;
}

absl::Status JobTrace::Collect() {
  for (size_t i = 1; i < streams_.size(); ++i) Open(i, kMostSteps);
  EPS_RETURN_IF_ERROR(WaitUntil([this] {
    return std::all_of(streams_.begin() + 1, streams_.end(),
                       [](const Stream& s) { return s.answered || s.over; });
  }));
  Open(kLead, options_.steps);
  EPS_RETURN_IF_ERROR(WaitUntil([this] { return streams_[kLead].over; }));
  const int64_t end_ns = TraceNowNs();
  return WaitUntil([this, end_ns] {
    return std::all_of(streams_.begin() + 1, streams_.end(),
                       [end_ns](const Stream& s) { return s.until_ns >= end_ns || s.over; });
  });
}

void JobTrace::Open(size_t server, uint32_t steps) {
  Stream* const stream = &streams_[server];
  stream->thread = std::thread([this, stream, server, steps] {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        options_.deadline - Clock::now() + kConnectTimeout);
    absl::Status end = stream->client->Follow(
        steps, left,
        [this, stream, server](const RoundTrip& trip) {
          MutexLock lock(&mu_);
          stream->answered = true;
          stream->ahead_ns = trip.OtherIsAheadNs();
          stream->error_ns = (trip.received_ns - trip.sent_ns) / 2;
          if (server == kLead) first_ns_ = trip.other_sent_ns;
          changed_.NotifyAll();
        },
        [this, server](const v1::TraceReply& reply) { OnReply(server, reply); });
    MutexLock lock(&mu_);
    stream->over = true;
    stream->end = std::move(end);
    changed_.NotifyAll();
  });
}

void JobTrace::OnReply(size_t server, const v1::TraceReply& reply) {
  MutexLock lock(&mu_);
  Stream* const stream = &streams_[server];
  stream->until_ns = reply.now_ns() - stream->ahead_ns;
  stream->reports.push_back(reply.report());
  changed_.NotifyAll();
  if (server != kLead) return;
  const auto& names = reply.report().names();
  for (const v1::TraceSpan& span : reply.report().spans()) {
    if (span.name() >= static_cast<uint32_t>(names.size()) || span.start_ns() < first_ns_) continue;
    if (names[static_cast<int>(span.name())] == kStepSpan) ++steps_ended_;
  }
}

absl::Status JobTrace::WaitUntil(const std::function<bool()>& reached) {
  MutexLock lock(&mu_);
  for (;;) {
    EPS_RETURN_IF_ERROR(FirstError());
    if (reached()) return absl::OkStatus();
    if (options_.interrupted()) return absl::CancelledError("interrupted");
    if (Clock::now() >= options_.deadline) return absl::DeadlineExceededError("the time is over");
    while (steps_shown_ < steps_ended_) options_.on_step_ended(++steps_shown_);
    changed_.WaitFor(&mu_, kLook);
  }
}

absl::Status JobTrace::FirstError() const {
  for (const Stream& stream : streams_) {
    if (stream.over && !stream.end.ok()) return stream.end;
  }
  return absl::OkStatus();
}

void JobTrace::Close() {
  for (Stream& stream : streams_) {
    if (stream.client != nullptr) stream.client->Cancel();
  }
  for (Stream& stream : streams_) {
    if (stream.thread.joinable()) stream.thread.join();
  }
}

}  // namespace eps
