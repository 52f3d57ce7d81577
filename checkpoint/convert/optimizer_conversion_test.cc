#include "checkpoint/convert/optimizer_conversion.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/config/config.h"
#include "checkpoint/testing/job_states.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using testing::HasSubstr;

std::vector<float> FloatsOf(const JobState& state, const Chunk& chunk) {
  const absl::StatusOr<ChunkState> bytes = state.ReadChunk(chunk.id);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  std::vector<float> floats(bytes->size() / sizeof(float));
  std::memcpy(floats.data(), bytes->data(), bytes->size());
  return floats;
}

class OptimizerConversionTest : public JobStateTest {
 protected:
  // A state of the optimizer with its defaults, changed by `change`.
  static std::unique_ptr<JobState> StateOf(OptimizerName name,
                                           const std::function<void(OptimizerSpec*)>& change = {}) {
    JobStateHead head = HeadOf();
    static_cast<OptimizerSettings&>(head.spec.optimizer) = DefaultsOf(name);
    head.spec.optimizer.lr = 0.1;
    if (change) change(&head.spec.optimizer);
    return std::make_unique<MemoryState>(std::move(head));
  }
  // Converts, and checks that the weights and each field are as `expected` says: a function of the
  // field (0 are the weights) and of the old values at an element's place.
  static void ExpectFields(
      std::unique_ptr<JobState> from, OptimizerName to, bool reset,
      const std::function<float(size_t, const std::vector<float>&)>& expected) {
    std::vector<std::vector<float>> old;
    const ChunkMap chunks = from->chunks();
    for (const Chunk& chunk : chunks.chunks()) old.push_back(FloatsOf(*from, chunk));
    const auto converted = ConvertOptimizer(std::move(from), {to, reset});
    ASSERT_TRUE(converted.ok()) << converted.status();
    const size_t fields = StateFields((*converted)->head().spec.optimizer).size();
    for (const Chunk& chunk : chunks.chunks()) {
      const std::vector<float>& before = old[chunk.id.value()];
      const std::vector<float> after = FloatsOf(**converted, chunk);
      ASSERT_EQ(after.size(), (1 + fields) * chunk.elements);
      for (size_t e = 0; e < chunk.elements; ++e) {
        std::vector<float> at_element;
        for (size_t at = e; at < before.size(); at += chunk.elements) {
          at_element.push_back(before[at]);
        }
        for (size_t field = 0; field <= fields; ++field) {
          const float found = after[field * chunk.elements + e];
          const float wanted = expected(field, at_element);
          ASSERT_TRUE(found == wanted || (std::isnan(found) && std::isnan(wanted)))
              << "field " << field << " of chunk " << chunk.id << ": " << found << ", " << wanted;
        }
      }
    }
  }
};

TEST_F(OptimizerConversionTest, AdamAndAdamWShareTheirState) {
  const auto same = [](size_t field, const std::vector<float>& old) { return old[field]; };
  ExpectFields(StateOf(OptimizerName::kAdamW), OptimizerName::kAdam, false, same);
  ExpectFields(StateOf(OptimizerName::kAdam), OptimizerName::kAdamW, false, same);
  ExpectFields(StateOf(OptimizerName::kAdagrad), OptimizerName::kAdagradSmartInfinity, false, same);
  ExpectFields(StateOf(OptimizerName::kLamb), OptimizerName::kAdamW, false, same);
}

TEST_F(OptimizerConversionTest, LambNeedsModeSealed) {
  JobStateHead head = HeadOf();
  head.spec.training.mode = Mode::kEager;
  const auto converted = ConvertOptimizer(std::make_unique<MemoryState>(std::move(head)),
                                          {OptimizerName::kLamb, false});
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ((*converted)->head().spec.optimizer.name, OptimizerName::kLamb);
  EXPECT_EQ((*converted)->head().spec.training.mode, Mode::kSealed);
  Config config;
  ASSERT_TRUE(config.MergeYaml((*converted)->head().config, "config").ok());
  EXPECT_EQ(config.training.mode, Mode::kSealed);
}

TEST_F(OptimizerConversionTest, RootsOfTheSecondMoment) {
  ExpectFields(StateOf(OptimizerName::kAdamW), OptimizerName::kAdamWSqrtV, false,
               [](size_t field, const std::vector<float>& old) {
                 return field == 2 ? std::sqrt(old[2]) : old[field];
               });
  ExpectFields(StateOf(OptimizerName::kAdamWSqrtV), OptimizerName::kAdam, false,
               [](size_t field, const std::vector<float>& old) {
                 return field == 2 ? old[2] * old[2] : old[field];
               });
}

TEST_F(OptimizerConversionTest, MomentumKeepsEachStep) {
  const auto sgd = [](OptimizerSpec* spec) {
    spec->momentum = 0.75;
    spec->dampening = 0.5;
  };
  const auto scaled_by = [](float scale) {
    return [scale](size_t field, const std::vector<float>& old) {
      return field == 1 ? old[1] * scale : old[field];
    };
  };
  ExpectFields(StateOf(OptimizerName::kSgd, sgd), OptimizerName::kSgdSmartInfinity, false,
               scaled_by(0.5f));
  const auto there = ConvertOptimizer(StateOf(OptimizerName::kSgd, sgd),
                                      {OptimizerName::kSgdSmartInfinity, false});
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ((*there)->head().spec.optimizer.lr, 0.2);
  EXPECT_EQ((*there)->head().spec.optimizer.momentum, 0.75);
  // Back, to SGD without dampening.
  const auto heavy = [](OptimizerSpec* spec) { spec->momentum = 0.75; };
  ExpectFields(StateOf(OptimizerName::kSgdSmartInfinity, heavy), OptimizerName::kSgd, false,
               scaled_by(4));
}

TEST_F(OptimizerConversionTest, ResetBeginsAnew) {
  ExpectFields(
      StateOf(OptimizerName::kAdamW), OptimizerName::kLion, true,
      [](size_t field, const std::vector<float>& old) { return field == 0 ? old[0] : 0.0f; });
  // More fields than before.
  ExpectFields(
      StateOf(OptimizerName::kLion), OptimizerName::kAdam, true,
      [](size_t field, const std::vector<float>& old) { return field == 0 ? old[0] : 0.0f; });
  const auto reset = ConvertOptimizer(StateOf(OptimizerName::kAdamW), {OptimizerName::kLion, true});
  ASSERT_TRUE(reset.ok()) << reset.status();
  EXPECT_EQ((*reset)->head().border.update, 0u);
  EXPECT_EQ((*reset)->head().border.id.step, Step(7));
  EXPECT_EQ((*reset)->head().spec.optimizer.beta2, 0.99) << "Lion's default";
}

TEST_F(OptimizerConversionTest, SavesACheckpointOfTheNewJob) {
  const auto change = [](OptimizerSpec* spec) { spec->beta2 = 0.95; };
  const auto converted =
      ConvertOptimizer(StateOf(OptimizerName::kAdamW, change), {OptimizerName::kAdam, false});
  ASSERT_TRUE(converted.ok()) << converted.status();
  const auto saved = SaveCheckpoint(**converted, Path("out"));
  ASSERT_TRUE(saved.ok()) << saved.status();
  const auto read = OpenCheckpointState(*saved);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->head().spec.optimizer.name, OptimizerName::kAdam);
  EXPECT_EQ((*read)->head().border.update, 6u);
  EXPECT_EQ((*read)->head().records.size(), 7u);
  Config config;
  ASSERT_TRUE(config.MergeYaml((*read)->head().config, "saved").ok());
  EXPECT_EQ(config.optimizer.name, OptimizerName::kAdam);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.training.eval_steps, 3u);
  const std::vector<ChunkId> all = (*read)->ChunksOf(ShardId(0), 1);
  // A residual that was never written is zero in a checkpoint.
  std::map<std::tuple<ChunkId, StageId, PartId>, std::string> residuals;
  const auto read_residuals = (*read)->ReadResiduals(all);
  ASSERT_TRUE(read_residuals.ok()) << read_residuals.status();
  for (const CutResidual& r : *read_residuals) {
    residuals[{r.chunk, r.use, r.part}] = std::string(r.bytes.view());
  }
  const std::vector<CutResidual> expected = *(*converted)->ReadResiduals(all);
  EXPECT_FALSE(expected.empty());
  for (const CutResidual& r : expected) {
    EXPECT_TRUE((residuals[{r.chunk, r.use, r.part}]) == r.bytes.view()) << "chunk " << r.chunk;
  }
}

TEST_F(OptimizerConversionTest, LeavesAPluginOnlyWithZeros) {
  const auto plugin = [](OptimizerSpec* spec) {
    spec->plugin = {"rmsprop", std::string(64, 'a'), {"square_avg"}, {}};
  };
  ExpectFields(
      StateOf(OptimizerName::kPlugin, plugin), OptimizerName::kAdamW, true,
      [](size_t field, const std::vector<float>& old) { return field == 0 ? old[0] : 0.0f; });
  absl::Status status =
      ConvertOptimizer(StateOf(OptimizerName::kPlugin, plugin), {OptimizerName::kAdamW, false})
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  status =
      ConvertOptimizer(StateOf(OptimizerName::kAdamW), {OptimizerName::kPlugin, true}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no state is converted to"));
}

TEST_F(OptimizerConversionTest, RefusesWhatItWouldSpoil) {
  const auto refusal = [](std::unique_ptr<JobState> from, OptimizerName to) {
    return ConvertOptimizer(std::move(from), {to, false}).status();
  };
  absl::Status status = refusal(StateOf(OptimizerName::kAdamW), OptimizerName::kLion);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("from adamw to lion; --reset-state"));
  status = refusal(StateOf(OptimizerName::kAdamW), OptimizerName::kAdamW);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  const auto nesterov = [](OptimizerSpec* spec) {
    spec->momentum = 0.9;
    spec->nesterov = true;
  };
  status = refusal(StateOf(OptimizerName::kSgd, nesterov), OptimizerName::kSgdSmartInfinity);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

}  // namespace
}  // namespace eps
