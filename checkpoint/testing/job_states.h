#ifndef EPS_CHECKPOINT_TESTING_JOB_STATES_H_
#define EPS_CHECKPOINT_TESTING_JOB_STATES_H_

// States of a few chunks for tests, in memory and in folders of servers.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/test_specs.h"
#include "checkpoint/job_state.h"
#include "checkpoint/state_folder.h"
#include "compression/codec.h"
#include "eps/v1/types.pb.h"
#include "gtest/gtest.h"

namespace eps {

// A small GPT-2 with sparse gradients, so that a state has residuals.
inline JobSpec SpecOf(uint64_t seed) {
  JobSpec spec = TinyGpt2Spec();
  spec.codecs.gradients = "topk:0.1";
  spec.codecs.embedding.gradients = "topk:0.1";
  spec.training.seed = seed;
  return spec;
}

// A state that a seed stands for, in memory.
class MemoryState final : public JobState {
 public:
  explicit MemoryState(JobStateHead head) : JobState(std::move(head)) {}

  static std::vector<float> Floats(uint64_t seed, size_t count) {
    std::vector<float> floats(count);
    for (float& value : floats) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<float>(static_cast<int64_t>(seed) >> 40) / 4096;
    }
    return floats;
  }
  absl::StatusOr<ChunkState> ReadChunk(ChunkId id) const override {
    const size_t bytes = StateBytes(head().spec, chunks().chunk(id));
    const std::vector<float> floats = Floats(id.value(), bytes / sizeof(float));
    return ChunkState(reinterpret_cast<const char*>(floats.data()), bytes);
  }
  absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>& wanted) const override {
    std::vector<CutResidual> residuals;
    for (const ChunkId id : wanted) {
      const Chunk& chunk = chunks().chunk(id);
      // Those of vectors travel as they are; of every third part nothing was left out.
      if (head().spec.tensors[chunk.segments[0].tensor.value()].rank == 1) continue;
      for (const StageId use : chunk.uses) {
        for (uint32_t part = 0; part < head().spec.training.parts; ++part) {
          const uint64_t seed = (id.value() * 16 + use.value()) * 16 + part;
          if (seed % 3 == 0) continue;
          const std::vector<float> floats = Floats(seed, chunk.elements);
          residuals.push_back({id, use, PartId(part),
                               EncodeChunk(**FindCodec(head().spec.codecs.residual), chunk,
                                           EncodeOptions(), floats.data())});
        }
      }
    }
    return residuals;
  }
};

// A folder for the states of one test, which is removed after it.
class JobStateTest : public testing::Test {
 protected:
  JobStateTest() {
    root_ =
        absl::StrCat(testing::TempDir(), "/state-",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), "-", getpid());
    root_ = std::filesystem::path(root_).lexically_normal().string();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~JobStateTest() override { std::filesystem::remove_all(root_); }

  static JobStateHead HeadOf(uint64_t seed = 1) {
    JobStateHead head;
    head.spec = SpecOf(seed);
    head.border.id = {Step(7), Term(3)};
    head.border.version = Version(6);
    head.border.update = 6;
    head.border.lagged_norm = 0.1;
    head.promised = Term(5);
    head.servers = 2;
    head.config = "training:\n  eval_steps: 3\n";
    for (uint64_t step = 1; step <= 7; ++step) {
      v1::StepRecord record;
      record.set_step(step);
      record.set_loss(1.0 / static_cast<double>(step));
      head.records.push_back(record.SerializeAsString());
    }
    return head;
  }

  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  // Writes the state of so many servers below the test's folder.
  void Write(const JobState& state, uint32_t servers, const std::string& name) const {
    const absl::Status status = WriteStateFolder(state, servers, Path(name));
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::StatusOr<std::unique_ptr<StateFolder>> Open(const std::string& name) const {
    return StateFolder::Open(Path(name));
  }
  // The error of taking the youngest cut and reading all of it.
  absl::Status Read(const std::string& name, std::optional<JobId> job = std::nullopt) const {
    const auto folder = Open(name);
    if (!folder.ok()) return folder.status();
    const auto state = (*folder)->OpenCut(job);
    if (!state.ok()) return state.status();
    std::vector<ChunkId> all;
    for (const Chunk& chunk : (*state)->chunks().chunks()) {
      all.push_back(chunk.id);
      if (const auto content = (*state)->ReadChunk(chunk.id); !content.ok())
        return content.status();
    }
    return (*state)->ReadResiduals(all).status();
  }
  // The path of a slot of the job with seed 1.
  std::string Slot(const std::string& name, uint32_t server, uint32_t slot) const {
    return absl::StrCat(Path(name), "/server-", server, "/job-",
                        absl::Hex(SpecOf(1).id().value(), absl::kZeroPad16), "/slot-", slot,
                        ".eps");
  }
  // Flips one bit of the byte at `offset`.
  static void Flip(const std::string& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 4));
    ASSERT_TRUE(file.good());
  }

  std::string root_;
};

// Residuals by chunk, use and part.
using Places = std::map<std::tuple<ChunkId, StageId, PartId>, std::string>;
// All residuals of a state that are not empty.
inline Places ResidualsOf(const JobState& state) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : state.chunks().chunks()) all.push_back(chunk.id);
  const auto residuals = state.ReadResiduals(all);
  EXPECT_TRUE(residuals.ok()) << residuals.status();
  Places places;
  for (const CutResidual& residual : *residuals) {
    if (residual.bytes.empty()) continue;  // nothing was left out
    EXPECT_TRUE(places
                    .emplace(std::make_tuple(residual.chunk, residual.use, residual.part),
                             residual.bytes.view())
                    .second);
  }
  return places;
}

// Expects the same job, border, records, state and residuals.
inline void ExpectSame(const JobState& found, const JobState& expected) {
  const JobStateHead& a = found.head();
  const JobStateHead& b = expected.head();
  EXPECT_EQ(a.spec.ToText(), b.spec.ToText());
  EXPECT_EQ(a.border.id, b.border.id);
  EXPECT_EQ(a.border.version, b.border.version);
  EXPECT_EQ(a.border.update, b.border.update);
  EXPECT_EQ(a.border.lagged_norm, b.border.lagged_norm);
  EXPECT_TRUE(a.records == b.records);
  for (const Chunk& chunk : expected.chunks().chunks()) {
    EXPECT_TRUE(*found.ReadChunk(chunk.id) == *expected.ReadChunk(chunk.id)) << chunk.id;
  }
  const Places residuals = ResidualsOf(expected);
  EXPECT_GT(residuals.size(), 10u);
  EXPECT_TRUE(ResidualsOf(found) == residuals);
}

}  // namespace eps

#endif  // EPS_CHECKPOINT_TESTING_JOB_STATES_H_
