#include "storage/testing/log_store.h"

#include <cstdlib>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/catalogue_samples.h"
#include "storage/testing/simulated_disk.h"

namespace eps {
namespace {

using Map = std::map<std::string, std::string>;
using Changes = std::vector<KeyValueStore::Change>;

constexpr uint64_t kLogBytes = 8 * kDiskBlock;  // so small that the log is often compacted

Map Everything(const LogStore& store) {
  Map all;
  const auto found = *store.Scan("");
  all.insert(found.begin(), found.end());
  return all;
}

// The i-th batch: several keys, some removed, some values over several blocks.
Changes Batch(uint64_t i) {
  const auto key = [](uint64_t n) { return absl::StrCat("key", n % 5); };
  Changes changes = {{key(i), absl::StrCat("value ", i)}, {key(i + 1), std::nullopt}};
  if (i % 4 == 0) changes.push_back({"long", std::string(5000 + i, static_cast<char>(i))});
  return changes;
}

void Apply(const Changes& changes, Map* map) {
  for (const KeyValueStore::Change& change : changes) {
    if (change.value) {
      (*map)[change.key] = *change.value;
    } else {
      map->erase(change.key);
    }
  }
}

absl::StatusOr<std::unique_ptr<LogStore>> OpenOn(SimulatedDisk* disk) {
  return LogStore::Open(disk->blocking(), "/shard/log", kLogBytes);
}

TEST(LogStore, IsTheCataloguesStore) {
  SimulatedDisk disk({});
  const CatalogueJob job = SampleJob("one");
  {
    const auto store = OpenOn(&disk);
    ASSERT_EQ(store.status(), absl::OkStatus());
    Catalogue catalogue(store->get());
    ASSERT_EQ(catalogue.AddJob(job), absl::OkStatus());
    for (uint64_t step = 0; step < 40; ++step) {
      ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(step, 1), {}), absl::OkStatus());
      if (step > 1) {
        ASSERT_EQ(catalogue.RemoveCutsBelow(job.id, {Step(step - 1), Term(1)}), absl::OkStatus());
      }
    }
    EXPECT_EQ(OpenOn(&disk).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  const auto store = OpenOn(&disk);
  Catalogue catalogue(store->get());
  EXPECT_THAT(*catalogue.Jobs(), testing::ElementsAre(job));
  EXPECT_THAT(*catalogue.Cuts(job.id), testing::ElementsAre(SampleCut(38, 1), SampleCut(39, 1)));
}

TEST(LogStore, PowerCutLosesNothingAcknowledged) {
  const int rounds = std::getenv("EPS_LONG") != nullptr ? 200000 : 3000;
  SimulatedDisk disk({});
  Map acked;
  uint64_t batch = 0;
  int kept_unacknowledged = 0;
  for (int round = 0; round < rounds; ++round) {
    disk.CutPowerAtCall(1 + (static_cast<uint64_t>(round) * 7919) % 23, round);
    Map next = acked;
    while (disk.on()) {
      const auto store = OpenOn(&disk);
      if (!store.ok()) break;
      ASSERT_EQ(Everything(**store), acked) << "round " << round;
      for (int i = 0; i < 30; ++i) {
        const Changes changes = Batch(++batch);
        next = acked;
        Apply(changes, &next);
        if (!(*store)->Write(changes).ok()) {
          EXPECT_FALSE((*store)->Write(changes).ok());
          break;
        }
        acked = next;
      }
    }
    disk.PowerOn();
    const auto store = OpenOn(&disk);
    ASSERT_EQ(store.status(), absl::OkStatus()) << "round " << round;
    const Map found = Everything(**store);
    ASSERT_TRUE(found == acked || found == next) << "round " << round;
    kept_unacknowledged += found != acked;
    acked = found;
  }
  EXPECT_GT(kept_unacknowledged, rounds / 20);
}

TEST(LogStore, EveryFaultIsReportedAndEndsWriting) {
  using Call = SimulatedDisk::Call;
  using Fault = SimulatedDisk::Fault;
  int failed = 0;
  for (const Call call :
       {Call::kWrite, Call::kSync, Call::kCreateFile, Call::kOpen, Call::kRename}) {
    for (const Fault fault : {Fault::kIoError, Fault::kShortWrite, Fault::kNoSpace}) {
      for (uint64_t n = 1; n < 12; ++n) {
        SimulatedDisk disk({});
        Map acked;
        Map next;
        {
          const auto store = OpenOn(&disk);
          ASSERT_EQ(store.status(), absl::OkStatus());
          disk.FailCall(call, n, fault);
          absl::Status status;
          for (uint64_t i = 1; i < 40 && status.ok(); ++i) {
            Apply(Batch(i), &next);
            status = (*store)->Write(Batch(i));
            if (status.ok()) acked = next;
          }
          EXPECT_EQ(Everything(**store), acked);
          if (!status.ok()) {
            ++failed;
            EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
            EXPECT_EQ((*store)->Write(Batch(99)), status);
          }
        }
        const auto store = OpenOn(&disk);
        ASSERT_EQ(store.status(), absl::OkStatus());
        const Map found = Everything(**store);
        EXPECT_TRUE(found == acked || found == next);
      }
    }
  }
  EXPECT_GT(failed, 80);
}

TEST(LogStore, AFullDiskIsReported) {
  SimulatedDisk::Options options;
  options.capacity_bytes = kLogBytes + kDiskBlock;
  SimulatedDisk disk(options);
  const auto store = OpenOn(&disk);
  ASSERT_EQ(store.status(), absl::OkStatus());
  absl::Status status;
  for (uint64_t i = 1; i < 40 && status.ok(); ++i) status = (*store)->Write(Batch(i));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("bytes are missing"));
}

TEST(LogStore, FlippedBitLosesOnlyTheLastBatch) {
  Map before_last;
  Map all;
  SimulatedDisk disk({});
  {
    const auto store = OpenOn(&disk);
    for (uint64_t i = 1; i < 5; ++i) {
      before_last = all;
      Apply(Batch(i), &all);
      ASSERT_EQ((*store)->Write(Batch(i)), absl::OkStatus());
    }
  }
  const std::string log = disk.Contents("/shard/log/log");
  int damaged = 0;
  int shortened = 0;
  for (uint64_t at = 0; at < log.size(); ++at) {
    const int bit = static_cast<int>(at % 8);
    disk.FlipBit("/shard/log/log", at, bit);
    const auto store = OpenOn(&disk);
    if (store.ok()) {
      const Map found = Everything(**store);
      ASSERT_TRUE(found == all || found == before_last) << at;
      shortened += found != all;
    } else {
      ASSERT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
      EXPECT_THAT(std::string(store.status().message()), testing::HasSubstr("/shard/log/log at "));
      ++damaged;
    }
    disk.FlipBit("/shard/log/log", at, bit);
  }
  EXPECT_GT(damaged, 150);
  EXPECT_GT(shortened, 5000);
}

}  // namespace
}  // namespace eps
