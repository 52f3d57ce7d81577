#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"
#include "storage/testing/backend_harness.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

class Shard {
 public:
  explicit Shard(const JobSpec& spec, uint64_t limit = MemoryAccount::kNoLimit)
      : spec_(spec), chunks_(ChunkMap::Build(spec_)), account_(limit), pool_(1) {
    std::vector<ChunkId> owned;
    for (const Chunk& c : chunks_.chunks()) owned.push_back(c.id);
    auto backend = NewDramBackend(spec_, chunks_, owned, &pool_, &account_, completions_.Sink());
    status_ = backend.status();
    if (backend.ok()) backend_ = std::move(*backend);
  }

  const absl::Status& status() const { return status_; }
  const JobSpec& spec() const { return spec_; }
  MemoryAccount& account() { return account_; }
  void DropBackend() { backend_.reset(); }

  void InitializeAll() {
    for (const Chunk& c : chunks_.chunks()) {
      const OpId op = completions_.Next();
      backend_->Submit(op, InitializeRequest{c.id});
      EXPECT_TRUE(completions_.Take(op).status.ok());
    }
  }

 private:
  const JobSpec spec_;
  const ChunkMap chunks_;
  MemoryAccount account_;
  Completions completions_;
  ThreadPool pool_;
  absl::Status status_;
  std::unique_ptr<StateBackend> backend_;
};

TEST(Memory, IsExactlyTwelveBytesPerParameter) {
  Shard shard(RaggedSpec());
  const uint64_t state_bytes = 12 * shard.spec().total_elements();
  EXPECT_EQ(shard.account().live_bytes(), state_bytes);
  EXPECT_EQ(shard.account().live_bytes(MemoryKind::kState), state_bytes);
  shard.InitializeAll();
  EXPECT_EQ(shard.account().live_bytes(), state_bytes);
  shard.DropBackend();
  EXPECT_EQ(shard.account().live_bytes(), 0u);
}

TEST(Memory, MatchesTheFieldsOfTheRule) {
  for (const double momentum : {0.0, 0.9}) {
    JobSpec spec = RaggedSpec();
    spec.optimizer.name = OptimizerName::kSgd;
    spec.optimizer.momentum = momentum;
    Shard shard(spec);
    EXPECT_EQ(shard.account().live_bytes(), (momentum > 0 ? 8 : 4) * spec.total_elements());
  }
}

TEST(Memory, RefusalNamesTheFiguresAndTheKey) {
  const JobSpec spec = RaggedSpec();
  const uint64_t state_bytes = 12 * spec.total_elements();
  Shard enough(spec, state_bytes);
  EXPECT_TRUE(enough.status().ok()) << enough.status();
  Shard short_by_one(spec, state_bytes - 1);
  EXPECT_EQ(short_by_one.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(short_by_one.status().message());
  EXPECT_THAT(message, HasSubstr(std::to_string(state_bytes) + " bytes wanted, 0 in use, limit " +
                                 std::to_string(state_bytes - 1)));
  EXPECT_THAT(message, HasSubstr(std::to_string(spec.total_elements()) + " parameters"));
  EXPECT_THAT(message, HasSubstr("servers.memory_limit"));
  EXPECT_EQ(short_by_one.account().live_bytes(), 0u);
}

}  // namespace
}  // namespace eps
