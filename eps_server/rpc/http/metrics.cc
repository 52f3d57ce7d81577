#include "eps_server/rpc/http/metrics.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "wire/http/metric_families.h"
#include "wire/job_state_names.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

// Counters of the status that become the label `result` of eps_push_requests_total.
constexpr const char* kPushResults[] = {"accepted", "duplicate", "conflict", "stale",
                                        "fenced",   "refused",   "nonfinite"};

// Maps a counter of the status to a metric of its own.
struct CounterName {
  const char* counter;
  const char* metric;
  const char* help;
  double unit = 1;  // units of the counter in one unit of the metric
};
constexpr CounterName kCounters[] = {
    {"accepted_bytes", "eps_push_bytes_total", "Bytes of encoded gradients accepted."},
    {"fetches", "eps_fetch_requests_total", "Fetches accepted."},
    {"fetches_refused", "eps_fetch_refused_total", "Fetches refused."},
    {"fetched_bytes", "eps_fetch_bytes_total", "Bytes of encoded weights sent."},
    {"encodes", "eps_encodes_total", "Chunks quantized for a fetch or ahead of it."},
    {"encoded_by_updates", "eps_encodes_in_updates_total", "Chunks quantized during their update."},
    {"updates", "eps_updates_total", "Chunks updated."},
    {"leases_granted", "eps_leases_granted_total", "Parts given to workers; shard 0 only."},
    {"leases_ended", "eps_leases_ended_total",
     "Parts that workers gave back or lost; shard 0 only."},
    {"skipped_steps", "eps_steps_skipped_total", "Steps whose gradient was not finite."},
    {"cuts", "eps_cuts_total", "Cuts that became durable here."},
    {"cut_ms", "eps_cut_seconds_total",
     "Time from a border until its cut was durable on all servers; shard 0 only.", 1000},
    {"rollbacks", "eps_rollbacks_total", "Rollbacks to a cut that this shard requested."},
    {"replays", "eps_log_replays_total", "Contribution logs replayed."},
    {"scrub_passes", "eps_scrub_passes_total", "Scrub passes over the whole state."},
    {"filled_bytes", "eps_filled_bytes_total", "Bytes of new slots and logs that were filled."},
    {"scrubbed_bytes", "eps_scrub_bytes_total", "Bytes read and checked by scrubbing."},
    {"scrub_damage", "eps_scrub_damage_total", "Damaged chunks found by scrubbing."},
};

void AddProcess(const v1::StatusReply& status, MetricFamilies* families) {
  families->Gauge("eps_uptime_seconds", "Age of the process.", status.uptime_seconds());
  families->Gauge("eps_memory_limit_bytes", "servers.memory_limit.",
                  static_cast<double>(status.memory_limit_bytes()));
  families->Add("eps_memory_bytes", "Memory charged now.", MetricType::Gauge);
  for (const v1::MemoryUse& use : status.memory()) {
    families->Value(static_cast<double>(use.live_bytes()), "kind", use.kind());
  }
  families->Add("eps_memory_peak_bytes", "Peak of the charged memory.", MetricType::Gauge);
  for (const v1::MemoryUse& use : status.memory()) {
    families->Value(static_cast<double>(use.peak_bytes()), "kind", use.kind());
  }
}

void AddFacts(const ProcessFacts& process, MetricFamilies* families) {
  families->Gauge("eps_insecure", "1 if other machines can connect without TLS.",
                  process.insecure ? 1 : 0);
  families->Counter("eps_calls_denied_total", "Calls that the caller's role does not allow.",
                    static_cast<double>(process.denied));
  if (process.certificate_end.has_value()) {
    families->Gauge("eps_certificate_end_timestamp_seconds",
                    "When the certificate in security.dir is over.",
                    static_cast<double>(*process.certificate_end));
  }
  if (!process.disk_free_bytes.empty()) {
    families->Add("eps_disk_free_bytes",
                  "Free on the disk of each folder of storage.path and storage.drives.",
                  MetricType::Gauge);
    for (const auto& [folder, bytes] : process.disk_free_bytes) {
      families->Value(static_cast<double>(bytes), "folder", folder);
    }
  }
  families->Add("eps_jobs", "Jobs on the board, by phase; on the lead.", MetricType::Gauge);
  for (int value = v1::JobPhase_MIN + 1; value <= v1::JobPhase_MAX; ++value) {
    const auto phase = static_cast<v1::JobPhase>(value);
    const auto found = process.board.phases.find(phase);
    families->Value(found == process.board.phases.end() ? 0 : static_cast<double>(found->second),
                    "phase", absl::AsciiStrToLower(PhaseName(phase)));
  }
  families->Gauge("eps_jobs_driven", "Jobs that a driver holds; on the lead.",
                  static_cast<double>(process.board.driven));
  families->Gauge("eps_jobs_undriven", "Jobs that should run but have no driver; on the lead.",
                  static_cast<double>(process.board.undriven));
}

void AddLinks(const v1::StatusReply& status, MetricFamilies* families) {
  if (status.link_bytes().empty()) return;
  families->Add(
      "eps_storage_link_bytes_total",
      "Bytes that links of storage devices carried, by device, link, direction and purpose.",
      MetricType::Counter);
  for (const v1::LinkBytes& link : status.link_bytes()) {
    families->Value(static_cast<double>(link.bytes()), {{"device", link.device()},
                                                        {"link", link.link()},
                                                        {"direction", link.direction()},
                                                        {"purpose", link.purpose()}});
  }
}

void AddProgress(const v1::StatusReply& status, MetricFamilies* families) {
  families->Add("eps_job_state", "1 for the job's state, 0 for all others.", MetricType::Gauge);
  for (const auto& [state, name] : kJobStateNames) {
    families->Value(status.state() == state ? 1 : 0, "state", name);
  }
  families->Gauge("eps_term", "Term of the job; each recovery begins a new one.",
                  static_cast<double>(status.term()));
  families->Gauge("eps_step_current", "Step that is open on this shard.",
                  static_cast<double>(status.step()));
  families->Gauge("eps_steps", "training.steps.", static_cast<double>(status.steps()));
  if (status.has_last_step()) {
    families->Gauge("eps_loss", "Loss of the last complete step; shard 0 only.",
                    status.last_step().loss());
  }
  families->Gauge("eps_workers", "Workers that hold parts or wait for them; shard 0 only.",
                  status.joined_workers());
  double longest = 0;
  for (const v1::Wait& wait : status.waits()) longest = std::max(longest, wait.seconds());
  families->Gauge("eps_waits", "Requests that are waiting.", status.waits_size());
  families->Gauge("eps_longest_wait_seconds", "Age of the oldest of these waits.", longest);
}

void AddCounters(const v1::StatusReply& status, MetricFamilies* families) {
  const auto count = [&](const char* name) {
    const auto found = status.counters().find(name);
    return found == status.counters().end() ? 0.0 : static_cast<double>(found->second);
  };
  families->Add("eps_push_requests_total", "Contributions received, by result.",
                MetricType::Counter);
  for (const char* result : kPushResults) families->Value(count(result), "result", result);
  for (const CounterName& c : kCounters)
    families->Counter(c.metric, c.help, count(c.counter) / c.unit);
}

// Adds the times of just-in-time quantization (docs/quantization.md): quantizing, sending, and the
// workers' stays, summed over all visits. The slack is a stay in a stage less the time that the
// next stage takes to quantize.
void AddStageTimes(const v1::StatusReply& status, MetricFamilies* families) {
  double visits = 0;
  double jit = 0;
  double wire = 0;
  double worker = 0;
  double slack = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const v1::StageTimes& times : status.stage_times()) {
    const auto n = static_cast<double>(times.visits());
    visits += n;
    jit += n * times.jit_seconds();
    wire += n * times.wire_seconds();
    worker += n * times.worker_seconds();
    slack += n * times.slack_seconds();
    if (times.visits() > 0) least = std::min(least, times.slack_seconds());
  }
  families->Counter("eps_stage_visits_total", "Stages that workers fetched.", visits);
  families->Counter("eps_stage_jit_seconds_total", "Time spent quantizing for these visits.", jit);
  families->Counter("eps_stage_wire_seconds_total",
                    "Time until the transport accepted their weights.", wire);
  families->Counter("eps_stage_worker_seconds_total", "Time that workers spent in them.", worker);
  families->Gauge("eps_slack_mean_seconds",
                  "A worker's time in a stage less quantizing the next one; mean over visits.",
                  visits > 0 ? slack / visits : 0);
  families->Gauge("eps_slack_least_seconds",
                  "Slack of the stage with the least; below 0 if workers wait for quantizing.",
                  visits > 0 ? least : 0);
  families->Gauge("eps_jit_saved_bytes",
                  "Bytes that copies of all weights in their wire codecs would take.",
                  static_cast<double>(status.jit_saved_bytes()));
}

}  // namespace

std::vector<MetricFamily> MetricsOf(const v1::StatusReply& status, const ProcessFacts& facts) {
  const bool has_job = status.job_id() != 0;
  MetricFamilies process({});
  AddProcess(status, &process);
  AddFacts(facts, &process);
  AddLinks(status, &process);
  std::vector<MetricFamily> all = process.Take();
  if (!has_job) return all;
  MetricFamilies job({{"job", absl::StrFormat("%016x", status.job_id())},
                      {"shard", absl::StrCat(status.shard())}});
  AddProgress(status, &job);
  AddCounters(status, &job);
  AddStageTimes(status, &job);
  for (MetricFamily& family : job.Take()) all.push_back(std::move(family));
  return all;
}

}  // namespace eps
