#include "cli/commands/watch/cluster_events.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "wire/job_state_names.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

// Counters whose growth is an event, with what the event says about `count` of them.
struct CountedEvent {
  const char* counter;
  const char* text;
};
constexpr CountedEvent kCounted[] = {
    {"skipped_steps", "steps were skipped, because a gradient was not finite"},
    {"scrub_damage", "damaged chunks were found in durable state"},
};

uint64_t CounterOf(const v1::StatusReply& status, const char* name) {
  const auto it = status.counters().find(name);
  return it == status.counters().end() ? 0 : it->second;
}

}  // namespace

std::string NameOfJob(const v1::StatusReply& status, const v1::ListJobsReply& board) {
  for (const v1::Job& job : board.jobs()) {
    if (job.job_id() == status.job_id()) return job.name();
  }
  return status.job_name().empty() ? absl::StrFormat("%016x", status.job_id()) : status.job_name();
}

std::string ClusterEvents::NameOf(const v1::StatusReply& status) const {
  return absl::StrCat("job ",
                      NameOfJob(status, board_.has_value() ? *board_ : v1::ListJobsReply()));
}

void ClusterEvents::Add(int64_t time_ms, bool bad, std::string text) {
  events_.push_back({time_ms, bad, std::move(text)});
  if (events_.size() > kMostKept) events_.pop_front();
}

void ClusterEvents::OnStatus(int64_t time_ms, const std::string& address,
                             const v1::StatusReply& status) {
  Known& known = servers_[address];
  if (known.away) Add(time_ms, false, absl::StrCat(address, ": the server answers again"));
  known.away = false;
  if (known.status.has_value()) Compare(time_ms, address, *known.status, status);
  known.status = status;
}

void ClusterEvents::OnAway(int64_t time_ms, const std::string& address) {
  Known& known = servers_[address];
  if (!known.away) Add(time_ms, true, absl::StrCat(address, ": the server does not answer"));
  known.away = true;
}

void ClusterEvents::Compare(int64_t time_ms, const std::string& address,
                            const v1::StatusReply& before, const v1::StatusReply& now) {
  if (now.incarnation() != before.incarnation()) {
    Add(time_ms, true, absl::StrCat(address, ": the process was started again"));
  }
  const bool lead = now.shard() == 0;  // it speaks for the job
  if (now.job_id() != before.job_id()) {
    if (lead && now.job_id() != 0) Add(time_ms, false, absl::StrCat(NameOf(now), " was created"));
    return;
  }
  if (now.job_id() == 0) return;
  if (lead && now.state() != before.state()) {
    const bool failed = now.state() == v1::JOB_STATE_FAILED;
    Add(time_ms, failed,
        absl::StrCat(NameOf(now), ": ", JobStateName(before.state()), " → ",
                     JobStateName(now.state()), failed ? ": " : "", now.failure()));
  }
  if (lead && now.term() != before.term()) {
    Add(time_ms, true,
        absl::StrCat(NameOf(now), ": term ", now.term(), " began at step ", now.step()));
  }
  if (lead && now.joined_workers() != before.joined_workers()) {
    const bool fewer = now.joined_workers() < before.joined_workers();
    Add(time_ms, fewer && now.state() != v1::JOB_STATE_DONE,
        absl::StrCat(NameOf(now), ": workers ", before.joined_workers(), " → ",
                     now.joined_workers()));
  }
  if (now.incarnation() != before.incarnation()) return;  // counters begin again
  for (const CountedEvent& counted : kCounted) {
    const uint64_t count = CounterOf(now, counted.counter);
    const uint64_t old = CounterOf(before, counted.counter);
    if (count > old)
      Add(time_ms, true, absl::StrCat(address, ": ", count - old, " ", counted.text));
  }
}

void ClusterEvents::OnBoard(int64_t time_ms, const v1::ListJobsReply& board) {
  if (board_.has_value() && board_->board() == board.board()) {
    std::map<uint64_t, const v1::Job*> before;
    for (const v1::Job& job : board_->jobs()) before[job.uid()] = &job;
    for (const v1::Job& job : board.jobs()) {
      const auto it = before.find(job.uid());
      const std::string phase = PhaseName(job.phase());
      if (it == before.end()) {
        Add(time_ms, false, absl::StrCat(job.name(), ": submitted, ", phase));
        continue;
      }
      const v1::Job& old = *it->second;
      before.erase(it);
      if (job.phase() != old.phase()) {
        const bool failed = job.phase() == v1::JOB_PHASE_FAILED;
        Add(time_ms, failed,
            absl::StrCat(job.name(), ": ", PhaseName(old.phase()), " → ", phase, failed ? ": " : "",
                         failed ? job.result().text() : ""));
      }
      if (!HasEnded(job.phase()) && job.driver().generation() != old.driver().generation() &&
          !job.driver().driver_nonce().empty()) {
        Add(time_ms, false,
            absl::StrCat(job.name(), ": driven from ", job.driver().host(), ", lease ",
                         job.driver().generation()));
      }
    }
    for (const auto& [uid, job] : before) {
      Add(time_ms, false, absl::StrCat(job->name(), ": removed from the board"));
    }
  }
  board_ = board;
}

}  // namespace eps
