// One bit flips in one of the files that a cluster leaves; wrong data is never served or trained
// on. Either the bit does not matter, or the state exists elsewhere, and the job ends with the same
// bits as ever; or a process ends and names the file and the offset. base/testing/flips.h describes
// the long modes.

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing/flips.h"
#include "base/testing/tally.h"
#include "eps_server/core/testing/durable_cluster.h"
#include "gtest/gtest.h"
#include "storage/disk/block_bytes.h"
#include "storage/log/log_format.h"

namespace eps {
namespace {

constexpr uint32_t kShards = 2;

DurableDisks::Options OptionsOf(bool logs) {
  DurableDisks::Options options;
  options.shards = kShards;
  if (logs) options.log_steps.assign(kShards, options.cut_steps);
  return options;
}

// The files of a cluster that was stopped during training.
struct Left {
  JobSpec spec = SmallDurableSpec(Clip::kNone, Mode::kSealed, "topk:0.05");
  CoreTraining::Outcome expected = UndisturbedOutcome(spec);
  std::vector<DurableDisks::Image> images;

  Left(uint64_t stop_at, bool logs) {
    DurableDisks::Options options = OptionsOf(logs);
    DurableTraining training(spec, options, /*fetches=*/false);
    int pushes = 0;  // of the step in which the cluster stops
    const auto between = [&] {
      CoreCluster& cluster = training.cluster();
      cluster.RunSome(100);
      const bool is_up = cluster.IsUp(ShardId(0));
      if (!is_up || cluster.Status(ShardId(0)).step() < stop_at || ++pushes < 8) return;
      for (uint32_t s = 0; s < kShards; ++s) cluster.Crash(ShardId(s));
    };
    EXPECT_FALSE(training.Finish(between, 200).ok()) << "the job was not stopped";
    for (uint32_t s = 0; s < kShards; ++s) {
      training.disks().disk(ShardId(s)).PowerOn();
      images.push_back(training.disks().Contents(ShardId(s)));
    }
  }
};

const Left& WhatIsLeft(uint64_t stop_at, bool logs) {
  static auto* const all = new std::map<std::pair<uint64_t, bool>, Left>();
  const std::pair<uint64_t, bool> key(stop_at, logs);
  const auto found = all->find(key);
  if (found != all->end()) return found->second;
  return all->emplace(key, Left(stop_at, logs)).first->second;
}

// Returns the offset of the log's last frame. A flip in it looks like an interrupted write, and the
// log is valid without that frame.
uint64_t LastFrame(const std::string& log) {
  const std::string magic = log.substr(0, 8);
  uint64_t last = 0;
  for (uint64_t at = 0; at + 8 <= log.size(); at += kDiskBlock) {
    if (log.compare(at, 8, magic) == 0) last = at;
  }
  return last;
}

struct Batch {
  uint64_t term = 0;
  uint64_t position = 0;
  uint64_t offset = 0;
};

// Returns the batches of a contribution log, in the order of their offsets.
std::vector<Batch> BatchesOf(const std::string& log) {
  namespace batch = log_format::batch;
  std::vector<Batch> batches;
  for (uint64_t at = log_format::kBlock; at < log.size(); at += log_format::kBlock) {
    const auto* const head = reinterpret_cast<const uint8_t*>(log.data() + at);
    if (LoadFrom<uint64_t>(head + batch::kMagicAt) != log_format::kBatchMagic) continue;
    batches.push_back({LoadFrom<uint64_t>(head + batch::kTermAt),
                       LoadFrom<uint64_t>(head + batch::kPositionAt), at});
  }
  return batches;
}

// Returns the offset of the youngest batch. A flip in it looks like an interrupted write too.
uint64_t LastBatch(const std::vector<Batch>& batches) {
  const auto last =
      std::max_element(batches.begin(), batches.end(), [](const Batch& a, const Batch& b) {
        return std::tie(a.term, a.position) < std::tie(b.term, b.position);
      });
  return last == batches.end() ? UINT64_MAX : last->offset;
}

Flipped Flip(Dice dice) {
  const bool logs = dice(2) == 0;
  const Left& left = WhatIsLeft(3 + dice(3), logs);
  DurableDisks::Options options = OptionsOf(logs);
  options.images = left.images;
  options.in_dram = dice(4) == 0;
  auto& image = options.images[dice(kShards)];
  auto file = image.begin();
  std::advance(file, static_cast<ptrdiff_t>(dice(image.size())));
  const std::string path = file->first;
  uint64_t at = dice(file->second.size());
  const bool is_log = absl::EndsWith(path, "/log");
  const bool is_contributions = absl::EndsWith(path, log_format::kFileName);
  std::vector<Batch> batches;
  if (is_contributions) batches = BatchesOf(file->second);
  // The log is almost empty: most flips are aimed at the begin of a batch.
  if (!batches.empty() && dice(4) > 0) at = batches[dice(batches.size())].offset + dice(512);
  const bool is_tail =
      (is_log && at >= LastFrame(file->second)) || (is_contributions && at >= LastBatch(batches));
  file->second[at] = static_cast<char>(file->second[at] ^ 1 << dice(8));

  Flipped flipped;
  const std::string kind = is_log ? "log" : is_contributions ? "contributions" : "slot";
  DurableTraining training(left.spec, options, /*fetches=*/true);
  const absl::Status finished =
      training.Finish([&] { training.cluster().RunSome(100); }, /*rounds=*/300);
  const absl::Status served = training.CheckServed(left.expected);
  std::string said = training.disks().ends().empty() ? "" : training.disks().ends().front();
  const auto where = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path, " at ", at, ": ", what));
  };
  if (!served.ok()) {
    flipped.status = where(served.message());
  } else if (finished.ok() && said.empty()) {
    const CoreTraining::Outcome outcome = training.End();
    if (!training.disks().ends().empty()) {
      said = training.disks().ends().front();
    } else if (outcome.digest != left.expected.digest) {
      flipped.status = where("the bits differ");
    }
  } else if (said.empty()) {
    said = std::string(finished.message());
  }
  const bool noticed = !said.empty();
  flipped.outcome = kind + (noticed ? "_noticed" : "_harmless");
  if (noticed && !is_tail &&
      !(absl::StrContains(said, path) &&
        (absl::StrContains(said, "offset ") || absl::StrContains(said, " at ")))) {
    flipped.status = where(absl::StrCat("not located by: ", said));
  }
  return flipped;
}

// Timers of scrubs expire within this time; those that end a credit do not.
constexpr uint64_t kSoonMs = 1'000;

TEST(DurableScrub, OnePassFindsDamageWithoutFalseAlarms) {
  const JobSpec spec = SmallDurableSpec(Clip::kNone, Mode::kSealed, "fp32");
  DurableDisks::Options options;
  options.scrub_bytes_per_second = 1 << 20;
  DurableTraining training(spec, options, /*fetches=*/false);
  CoreCluster& cluster = training.cluster();
  const absl::Status same =
      training.FinishAsIn(UndisturbedOutcome(spec), [&] { cluster.FireTimers(kSoonMs); });
  ASSERT_TRUE(same.ok()) << same;
  const size_t chunks = cluster.chunks().chunks().size();
  const auto counters = [&] { return cluster.Status(ShardId(0)).counters(); };
  for (size_t i = 0; i < 3 * chunks; ++i) cluster.FireTimers(kSoonMs);
  EXPECT_GE(counters().at("scrub_passes"), 2u);
  EXPECT_GE(counters().at("scrubbed_bytes"), 3 * chunks * kDiskBlock);
  EXPECT_EQ(counters().count("scrub_damage"), 0u);
  EXPECT_TRUE(training.disks().ends().empty()) << training.disks().ends().front();
  // Damages the first chunk, in both slots, because the cut may be in either. On NVMe that is the
  // state itself, of which there is no other copy.
  for (const char* path : {"/state/job/slot-0.eps", "/state/job/slot-1.eps"}) {
    training.disks().disk(ShardId(0)).FlipBit(path, kDiskBlock + 100, 3);
  }
  for (size_t i = 0; i <= chunks && cluster.IsUp(ShardId(0)); ++i) cluster.FireTimers(kSoonMs);
  EXPECT_FALSE(cluster.IsUp(ShardId(0)));
  ASSERT_EQ(training.disks().ends().size(), 1u);
  const std::string& said = training.disks().ends().front();
  EXPECT_TRUE(absl::StrContains(said, "scrub: /state/job/slot-")) << said;
  EXPECT_TRUE(absl::StrContains(said, "at offset 4096")) << said;
}

TEST(DurableScrub, AnEarlyCutHealsStateInMemory) {
  const JobSpec spec = SmallDurableSpec(Clip::kNone, Mode::kSealed, "fp32");
  DurableDisks::Options options;
  options.scrub_bytes_per_second = 1 << 20;
  options.in_dram = true;
  options.shards = 2;
  options.cut_steps = 0;  // only after the import and after the last step
  DurableTraining training(spec, options, /*fetches=*/false);
  CoreCluster& cluster = training.cluster();
  const ShardId damaged(1);
  bool flipped = false;
  uint64_t damage = 0;
  uint64_t cuts = 0;
  const absl::Status same = training.FinishAsIn(UndisturbedOutcome(spec), [&] {
    cluster.FireTimers(kSoonMs);
    if (!cluster.IsUp(damaged) || cluster.Status(damaged).step() < 2) return;
    if (!flipped) {
      for (const char* path : {"/state/job/slot-0.eps", "/state/job/slot-1.eps"}) {
        training.disks().disk(damaged).FlipBit(path, kDiskBlock + 100, 3);
      }
      for (size_t i = 0; i < 3 * cluster.chunks().chunks().size(); ++i) cluster.FireTimers(kSoonMs);
    }
    flipped = true;
    auto counters = cluster.Status(damaged).counters();
    damage = std::max<uint64_t>(damage, counters["scrub_damage"]);
    cuts = std::max<uint64_t>(cuts, counters["cuts"]);
  });
  ASSERT_TRUE(same.ok()) << same;
  EXPECT_TRUE(training.disks().ends().empty()) << training.disks().ends().front();
  EXPECT_GE(damage, 1u);
  EXPECT_GE(cuts, 2u);  // one of them is early
}

TEST(DurableRot, AFlippedBitIsLocatedOrHarmless) {
  Flips flips = MakeFlips(2000, Flip);
  flips.ExpectMore("slot_noticed", flips.goal / 10);
  flips.ExpectMore("log_noticed", flips.goal / 100);
  flips.ExpectMore("contributions_noticed", flips.goal / 500);
}

}  // namespace
}  // namespace eps
