// Random requests, crashes and restarts: after each one the board, its records and its watchers are
// compared with a naive board.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eps_server/jobs/board_store.h"
#include "eps_server/jobs/job_board.h"
#include "eps_server/jobs/testing/board_requests.h"
#include "eps_server/jobs/testing/naive_board.h"
#include "gtest/gtest.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

constexpr int kRequests = 100'000;
constexpr int kNames = 8;
constexpr int kDrivers = 5;

// A client that lists the jobs and then follows the changes.
struct Follower {
  std::map<std::string, uint64_t> revisions;  // of the jobs that it knows
  uint64_t revision = 0;
};

// A driver's view: it may write until its lease is over by its own clock.
struct Belief {
  uint64_t generation = 0;
  int64_t until_ms = 0;
};

// One run of the board beside the naive one.
class BoardModel {
 public:
  explicit BoardModel(uint32_t seed) : random_(seed) { Open(); }

  void Step() {
    naive_.now_ms += Below(20) == 0 ? Below(40'000) : Below(3'000);
    EndLeases();
    const uint64_t kind = Below(100);
    if (kind < 12) {
      Submit();
    } else if (kind < 27) {
      Update();
    } else if (kind < 37) {
      Remove();
    } else if (kind < 57) {
      Claim();
    } else if (kind < 99) {
      Report();
    } else {
      Open();
      naive_.Restart();
    }
    Compare();
    if (Below(4) == 0) Follow(&followers_[Below(followers_.size())]);
  }
  uint64_t revision() const { return naive_.changes.size(); }
  size_t crashes() const { return crashes_; }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  std::string Name() { return absl::StrCat("job-", Below(kNames)); }
  std::string Config() { return Below(8) == 0 ? "b: 2\n" : "a: 1\n"; }
  std::string Owner() { return Below(5) == 0 ? "me" : ""; }
  v1::Job JobNamed(const std::string& name) {
    const v1::ListJobsReply reply = board_->List(ListOf(name));
    v1::Job job;
    job.set_name(name);
    return reply.jobs().empty() ? job : reply.jobs(0);
  }

  // Starts a process, whose clock may show anything, on the records.
  void Open() {
    ++crashes_;
    const int64_t before = naive_.now_ms;
    naive_.now_ms = static_cast<int64_t>(Below(1'000'000));
    auto board = BoardStore(&records_).Read(4711, naive_.now_ms);
    ASSERT_TRUE(board.ok()) << board.status();
    board_ = *std::move(board);
    // The drivers' clocks go on.
    for (auto& belief : beliefs_) belief.second.until_ms += naive_.now_ms - before;
  }

  // Carries a plan out as the desk does. A process may die on either side of the write; the caller
  // then sends its request again.
  absl::StatusOr<v1::Job> Take(const std::function<absl::StatusOr<BoardPlan>()>& make) {
    for (;;) {
      const absl::StatusOr<BoardPlan> plan = make();
      if (!plan.ok()) return plan.status();
      const bool dies = plan->durable && Below(150) == 0;
      const bool writes = !dies || Below(2) == 0;
      if (writes) {
        EXPECT_TRUE(BoardStore(&records_).Write(*plan).ok());
      }
      if (!dies) {
        board_->Commit(*plan, naive_.now_ms);
        return plan->record.job;
      }
      const int64_t now = naive_.now_ms;
      auto board = BoardStore(&records_).Read(4711, now);
      EXPECT_TRUE(board.ok()) << board.status();
      board_ = *std::move(board);
      ++crashes_;
      naive_.Restart();
      if (writes && plan->removes) return v1::Job();
      if (writes && !plan->removes) return plan->record.job;
    }
  }

  void EndLeases() {
    naive_.EndLeases();
    while (const auto plan = board_->Expired(naive_.now_ms)) {
      ASSERT_TRUE(BoardStore(&records_).Write(*plan).ok());
      board_->Commit(*plan, naive_.now_ms);
    }
  }

  void Submit() {
    v1::SubmitJobRequest request = SubmitOf(Name(), Config());
    request.set_owner(Owner());
    if (Below(4) == 0) request.set_desired(v1::DESIRED_PAUSE);
    const uint64_t uid = ++uid_;
    const auto job = Take([&] { return board_->Submit(request, uid, 5); });
    EXPECT_EQ(job.status().code(), naive_.Submit(request, uid)) << request.DebugString();
  }

  void Update() {
    v1::UpdateJobRequest request =
        UpdateOf(JobNamed(Name()), static_cast<v1::Desired>(1 + Below(5) % 3));
    if (Below(8) == 0) request.set_expected_generation(request.expected_generation() + 1);
    const auto job = Take([&] { return board_->Update(request); });
    EXPECT_EQ(job.status().code(), naive_.Update(request)) << request.DebugString();
  }

  void Remove() {
    const std::string name = Name();
    const auto job = Take([&] { return board_->Remove(RemoveOf(name)); });
    EXPECT_EQ(job.status().code(), naive_.Remove(name)) << name;
  }

  void Claim() {
    const int driver = static_cast<int>(Below(kDrivers));
    v1::ClaimJobRequest request = ClaimOf(driver, Below(2) == 0 ? Name() : "");
    request.set_owner(Owner());
    const auto job = Take([&] { return board_->Claim(request); });
    std::string claimed;
    ASSERT_EQ(job.status().code(), naive_.Claim(request, &claimed)) << request.DebugString();
    if (!job.ok()) return;
    ASSERT_EQ(job->name(), claimed);
    Believe(driver, *job);
  }

  // Notes that the driver may write, and that no other one may.
  void Believe(int driver, const v1::Job& job) {
    for (int other = 0; other < kDrivers; ++other) {
      if (other == driver) continue;
      const auto found = beliefs_.find({job.uid(), other});
      if (found == beliefs_.end()) continue;
      EXPECT_LE(found->second.until_ms, naive_.now_ms)
          << "drivers " << driver << " and " << other << " both have " << job.name();
      EXPECT_LT(found->second.generation, job.driver().generation());
    }
    beliefs_[{job.uid(), driver}] = {job.driver().generation(), naive_.now_ms + JobBoard::kLeaseMs};
  }

  void Report() {
    const v1::Job job = JobNamed(Name());
    v1::ReportJobRequest request = ReportOf(
        job, Below(2) == 0 ? v1::JOB_PHASE_UNSPECIFIED : static_cast<v1::JobPhase>(1 + Below(7)));
    int driver = static_cast<int>(Below(kDrivers));
    if (Below(8) != 0) {
      for (int d = 0; d < kDrivers; ++d) {
        const std::string nonce = NonceOf(d);
        if (nonce == job.driver().driver_nonce()) driver = d;
      }
    }
    request.set_driver_nonce(NonceOf(driver));
    if (Below(20) == 0) request.set_uid(request.uid() + 1);
    if (Below(20) == 0) request.set_lease_generation(request.lease_generation() + 1);
    if (Below(2) == 0) request.mutable_progress()->set_step(Below(1000));
    if (Below(4) == 0) {
      const uint64_t step = 1 + Below(100);
      request.mutable_progress()->set_checkpoint_step(step);
      request.mutable_progress()->set_checkpoint(absl::StrCat("/out/", step));
    }
    if (Below(10) == 0) request.set_job_id(1 + Below(2));
    request.set_ended(Below(5) == 0 || request.phase() == v1::JOB_PHASE_QUEUED);
    if (request.phase() == v1::JOB_PHASE_FAILED) {
      const uint32_t codes[] = {1, 65, 69, 70, 74, 75, 143};
      request.mutable_result()->set_exit_code(codes[Below(7)]);
    }
    const auto reported = Take([&] { return board_->Report(request); });
    ASSERT_EQ(reported.status().code(), naive_.Report(request))
        << request.DebugString() << job.DebugString();
    if (!reported.ok()) return;
    if (reported->driver().driver_nonce() == NonceOf(driver)) {
      Believe(driver, *reported);
    } else {
      beliefs_.erase({job.uid(), driver});
    }
  }

  void Compare() {
    const v1::ListJobsReply all = board_->List(ListOf());
    ASSERT_EQ(all.revision(), naive_.changes.size());
    ASSERT_EQ(static_cast<size_t>(all.jobs_size()), naive_.jobs.size());
    auto expected = naive_.jobs.begin();
    for (const v1::Job& job : all.jobs()) {
      const NaiveJob& naive = expected->second;
      const bool same =
          job.name() == expected->first && job.uid() == naive.uid && job.owner() == naive.owner &&
          job.config() == naive.config && job.desired() == naive.desired &&
          job.phase() == naive.phase && job.generation() == naive.generation &&
          job.driver().driver_nonce() == naive.holder &&
          job.driver().generation() == naive.lease_generation && job.job_id() == naive.job_id &&
          job.progress().checkpoint_step() == naive.checkpoint &&
          job.result().exit_code() == naive.exit_code && job.revision() == naive.revision;
      ASSERT_TRUE(same) << job.DebugString() << "expected phase " << naive.phase << ", holder "
                        << naive.holder << ", revision " << naive.revision;
      ++expected;
    }
  }

  // Takes some of the changes, or lists again if they are gone; the jobs that the client then knows
  // are those of that revision.
  void Follow(Follower* follower) {
    if (!board_->CheckWatch(4711, follower->revision).ok()) {
      const v1::ListJobsReply all = board_->List(ListOf());
      follower->revision = all.revision();
      follower->revisions.clear();
      for (const v1::Job& job : all.jobs()) follower->revisions[job.name()] = job.revision();
      return;
    }
    for (uint64_t n = Below(50); n > 0; --n) {
      const JobBoard::Event event = board_->NextEvent(follower->revision);
      if (event == nullptr) break;
      ASSERT_EQ(event->revision(), ++follower->revision);
      const NaiveBoard::Change& change = naive_.changes[event->revision() - 1];
      ASSERT_EQ(event->job().name(), change.name);
      ASSERT_EQ(event->kind() == v1::JobEvent::KIND_REMOVED, change.removed);
      if (change.removed) {
        ASSERT_EQ(follower->revisions.erase(change.name), 1u);
      } else {
        ASSERT_EQ(event->job().revision(), event->revision());
        follower->revisions[change.name] = event->revision();
      }
    }
    if (follower->revision != naive_.changes.size()) return;
    std::map<std::string, uint64_t> expected;
    for (const auto& job : naive_.jobs) expected[job.first] = job.second.revision;
    ASSERT_EQ(follower->revisions, expected);
  }

  std::mt19937 random_;
  MapStore records_;
  std::unique_ptr<JobBoard> board_;
  NaiveBoard naive_;
  std::vector<Follower> followers_{3};
  std::map<std::pair<uint64_t, int>, Belief> beliefs_;  // by uid and driver
  uint64_t uid_ = 0;
  size_t crashes_ = 0;
};

TEST(BoardModel, EqualsTheNaiveBoard) {
  BoardModel model(20261126);
  for (int i = 0; i < kRequests; ++i) {
    model.Step();
    ASSERT_FALSE(testing::Test::HasFailure()) << "after request " << i;
  }
  EXPECT_GT(model.revision(), 20'000u);
  EXPECT_GT(model.crashes(), 500u);
}

}  // namespace
}  // namespace eps
