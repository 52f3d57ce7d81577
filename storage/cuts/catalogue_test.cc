#include "storage/cuts/catalogue.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CatalogueTest : public testing::Test {
 protected:
  void AddJobWithCuts(const CatalogueJob& job, std::vector<std::pair<uint64_t, uint64_t>> cuts) {
    ASSERT_EQ(catalogue.AddJob(job), absl::OkStatus());
    for (const auto& cut : cuts) {
      ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(cut.first, cut.second), {}), absl::OkStatus());
    }
  }

  MapStore store;
  Catalogue catalogue{&store};
  const CatalogueJob job = SampleJob("one");
};

// Seals a record as docs/formats/catalogue.md says, independently of the product code.
std::string SealAs(uint32_t version, const std::string& key, const std::string& fields) {
  const auto little_endian = [](uint32_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    return bytes;
  };
  const std::string record = little_endian(version) + fields;
  return record + little_endian(Crc32c(key + record));
}

TEST_F(CatalogueTest, ReturnsAddedJobs) {
  const CatalogueJob other = SampleJob("other");
  AddJobWithCuts(job, {{0, 1}, {5, 1}});
  AddJobWithCuts(other, {{0, 1}});
  EXPECT_EQ(*catalogue.FindJob(job.id), job);
  EXPECT_THAT(*catalogue.Jobs(), testing::UnorderedElementsAre(job, other));
  EXPECT_THAT(*catalogue.Cuts(job.id), ElementsAre(SampleCut(0, 1), SampleCut(5, 1)));
  EXPECT_THAT(*catalogue.Cuts(other.id), ElementsAre(SampleCut(0, 1)));
}

TEST_F(CatalogueTest, EveryNumberSurvivesAtItsLimits) {
  CatalogueJob wide = job;
  wide.shard = std::numeric_limits<uint32_t>::max() - 1;
  wide.shards = std::numeric_limits<uint32_t>::max();
  wide.promised = Term(std::numeric_limits<uint64_t>::max());
  wide.extents_nonce = std::numeric_limits<uint64_t>::max();
  ASSERT_EQ(catalogue.AddJob(wide), absl::OkStatus());
  EXPECT_EQ(*catalogue.FindJob(job.id), wide);
  for (const size_t chunks : {0, 1, 7, 8, 9, 4096}) {
    CatalogueCut cut = SampleCut(chunks + 1, 1);
    cut.slot.assign(chunks, true);
    cut.border.update = std::numeric_limits<uint64_t>::max();
    cut.border.lagged_norm = std::numeric_limits<double>::denorm_min();
    ASSERT_EQ(catalogue.AddCut(job.id, cut, {}), absl::OkStatus());
    EXPECT_EQ(catalogue.Cuts(job.id)->back(), cut);
  }
}

TEST_F(CatalogueTest, CutsAreInOrderOfAge) {
  // The order is numeric, and by term within a step.
  AddJobWithCuts(job, {{2, 1}, {9, 1}, {9, 2}, {10, 2}, {255, 2}, {256, 3}, {1ull << 40, 3}});
  std::vector<uint64_t> steps;
  const auto cuts = *catalogue.Cuts(job.id);
  for (const CatalogueCut& cut : cuts) steps.push_back(cut.border.id.step.value());
  EXPECT_THAT(steps, ElementsAre(2, 9, 9, 10, 255, 256, 1ull << 40));
}

TEST_F(CatalogueTest, RefusesCutsThatAreNotYoungest) {
  AddJobWithCuts(job, {{5, 2}});
  for (const CatalogueCut& late : {SampleCut(5, 2), SampleCut(4, 3), SampleCut(5, 1)}) {
    const absl::Status status = catalogue.AddCut(job.id, late, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("step 5 of term 2"));
  }
  EXPECT_EQ(catalogue.AddCut(job.id, SampleCut(5, 3), {}), absl::OkStatus());
}

TEST_F(CatalogueTest, AddsAJobOnceUnderItsId) {
  AddJobWithCuts(job, {});
  EXPECT_EQ(catalogue.AddJob(job).code(), absl::StatusCode::kAlreadyExists);
  CatalogueJob foreign = SampleJob("two");
  foreign.id = JobId(7);
  EXPECT_EQ(catalogue.AddJob(foreign).code(), absl::StatusCode::kInvalidArgument);
  CatalogueJob outside = SampleJob("three");
  outside.shard = outside.shards;
  EXPECT_EQ(catalogue.AddJob(outside).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.writes, 1);
}

TEST_F(CatalogueTest, ReportsMissingThingsAsNotFound) {
  const auto not_found = absl::StatusCode::kNotFound;
  EXPECT_EQ(catalogue.FindJob(job.id).status().code(), not_found);
  EXPECT_EQ(catalogue.Cuts(job.id).status().code(), not_found);
  EXPECT_EQ(catalogue.AddCut(job.id, SampleCut(1, 1), {}).code(), not_found);
  EXPECT_EQ(catalogue.Promise(job.id, Term(1)).code(), not_found);
  EXPECT_EQ(catalogue.RemoveJob(job.id).code(), not_found);
  EXPECT_EQ(catalogue.Restore(job.id, {Step(1), Term(1)}, Term(2)).code(), not_found);
  EXPECT_EQ(catalogue.RemoveCutsBelow(job.id, {Step(1), Term(1)}).code(), not_found);
  EXPECT_TRUE(catalogue.Jobs()->empty());
  EXPECT_EQ(store.writes, 0);
}

TEST_F(CatalogueTest, PromisesAreNeverWithdrawn) {
  AddJobWithCuts(job, {{0, 1}});
  ASSERT_EQ(catalogue.Promise(job.id, Term(4)), absl::OkStatus());
  EXPECT_EQ(catalogue.FindJob(job.id)->promised, Term(4));
  const int writes = store.writes;
  EXPECT_EQ(catalogue.Promise(job.id, Term(4)), absl::OkStatus());
  EXPECT_EQ(store.writes, writes);
  const absl::Status earlier = catalogue.Promise(job.id, Term(3));
  EXPECT_EQ(earlier.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(earlier.message(), HasSubstr("term 4 is promised"));
  EXPECT_EQ(catalogue.Restore(job.id, {Step(0), Term(1)}, Term(3)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(catalogue.FindJob(job.id)->promised, Term(4));
}

TEST_F(CatalogueTest, RestoreKillsYoungerCutsInOneWrite) {
  AddJobWithCuts(job, {{3, 1}, {6, 1}, {6, 2}, {9, 2}});
  const int writes = store.writes;
  ASSERT_EQ(catalogue.Restore(job.id, {Step(6), Term(1)}, Term(3)), absl::OkStatus());
  EXPECT_EQ(store.writes, writes + 1);
  EXPECT_EQ(catalogue.FindJob(job.id)->promised, Term(3));
  EXPECT_THAT(*catalogue.Cuts(job.id), ElementsAre(SampleCut(3, 1), SampleCut(6, 1)));
  // A missing base changes nothing, not even the promise.
  EXPECT_EQ(catalogue.Restore(job.id, {Step(6), Term(2)}, Term(4)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(catalogue.FindJob(job.id)->promised, Term(3));
  EXPECT_EQ(catalogue.AddCut(job.id, SampleCut(9, 3), {}), absl::OkStatus());
}

TEST_F(CatalogueTest, ForgetsAllCutsInOneWrite) {
  AddJobWithCuts(job, {{0, 1}});
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(0, 2), {"one"}), absl::OkStatus());
  const int writes = store.writes;
  ASSERT_EQ(catalogue.Forget(job.id, Term(3)), absl::OkStatus());
  EXPECT_EQ(store.writes, writes + 1);
  EXPECT_EQ(catalogue.FindJob(job.id)->promised, Term(3));
  EXPECT_TRUE(catalogue.Cuts(job.id)->empty());
  EXPECT_EQ(catalogue.Forget(job.id, Term(2)).code(), absl::StatusCode::kFailedPrecondition);
  // A later cut contains no earlier record.
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(0, 3), {}), absl::OkStatus());
  EXPECT_THAT(*catalogue.Records(job.id, catalogue.Cuts(job.id)->back()), ElementsAre());
}

TEST_F(CatalogueTest, LaterCutsKeepEarlierStepRecords) {
  AddJobWithCuts(job, {{0, 1}});
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(2, 1), {"one", "two"}), absl::OkStatus());
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(3, 1), {"three"}), absl::OkStatus());
  std::vector<CatalogueCut> cuts = *catalogue.Cuts(job.id);
  ASSERT_EQ(cuts.size(), 3u);
  EXPECT_THAT(*catalogue.Records(job.id, cuts[0]), ElementsAre());
  EXPECT_THAT(*catalogue.Records(job.id, cuts[1]), ElementsAre("one", "two"));
  EXPECT_THAT(*catalogue.Records(job.id, cuts[2]), ElementsAre("one", "two", "three"));
  // Removing older cuts removes no records; a restore removes those of the cuts that it kills.
  ASSERT_EQ(catalogue.RemoveCutsBelow(job.id, {Step(2), Term(1)}), absl::OkStatus());
  ASSERT_EQ(catalogue.Restore(job.id, {Step(2), Term(1)}, Term(2)), absl::OkStatus());
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(3, 2), {"other"}), absl::OkStatus());
  cuts = *catalogue.Cuts(job.id);
  EXPECT_THAT(*catalogue.Records(job.id, cuts.back()), ElementsAre("one", "two", "other"));
  cuts.back().records = 4;
  EXPECT_EQ(catalogue.Records(job.id, cuts.back()).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CatalogueTest, RemovesCutsBelow) {
  AddJobWithCuts(job, {{3, 1}, {6, 1}, {6, 2}, {9, 2}});
  ASSERT_EQ(catalogue.RemoveCutsBelow(job.id, {Step(6), Term(2)}), absl::OkStatus());
  EXPECT_THAT(*catalogue.Cuts(job.id), ElementsAre(SampleCut(6, 2), SampleCut(9, 2)));
  const int writes = store.writes;
  ASSERT_EQ(catalogue.RemoveCutsBelow(job.id, {Step(6), Term(2)}), absl::OkStatus());
  EXPECT_EQ(store.writes, writes);
}

TEST_F(CatalogueTest, ARemovedJobLeavesNothing) {
  const CatalogueJob other = SampleJob("other");
  AddJobWithCuts(job, {{0, 1}, {3, 1}});
  AddJobWithCuts(other, {{0, 1}});
  const auto before = store.records.size();
  ASSERT_EQ(catalogue.RemoveJob(job.id), absl::OkStatus());
  EXPECT_EQ(store.records.size(), before - 3);
  EXPECT_THAT(*catalogue.Jobs(), ElementsAre(other));
  EXPECT_THAT(*catalogue.Cuts(other.id), ElementsAre(SampleCut(0, 1)));
  // A job with a damaged record can be removed too.
  AddJobWithCuts(job, {});
  for (auto& record : store.records) record.second = "x";
  EXPECT_EQ(catalogue.RemoveJob(job.id), absl::OkStatus());
}

TEST_F(CatalogueTest, DetectsEveryFlippedBit) {
  AddJobWithCuts(job, {{3, 1}});
  for (auto& record : store.records) {
    const std::string good = record.second;
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
      record.second = good;
      record.second[bit / 8] = static_cast<char>(record.second[bit / 8] ^ 1 << (bit % 8));
      const absl::Status status = catalogue.Cuts(job.id).status();
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << record.first << " bit " << bit;
      ASSERT_THAT(status.message(), HasSubstr(record.first));
    }
    record.second = good;
  }
  EXPECT_EQ(catalogue.Cuts(job.id).status(), absl::OkStatus());
}

TEST_F(CatalogueTest, DetectsTruncationAndTrailingBytes) {
  AddJobWithCuts(job, {{3, 1}});
  for (auto& record : store.records) {
    const std::string good = record.second;
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
      record.second = good.substr(0, bytes);
      ASSERT_EQ(catalogue.Cuts(job.id).status().code(), absl::StatusCode::kDataLoss) << bytes;
    }
    record.second = good + '\0';
    ASSERT_EQ(catalogue.Cuts(job.id).status().code(), absl::StatusCode::kDataLoss);
    record.second = good;
  }
}

TEST_F(CatalogueTest, DetectsWellSealedNonsense) {
  AddJobWithCuts(job, {{3, 1}});
  for (auto& record : store.records) {
    const std::string good = record.second;
    const std::string fields = good.substr(4, good.size() - 8);
    std::vector<std::string> hostile = {"", fields + "x", fields + std::string(8, '\0')};
    for (size_t bytes = 0; bytes < fields.size(); ++bytes) {
      hostile.push_back(fields.substr(0, bytes));
    }
    // Lengths and counts beyond the record: all ones in each place.
    for (size_t at = 0; at + 8 <= fields.size(); ++at) {
      std::string huge = fields;
      huge.replace(at, 8, 8, '\xff');
      hostile.push_back(huge);
    }
    for (const std::string& nonsense : hostile) {
      record.second = SealAs(1, record.first, nonsense);
      const auto cuts = catalogue.Cuts(job.id);
      // A number may have any value; then the record is whole. A cut may have no loss scale.
      if (cuts.ok()) {
        EXPECT_TRUE(nonsense.size() == fields.size() || nonsense.size() + 12 == fields.size());
      } else {
        EXPECT_EQ(cuts.status().code(), absl::StatusCode::kDataLoss) << cuts.status();
      }
    }
    record.second = good;
  }
}

TEST_F(CatalogueTest, DetectsASealedJobThatContradictsItself) {
  AddJobWithCuts(job, {});
  std::string& record = store.records.begin()->second;
  const std::string& key = store.records.begin()->first;
  const std::string fields = record.substr(4, record.size() - 8);
  std::string other_spec = fields;
  other_spec.back() = '!';
  record = SealAs(1, key, other_spec);
  EXPECT_EQ(catalogue.FindJob(job.id).status().code(), absl::StatusCode::kDataLoss);
  std::string outside = fields;
  outside[0] = 3;  // shard 3 of 3
  record = SealAs(1, key, outside);
  EXPECT_EQ(catalogue.FindJob(job.id).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CatalogueTest, DetectsARecordUnderAnotherKey) {
  AddJobWithCuts(job, {{3, 1}});
  auto node = store.records.extract(store.records.begin());
  ASSERT_THAT(node.key(), HasSubstr("cut/"));
  node.key().back() = '9';
  store.records.insert(std::move(node));
  EXPECT_EQ(catalogue.Cuts(job.id).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CatalogueTest, DetectsKeysOfAnotherShape) {
  AddJobWithCuts(job, {});
  const std::string id = absl::StrCat(absl::Hex(job.id.value(), absl::kZeroPad16));
  const std::string number(16, '0');
  const std::vector<std::string> keys = {"cut/" + id + "/",
                                         "cut/" + id + "/" + number,
                                         "cut/" + id + "/" + number + "/x",
                                         "cut/" + id + "/" + number + "/" + number + "0",
                                         "cut/" + id + "/" + number + "/00000000000000G0",
                                         "job/" + id + "/",
                                         "job/",
                                         "job/1"};
  for (const std::string& key : keys) {
    store.records[key] = SealAs(1, key, "");
    const auto status = key[0] == 'c' ? catalogue.Cuts(job.id).status() : catalogue.Jobs().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << key << ": " << status;
    store.records.erase(key);
  }
}

TEST_F(CatalogueTest, RefusesRecordsOfLaterReleases) {
  AddJobWithCuts(job, {{3, 1}});
  for (auto& record : store.records) {
    const std::string good = record.second;
    record.second = SealAs(3, record.first, "whatever a later release keeps");
    const absl::Status status = catalogue.Cuts(job.id).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("version 3"));
    EXPECT_THAT(status.message(), HasSubstr(record.first));
    record.second = SealAs(0, record.first, "");
    EXPECT_EQ(catalogue.Cuts(job.id).status().code(), absl::StatusCode::kDataLoss);
    record.second = good;
  }
}

TEST_F(CatalogueTest, FormatMatchesItsPage) {
  AddJobWithCuts(job, {{3, 1}});
  const std::string id = absl::StrCat(absl::Hex(job.id.value(), absl::kZeroPad16));
  const std::string job_key = "job/" + id;
  const std::string cut_key = "cut/" + id + "/0000000000000003/0000000000000001";
  std::string fields;
  const auto integer = [&fields](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) fields.push_back(static_cast<char>(value >> (8 * i)));
  };
  integer(1, 4);
  integer(3, 4);
  integer(1, 8);
  integer(0x0123456789abcdef, 8);
  integer(job.spec_text.size(), 8);
  EXPECT_EQ(store.records[job_key], SealAs(1, job_key, fields + job.spec_text));
  fields.clear();
  integer(103, 8);
  integer(53, 8);
  integer(0x3fd999999999999a, 8);  // 0.4
  integer(1, 4);
  integer(0, 8);
  integer(0xdead0003, 4);
  integer(1, 4);
  integer(4099, 8);
  integer(0xbeef0001, 4);
  integer(19, 4);
  integer(0x049249, 3);    // slots 0, 3, 6, …
  integer(0xfffffffa, 4);  // log2 of the loss scale: -6
  integer(7, 4);
  integer(2, 4);
  EXPECT_EQ(store.records[cut_key], SealAs(1, cut_key, fields));
  ASSERT_EQ(catalogue.SetLog(job.id, SampleLog(1, 3)), absl::OkStatus());
  const std::string log_key = "log/" + id;
  fields.clear();
  for (const uint64_t value : {uint64_t{1}, uint64_t{0xfedcba9876543211}, uint64_t{203},
                               uint64_t{301}, uint64_t{3}, uint64_t{401}, uint64_t{0x100003000}}) {
    integer(value, 8);
  }
  EXPECT_EQ(store.records[log_key], SealAs(1, log_key, fields));
}

TEST_F(CatalogueTest, RemembersTheLogOfThePromisedTerm) {
  EXPECT_EQ(catalogue.Log(job.id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalogue.SetLog(job.id, SampleLog(1, 3)).code(), absl::StatusCode::kNotFound);
  const CatalogueJob other = SampleJob("other");
  AddJobWithCuts(job, {{3, 1}});
  AddJobWithCuts(other, {{3, 1}});
  EXPECT_FALSE(catalogue.Log(job.id)->has_value());
  CatalogueLog log = SampleLog(1, 3);
  log.log.id.incarnation = std::numeric_limits<uint64_t>::max();
  log.position = std::numeric_limits<uint64_t>::max();
  for (const CatalogueLog& set : {log, SampleLog(1, 3)}) {
    ASSERT_EQ(catalogue.SetLog(job.id, set), absl::OkStatus());
    EXPECT_EQ(*catalogue.Log(job.id), set);
  }
  EXPECT_FALSE(catalogue.Log(other.id)->has_value());
  // A log whose term is not the promised one is refused.
  const int writes = store.writes;
  for (const uint64_t term : {0, 2}) {
    const absl::Status refused = catalogue.SetLog(job.id, SampleLog(term, 3));
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("a log of term ", term)));
    EXPECT_THAT(refused.message(), HasSubstr("term 1 is promised"));
  }
  EXPECT_EQ(store.writes, writes);
  // A restore in the same term keeps the log; a later term has none.
  ASSERT_EQ(catalogue.Restore(job.id, {Step(3), Term(1)}, Term(1)), absl::OkStatus());
  EXPECT_EQ(*catalogue.Log(job.id), SampleLog(1, 3));
  ASSERT_EQ(catalogue.Promise(job.id, Term(2)), absl::OkStatus());
  ASSERT_TRUE(catalogue.Log(job.id).ok());
  EXPECT_FALSE(catalogue.Log(job.id)->has_value());
  ASSERT_EQ(catalogue.SetLog(job.id, SampleLog(2, 3)), absl::OkStatus());
  EXPECT_EQ(*catalogue.Log(job.id), SampleLog(2, 3));
}

TEST_F(CatalogueTest, CutMovesTheLogInOneWrite) {
  AddJobWithCuts(job, {{3, 1}});
  ASSERT_EQ(catalogue.SetLog(job.id, SampleLog(1, 3)), absl::OkStatus());
  const CatalogueLog moved = SampleLog(1, 6);
  const int writes = store.writes;
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(6, 1), {"one"}, &moved), absl::OkStatus());
  EXPECT_EQ(store.writes, writes + 1);
  EXPECT_EQ(*catalogue.Log(job.id), moved);
  // A refused cut moves nothing, and a cut without a log leaves the log as it is.
  const CatalogueLog other = SampleLog(1, 9);
  EXPECT_EQ(catalogue.AddCut(job.id, SampleCut(5, 1), {}, &other).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(catalogue.AddCut(job.id, SampleCut(9, 1), {}), absl::OkStatus());
  EXPECT_EQ(*catalogue.Log(job.id), moved);
}

TEST_F(CatalogueTest, DetectsADamagedLogAndRemovesIt) {
  AddJobWithCuts(job, {{3, 1}});
  ASSERT_EQ(catalogue.SetLog(job.id, SampleLog(1, 3)), absl::OkStatus());
  const std::string key = absl::StrCat("log/", absl::Hex(job.id.value(), absl::kZeroPad16));
  ASSERT_EQ(store.records.count(key), 1u);
  std::string& record = store.records[key];
  const std::string good = record;
  std::vector<std::string> damaged = {
      good + "x", SealAs(1, "log", good.substr(4, good.size() - 8)),
      SealAs(1, key, good.substr(4, good.size() - 8) + std::string(8, '\0'))};
  for (size_t bytes = 0; bytes < good.size(); ++bytes) damaged.push_back(good.substr(0, bytes));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    damaged.push_back(good);
    damaged.back()[bit / 8] = static_cast<char>(good[bit / 8] ^ 1 << (bit % 8));
  }
  for (const std::string& bad : damaged) {
    record = bad;
    const absl::Status status = catalogue.Log(job.id).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    ASSERT_THAT(status.message(), HasSubstr(key));
  }
  record = SealAs(2, key, "of a later release");
  EXPECT_EQ(catalogue.Log(job.id).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(catalogue.RemoveJob(job.id), absl::OkStatus());
  EXPECT_TRUE(store.records.empty());
}

TEST_F(CatalogueTest, RemembersTheServedJobUntilRemoval) {
  EXPECT_FALSE(catalogue.Served()->has_value());
  const std::vector<std::string> servers = {"10.0.0.1:7000", "", "[::1]:80"};
  EXPECT_EQ(catalogue.SetServed({job.id, servers}).code(), absl::StatusCode::kNotFound);
  const CatalogueJob other = SampleJob("other");
  AddJobWithCuts(job, {});
  AddJobWithCuts(other, {});
  ASSERT_EQ(catalogue.SetServed({other.id, {}}), absl::OkStatus());
  const DriverLease driver = {0x0123456789abcdef, 57};
  const JobScope scope = {"a-name", 0xfedcba9876543210};
  ASSERT_EQ(catalogue.SetServed({job.id, servers, driver}), absl::OkStatus());
  EXPECT_EQ((*catalogue.Served())->scope, JobScope());
  ASSERT_EQ(catalogue.SetServed({job.id, servers, driver, scope}), absl::OkStatus());
  ASSERT_EQ(catalogue.RemoveJob(other.id), absl::OkStatus());
  const auto served = catalogue.Served();
  ASSERT_TRUE(served.ok() && served->has_value()) << served.status();
  EXPECT_EQ((*served)->id, job.id);
  EXPECT_EQ((*served)->servers, servers);
  EXPECT_EQ((*served)->driver, driver);
  EXPECT_EQ((*served)->scope, scope);
  std::string& record = store.records["served"];
  const std::string good = record;
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), good + "x", SealAs(1, "served", std::string(12, '\xff')),
        SealAs(1, "job", good.substr(4, good.size() - 8))}) {
    record = bad;
    EXPECT_EQ(catalogue.Served().status().code(), absl::StatusCode::kDataLoss);
  }
  record = good;
  ASSERT_EQ(catalogue.RemoveJob(job.id), absl::OkStatus());
  EXPECT_FALSE(catalogue.Served()->has_value());
}

TEST_F(CatalogueTest, PassesOnErrorsOfTheStore) {
  AddJobWithCuts(job, {{3, 1}});
  store.fail = absl::InternalError("broken");
  EXPECT_EQ(catalogue.Jobs().status(), store.fail);
  EXPECT_EQ(catalogue.Cuts(job.id).status(), store.fail);
  EXPECT_EQ(catalogue.AddCut(job.id, SampleCut(4, 1), {}), store.fail);
  EXPECT_EQ(catalogue.RemoveJob(job.id), store.fail);
}

}  // namespace
}  // namespace eps
