#ifndef EPS_SERVER_JOBS_TESTING_NAIVE_BOARD_H_
#define EPS_SERVER_JOBS_TESTING_NAIVE_BOARD_H_

// The rules of the board of jobs as plain assignments, to compare the board with. For tests only.

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "eps/v1/scheduler.pb.h"

namespace eps {

// A job of the naive board.
struct NaiveJob {
  uint64_t uid = 0;
  std::string owner;
  std::string config;
  int desired = v1::DESIRED_RUN;
  int phase = v1::JOB_PHASE_QUEUED;
  uint64_t generation = 1;
  std::string holder;
  uint64_t lease_generation = 0;
  int64_t lease_end_ms = 0;
  std::string last_holder;
  bool lease_ran_out = false;
  uint64_t age = 0;
  uint64_t job_id = 0;
  uint64_t checkpoint = 0;
  uint64_t checkpoint_lease = 0;
  uint32_t exit_code = 0;
  uint64_t revision = 0;

  bool has_ended() const { return phase >= v1::JOB_PHASE_SUCCEEDED; }
};

// The board as one would explain it. The time is a field, each change takes effect at once, and
// `changes` has one entry for each revision.
class NaiveBoard {
 public:
  // The effect of one revision.
  struct Change {
    std::string name;
    bool removed;
  };

  absl::StatusCode Submit(const v1::SubmitJobRequest& r, uint64_t uid) {
    const std::string owner = r.owner().empty() ? "service" : r.owner();
    const auto found = jobs.find(r.name());
    if (found != jobs.end()) {
      const bool same = found->second.owner == owner && found->second.config == r.config();
      return same ? absl::StatusCode::kOk : absl::StatusCode::kAlreadyExists;
    }
    NaiveJob& job = jobs[r.name()];
    job.uid = uid;
    job.owner = owner;
    job.config = r.config();
    if (r.desired() == v1::DESIRED_PAUSE) {
      job.desired = v1::DESIRED_PAUSE;
      job.phase = v1::JOB_PHASE_PAUSED;
    }
    job.age = changes.size() + 1;
    return Changed(r.name());
  }

  absl::StatusCode Update(const v1::UpdateJobRequest& r) {
    const auto found = jobs.find(r.name());
    if (found == jobs.end()) return absl::StatusCode::kNotFound;
    NaiveJob& job = found->second;
    const bool failed_in_passing =
        job.phase == v1::JOB_PHASE_FAILED && job.desired != v1::DESIRED_CANCEL &&
        (job.exit_code == 69 || job.exit_code == 70 || job.exit_code == 74 || job.exit_code == 75 ||
         job.exit_code == 143);
    if (job.phase == v1::JOB_PHASE_CANCELLED && r.desired() == v1::DESIRED_CANCEL) {
      return absl::StatusCode::kOk;
    }
    if (job.has_ended() && !(failed_in_passing && r.desired() == v1::DESIRED_RUN)) {
      return absl::StatusCode::kFailedPrecondition;
    }
    if (!job.has_ended() && r.desired() == job.desired) return absl::StatusCode::kOk;
    if (job.desired == v1::DESIRED_CANCEL) return absl::StatusCode::kFailedPrecondition;
    if (r.expected_generation() != job.generation) return absl::StatusCode::kAborted;
    ++job.generation;
    job.desired = r.desired();
    if (job.has_ended()) {
      job.phase = v1::JOB_PHASE_QUEUED;
      job.exit_code = 0;
    }
    Settle(&job);
    return Changed(r.name());
  }

  absl::StatusCode Remove(const std::string& name) {
    const auto found = jobs.find(name);
    if (found == jobs.end()) return absl::StatusCode::kOk;
    if (!found->second.has_ended()) return absl::StatusCode::kFailedPrecondition;
    jobs.erase(found);
    changes.push_back({name, true});
    return absl::StatusCode::kOk;
  }

  // Sets `*claimed` to the name of the job.
  absl::StatusCode Claim(const v1::ClaimJobRequest& r, std::string* claimed) {
    const std::string owner = r.owner().empty() ? "service" : r.owner();
    *claimed = r.name().empty() ? Choose(owner, r.driver_nonce()) : r.name();
    const auto found = jobs.find(*claimed);
    if (found == jobs.end() || found->second.owner != owner) return absl::StatusCode::kNotFound;
    NaiveJob& job = found->second;
    if (job.has_ended()) return absl::StatusCode::kFailedPrecondition;
    if (job.holder == r.driver_nonce()) {
      job.lease_end_ms = now_ms + 30'000;
      return absl::StatusCode::kOk;
    }
    if (!job.holder.empty() || job.desired != v1::DESIRED_RUN) {
      return absl::StatusCode::kUnavailable;
    }
    const bool same_lease = job.lease_ran_out && job.last_holder == r.driver_nonce();
    if (!same_lease) job.lease_generation = changes.size() + 1;
    if (!same_lease || job.phase == v1::JOB_PHASE_QUEUED) job.phase = v1::JOB_PHASE_STARTING;
    job.holder = job.last_holder = r.driver_nonce();
    job.lease_ran_out = false;
    job.lease_end_ms = now_ms + 30'000;
    return Changed(*claimed);
  }

  absl::StatusCode Report(const v1::ReportJobRequest& r) {
    const auto found = jobs.find(r.name());
    if (found == jobs.end()) return absl::StatusCode::kAborted;
    NaiveJob& job = found->second;
    const bool same = job.uid == r.uid() && job.lease_generation == r.lease_generation();
    if (!same || job.holder != r.driver_nonce()) {
      const bool repeated = same && r.ended() && job.holder.empty() && !job.lease_ran_out &&
                            job.last_holder == r.driver_nonce() &&
                            (r.phase() == v1::JOB_PHASE_UNSPECIFIED || r.phase() == job.phase);
      return repeated ? absl::StatusCode::kOk : absl::StatusCode::kAborted;
    }
    if (r.phase() == v1::JOB_PHASE_CANCELLED && job.desired != v1::DESIRED_CANCEL) {
      return absl::StatusCode::kInvalidArgument;
    }
    bool durable = false;
    const uint64_t checkpoint = r.progress().checkpoint_step();
    if (checkpoint != 0 && checkpoint != job.checkpoint &&
        (checkpoint > job.checkpoint || job.checkpoint_lease != job.lease_generation)) {
      job.checkpoint = checkpoint;
      job.checkpoint_lease = job.lease_generation;
      durable = true;
    }
    if (r.job_id() != 0 && r.job_id() != job.job_id) {
      job.job_id = r.job_id();
      durable = true;
    }
    if (r.phase() != v1::JOB_PHASE_UNSPECIFIED && r.phase() != job.phase) {
      job.phase = r.phase();
      durable = true;
    }
    if (job.has_ended()) {
      job.exit_code = job.phase == v1::JOB_PHASE_CANCELLED ? 76 : r.result().exit_code();
    }
    if (r.ended() || job.has_ended()) {
      job.holder.clear();
      job.lease_ran_out = false;
      Settle(&job);
      durable = true;
    } else {
      job.lease_end_ms = now_ms + 30'000;
    }
    return durable ? Changed(r.name()) : absl::StatusCode::kOk;
  }

  void EndLeases() {
    for (auto& named : jobs) {
      NaiveJob& job = named.second;
      if (job.holder.empty() || now_ms < job.lease_end_ms) continue;
      job.holder.clear();
      job.lease_ran_out = true;
      Settle(&job);
      Changed(named.first);
    }
  }
  void Restart() {
    for (auto& named : jobs) named.second.lease_end_ms = now_ms + 30'000;
  }

  int64_t now_ms = 0;
  std::map<std::string, NaiveJob> jobs;
  std::vector<Change> changes;

 private:
  absl::StatusCode Changed(const std::string& name) {
    changes.push_back({name, false});
    jobs[name].revision = changes.size();
    return absl::StatusCode::kOk;
  }

  static void Settle(NaiveJob* job) {
    if (!job->holder.empty() || job->has_ended()) return;
    if (job->desired == v1::DESIRED_CANCEL) {
      job->phase = v1::JOB_PHASE_CANCELLED;
      job->exit_code = 76;
    }
    if (job->desired == v1::DESIRED_PAUSE) job->phase = v1::JOB_PHASE_PAUSED;
    if (job->desired == v1::DESIRED_RUN && job->phase == v1::JOB_PHASE_PAUSED) {
      job->phase = v1::JOB_PHASE_QUEUED;
    }
  }

  std::string Choose(const std::string& owner, const std::string& nonce) const {
    // The one that it holds, the one that it lost, any other; then the oldest, or of the first kind
    // and the second the first or the last by name.
    std::string held, lost, oldest;
    for (const auto& named : jobs) {
      const NaiveJob& job = named.second;
      if (job.owner != owner || job.has_ended()) continue;
      if (job.holder == nonce && held.empty()) held = named.first;
      if (!job.holder.empty() || job.desired != v1::DESIRED_RUN) continue;
      if (job.lease_ran_out && job.last_holder == nonce) lost = named.first;
      if (oldest.empty() || job.age < jobs.at(oldest).age) oldest = named.first;
    }
    return !held.empty() ? held : !lost.empty() ? lost : oldest;
  }
};

}  // namespace eps

#endif  // EPS_SERVER_JOBS_TESTING_NAIVE_BOARD_H_
