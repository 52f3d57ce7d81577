// A cut forgets the log entry of the last Trust, which another shard may still need: the lead's
// session has it.

#include <cstdint>
#include <string>
#include <variant>

#include "base/job/optimizers.h"
#include "eps/v1/log.pb.h"
#include "eps_server/core/events.h"
#include "eps_server/core/testing/core_training.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gtest/gtest.h"
#include "storage/requests.h"

namespace eps {
namespace {

// Returns the session that the effect logs; an empty one if it logs none.
v1::LoggedSession SessionIn(const Effect& effect) {
  const auto* const start = std::get_if<effect::Start>(&effect);
  if (start == nullptr) return {};
  const auto* const request = std::get_if<DurableRequest>(&start->request);
  const auto* const log = request == nullptr ? nullptr : std::get_if<LogRequest>(request);
  v1::LogFact fact;
  if (log == nullptr || !fact.ParseFromString(log->entry.text)) return {};
  return fact.session();
}

TEST(TrustSession, LeadKeepsTheLastTrust) {
  JobSpec spec = SmallDurableSpec(Clip::kExact, Mode::kSealed, "fp32");
  spec.optimizer.name = OptimizerName::kLamb;
  DurableDisks::Options of_disks;
  of_disks.shards = 2;
  of_disks.log_steps = {4, 4};
  DurableDisks disks(of_disks);
  CoreCluster::Options options = disks.ForCluster();
  uint64_t last = 0;
  bool others = false;
  options.watch = [&, watch = options.watch](ShardId shard, const Effect& effect) {
    watch(shard, effect);
    const v1::LoggedSession session = SessionIn(effect);
    if (!session.has_trust()) return;
    others |= shard != ShardId(0);
    last = session.trust().step();
  };
  CoreTraining training(spec, options);
  const absl::Status finished = training.Finish([] {});
  ASSERT_TRUE(finished.ok()) << finished;
  training.End();
  EXPECT_GE(last, spec.training.steps - 1);
  EXPECT_FALSE(others);
}

}  // namespace
}  // namespace eps
