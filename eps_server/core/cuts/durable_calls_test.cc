// Each disk call of one shard fails once, through creation (interrupted twice by a power cut),
// training, cuts, a crash, recovery and restoring. Each failure ends the shard with an error that
// reports it; a new process brings the job to the same bits.

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/extents/extents.h"
#include "storage/cuts/residual_budget.h"

namespace eps {
namespace {

using Call = SimulatedDisk::Call;
using Fault = SimulatedDisk::Fault;
using Site = SimulatedDisk::Site;

constexpr uint32_t kShards = 2;

const char* const kKinds[SimulatedDisk::kCalls] = {"create folder", "list",   "create file", "open",
                                                   "remove",        "rename", "lock",        "free",
                                                   "read",          "write",  "sync"};

// The n-th call of a kind fails.
struct Planned {
  Call call;
  uint64_t n;
  Fault fault;
};

bool TakesSpace(Call call) {
  return call == Call::kCreateFolder || call == Call::kCreateFile || call == Call::kRename ||
         call == Call::kWrite || call == Call::kSync;
}

// Labels a call with the kind of call and the kind of data, which distinguishes the callers.
std::string Label(const Site& site, uint64_t residuals_at) {
  std::string what = site.path.substr(site.path.rfind('/') + 1);
  const bool transfer = site.call == Call::kRead || site.call == Call::kWrite;
  if (absl::StartsWith(what, "slot-")) {
    what = "slot";
    if (transfer) {
      what = site.offset == 0              ? "slot: header"
             : site.offset >= residuals_at ? "slot: residuals"
             : site.bytes > kDiskBlock     ? "slot: chunk"
                                           : "slot: weights or footer";
    }
  }
  return absl::StrCat(kKinds[static_cast<int>(site.call)], " ", what);
}

// One attempt at the job. The victim loses power at two calls while its files are created, and its
// process dies in the middle of training.
class Attempt {
 public:
  struct Plan {
    ShardId victim;
    bool logs = false;           // every shard logs contributions
    std::vector<uint64_t> cuts;  // by process of the victim: the call at which power is cut
    std::vector<Planned> faults;
  };
  Attempt(const JobSpec& spec, const Plan& plan) : spec_(spec), plan_(plan) {}

  absl::Status Tell(const CoreTraining::Outcome& expected) {
    DurableDisks::Options options;
    options.shards = kShards;
    options.cut_steps = 1;
    options.log_bytes = 4096;
    if (plan_.logs) options.log_steps.assign(kShards, options.cut_steps);
    options.watch = [this](ShardId shard, const Site& site) {
      if (shard == plan_.victim) sites.push_back(site);
    };
    options.prepare = [this](ShardId shard, SimulatedDisk* disk) {
      if (shard != plan_.victim) return;
      if (!plan_.cuts.empty()) disk->CutPowerAtCall(plan_.cuts[0], 0);
      for (const Planned& p : plan_.faults) disk->FailCall(p.call, p.n, p.fault);
    };
    DurableTraining training(spec_, options, /*fetches=*/true);
    const auto between = [&] { Between(&training); };
    const absl::Status told = training.FinishAsIn(expected, between);
    ends = training.disks().ends();
    return told;
  }

  std::vector<Site> sites;  // of the victim's calls, in order
  std::vector<std::string> ends;
  uint64_t failed = 0;  // failures of the job, after each of which all processes restarted

 private:
  void Between(DurableTraining* training) {
    CoreCluster& cluster = training->cluster();
    SimulatedDisk& disk = training->disks().disk(plan_.victim);
    if (!cluster.IsUp(plan_.victim) && ++lives_ < plan_.cuts.size()) {
      disk.CutPowerAtCall(plan_.cuts[lives_], 0);
    }
    training->RestartAll();
    bool is_failed = false;
    for (uint32_t s = 0; s < kShards; ++s) {
      is_failed |=
          cluster.IsUp(ShardId(s)) && cluster.core(ShardId(s)).state() == v1::JOB_STATE_FAILED;
    }
    if (is_failed) {
      ++failed;
      for (uint32_t s = 0; s < kShards; ++s) {
        if (cluster.IsUp(ShardId(s))) cluster.Crash(ShardId(s));
      }
      return;
    }
    cluster.Run();
    const bool all_up = cluster.IsUp(ShardId(0)) && cluster.IsUp(plan_.victim);
    // A process in which a call failed must end by itself, perhaps only at its next write.
    const bool met_fault =
        std::any_of(sites.begin(), sites.end(), [](const Site& site) { return site.fails; });
    if (!crashed_ && !met_fault && all_up && cluster.Status(ShardId(0)).step() == 4) {
      crashed_ = true;
      cluster.Crash(plan_.victim);
    }
  }

  const JobSpec& spec_;
  const Plan plan_;
  size_t lives_ = 0;
  bool crashed_ = false;
};

// Returns the number of the first call with that label, counted from 1 after the first `behind`
// calls.
uint64_t Find(const std::vector<Site>& sites, const std::string& label, size_t behind) {
  for (size_t i = behind; i < sites.size(); ++i) {
    if (Label(sites[i], UINT64_MAX) == label) return i + 1 - behind;
  }
  ADD_FAILURE() << "no call to " << label;
  return 1;
}

// Every disk call of storage/testing/log_store.cc, storage/cuts/extents and storage/backends.
const char* const kAllLabels[] = {"create file gradients.eps",
                                  "create file log.new",
                                  "create file slot",
                                  "create folder catalogue",
                                  "create folder job.new",
                                  "free job.new",
                                  "list catalogue",
                                  "list job.new",
                                  "list state",
                                  "lock LOCK",
                                  "open gradients.eps",
                                  "open log",
                                  "open log.new",
                                  "open slot",
                                  "read gradients.eps",
                                  "read log",
                                  "read slot: chunk",
                                  "read slot: header",
                                  "read slot: residuals",
                                  "read slot: weights or footer",
                                  "remove job.new",
                                  "remove log.new",
                                  "remove slot",
                                  "rename job.new",
                                  "rename log.new",
                                  "sync log",
                                  "sync log.new",
                                  "sync slot",
                                  "write gradients.eps",
                                  "write log",
                                  "write log.new",
                                  "write slot: chunk",
                                  "write slot: header",
                                  "write slot: residuals"};

// Those of storage/log/contribution_log.cc.
const char* const kLabelsOfLogs[] = {"create file contributions.eps.new",
                                     "free job",
                                     "open contributions.eps",
                                     "open contributions.eps.new",
                                     "read contributions.eps",
                                     "remove contributions.eps.new",
                                     "rename contributions.eps.new",
                                     "sync contributions.eps",
                                     "sync contributions.eps.new",
                                     "write contributions.eps",
                                     "write contributions.eps.new"};

class DurableCalls : public testing::TestWithParam<std::tuple<uint32_t, bool>> {
 protected:
  DurableCalls()
      : spec_(SmallDurableSpec(Clip::kNone, Mode::kSealed, "topk:0.05")),
        expected_(UndisturbedOutcome(spec_)) {
    plan_.victim = ShardId(std::get<0>(GetParam()));
    plan_.logs = std::get<1>(GetParam());
    const ChunkMap chunks = ChunkMap::Build(spec_);
    const std::vector<ShardId> placement = chunks.Place(kShards);
    std::vector<ChunkId> owned;
    for (const Chunk& c : chunks.chunks()) {
      if (placement[c.id.value()] == plan_.victim) owned.push_back(c.id);
    }
    keeps_residuals_ = ResidualBudget(spec_, chunks, owned, /*durable=*/true) > 0;
    residuals_at_ =
        ExtentLayout(chunks, owned, /*arrays=*/3, 0, spec_.training.parts).residual_offset();
  }

  // Plans two power cuts: one while a new log is written, one while new slots are.
  void PlanCuts() {
    uint64_t before = 0;
    for (const char* at : {"write log.new", "write slot: header"}) {
      Attempt dry(spec_, plan_);
      const absl::Status told = dry.Tell(expected_);
      ASSERT_TRUE(told.ok()) << told;
      plan_.cuts.push_back(Find(dry.sites, at, before));
      before += plan_.cuts.back();
      cut_calls_.insert(before);
    }
  }

  void Fail(const Planned& planned) {
    Attempt::Plan plan = plan_;
    plan.faults = {planned};
    Attempt attempt(spec_, plan);
    const std::string name = absl::StrCat(kKinds[static_cast<int>(planned.call)], " number ",
                                          planned.n, ", fault ", static_cast<int>(planned.fault));
    const absl::Status told = attempt.Tell(expected_);
    ASSERT_TRUE(told.ok()) << name << ": " << told;
    uint64_t at = 0;  // the number of the call that failed
    for (size_t i = 0; i < attempt.sites.size(); ++i) {
      if (attempt.sites[i].fails) at = i + 1;
    }
    ASSERT_GT(at, 0u) << name << " was not made";
    ++attempts_;
    ended_ += attempt.ends.size();
    failed_ += attempt.failed;
    if (cut_calls_.count(at) > 0) return;  // power was cut during this call: no process saw it fail
    ++hits_[Label(attempt.sites[at - 1], residuals_at_)];
    ASSERT_GE(attempt.ends.size() + attempt.failed, 1u) << name;
    if (attempt.ends.empty()) return;
    EXPECT_THAT(attempt.ends.front(), testing::HasSubstr("(simulated)")) << name;
  }

  const JobSpec spec_;
  const CoreTraining::Outcome expected_;
  Attempt::Plan plan_;
  std::set<uint64_t> cut_calls_;
  bool keeps_residuals_ = false;
  uint64_t residuals_at_ = 0;
  uint64_t attempts_ = 0, ended_ = 0, failed_ = 0;
  std::map<std::string, uint64_t> hits_;
};

TEST_P(DurableCalls, FailedCallsEndTheShardWithoutLoss) {
  ASSERT_NO_FATAL_FAILURE(PlanCuts());
  Attempt good(spec_, plan_);
  const absl::Status undisturbed = good.Tell(expected_);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed;
  EXPECT_TRUE(good.ends.empty()) << good.ends.front();
  std::map<Call, uint64_t> calls;
  for (const Site& site : good.sites) ++calls[site.call];
  for (const auto& [call, count] : calls) {
    for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kShortWrite}) {
      if (fault == Fault::kShortWrite && call != Call::kWrite) continue;
      if (fault == Fault::kNoSpace && !TakesSpace(call)) continue;
      for (uint64_t n = 1; n <= count; ++n) {
        ASSERT_NO_FATAL_FAILURE(Fail({call, n, fault}));
      }
    }
  }
  std::printf("shard %u%s: %lu attempts, %lu processes ended, %lu jobs failed; failures by call:\n",
              plan_.victim.value(), plan_.logs ? " with a log" : "", attempts_, ended_, failed_);
  std::set<std::string> labels;
  for (const auto& [label, count] : hits_) {
    std::printf("  %5lu %s\n", count, label.c_str());
    labels.insert(label);
  }
  std::set<std::string> all(std::begin(kAllLabels), std::end(kAllLabels));
  if (plan_.logs) all.insert(std::begin(kLabelsOfLogs), std::end(kLabelsOfLogs));
  if (!keeps_residuals_) {
    all.erase("read slot: residuals");
    all.erase("write slot: residuals");
  }
  EXPECT_EQ(labels, all);
}

TEST(DurableCallsOfAllShards, IncludeCallsForResiduals) {
  const JobSpec spec = SmallDurableSpec(Clip::kNone, Mode::kSealed, "topk:0.05");
  const ChunkMap chunks = ChunkMap::Build(spec);
  std::vector<ChunkId> all;
  for (const Chunk& c : chunks.chunks()) all.push_back(c.id);
  EXPECT_GT(ResidualBudget(spec, chunks, all, /*durable=*/true), 0u);
}

INSTANTIATE_TEST_SUITE_P(Victims, DurableCalls,
                         testing::Combine(testing::Values(0u, 1u), testing::Bool()));

}  // namespace
}  // namespace eps
