// JobBoard: answers about all jobs, for other parts of the server.

#include <map>
#include <utility>
#include <vector>

#include "eps_server/jobs/job_board.h"
#include "eps_server/jobs/job_rules.h"
#include "wire/job_terms.h"

namespace eps {

BoardCounts JobBoard::Counts() const {
  BoardCounts counts;
  for (const auto& entry : jobs_) {
    const v1::Job& job = entry.second.record.job;
    ++counts.phases[job.phase()];
    if (HasEnded(job.phase())) continue;
    const bool driven = !job.driver().driver_nonce().empty();
    if (driven) ++counts.driven;
    if (!driven && job.desired() == v1::DESIRED_RUN) ++counts.undriven;
  }
  return counts;
}

const v1::Job* JobBoard::FindOrNull(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : &found->second.record.job;
}

std::vector<BoardJob> JobBoard::Standings() const {
  std::vector<BoardJob> standings;
  for (const auto& entry : jobs_) {
    const v1::Job& job = entry.second.record.job;
    if (job.driver().generation() == 0) continue;
    JobStanding standing = JobStanding::kHeld;
    if (!job.driver().driver_nonce().empty()) {
      standing = JobStanding::kDriven;
    } else if (WaitsForDriver(job)) {
      standing = JobStanding::kUndriven;
    }
    standings.push_back({job.job_id(),
                         {head_.board, job.driver().generation()},
                         standing,
                         job.workers_wanted(),
                         {job.name(), job.uid()}});
  }
  return standings;
}

std::vector<v1::LeftJob> JobBoard::LeftJobs() const {
  std::map<uint64_t, v1::LeftJob> left;
  for (const uint64_t id : head_.removed) left[id].set_job_id(id);
  for (const auto& entry : jobs_) {
    const v1::Job& job = entry.second.record.job;
    if (job.job_id() == 0 || !HasEnded(job.phase())) continue;
    v1::LeftJob& one = left[job.job_id()];
    one.set_job_id(job.job_id());
    one.set_keep_state(one.keep_state() || MayRunAgain(job));
  }
  // Jobs of equal configurations have one id, and one of them may be in work.
  for (const auto& entry : jobs_) {
    const v1::Job& job = entry.second.record.job;
    if (!HasEnded(job.phase())) left.erase(job.job_id());
  }
  std::vector<v1::LeftJob> all;
  for (auto& one : left) all.push_back(std::move(one.second));
  return all;
}

}  // namespace eps
