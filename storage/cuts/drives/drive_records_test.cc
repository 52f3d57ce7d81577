// Records of drives in the catalogue.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/catalogue.h"
#include "storage/records/sealed_record.h"
#include "storage/testing/catalogue_samples.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DriveRecordsTest : public testing::Test {
 protected:
  // The fields of a sealed record.
  static std::string FieldsOf(const std::string& record) {
    return record.substr(4, record.size() - 8);
  }

  MapStore store_;
  Catalogue catalogue_{&store_};
};

TEST_F(DriveRecordsTest, JobsOnDrivesHaveVersionTwo) {
  CatalogueJob job = SampleJob("placed");
  const std::string key = absl::StrCat("job/", absl::Hex(job.id.value(), absl::kZeroPad16));
  ASSERT_EQ(catalogue_.AddJob(job), absl::OkStatus());
  EXPECT_EQ(store_.records[key].substr(0, 4), std::string("\1\0\0\0", 4));
  ASSERT_EQ(catalogue_.RemoveJob(job.id), absl::OkStatus());
  job.placement = {3, {0, 2, 1, 1}};
  ASSERT_EQ(catalogue_.AddJob(job), absl::OkStatus());
  EXPECT_EQ(*catalogue_.FindJob(job.id), job);
  EXPECT_EQ(store_.records[key].substr(0, 4), std::string("\2\0\0\0", 4));
  const std::string fields = FieldsOf(store_.records[key]);
  EXPECT_EQ(fields.substr(fields.size() - 12), std::string("\3\0\0\0\4\0\0\0\0\2\1\1", 12));
  ASSERT_EQ(catalogue_.Promise(job.id, Term(7)), absl::OkStatus());
  EXPECT_EQ(catalogue_.FindJob(job.id)->placement.drive, job.placement.drive);
}

TEST_F(DriveRecordsTest, RefusesDrivesThatAreNone) {
  CatalogueJob job = SampleJob("placed");
  job.placement = {3, {0, 2, 1, 1}};
  ASSERT_EQ(catalogue_.AddJob(job), absl::OkStatus());
  const std::string key = store_.records.begin()->first;
  const std::string good = FieldsOf(store_.records[key]);
  // The number of drives, and the drive of the last chunk.
  const std::vector<std::pair<char, char>> damages = {{0, 1}, {65, 1}, {3, 3}, {2, 1}};
  for (const auto& [drives, last] : damages) {
    std::string damaged = good;
    damaged[damaged.size() - 12] = drives;
    damaged.back() = last;
    store_.records[key] = SealRecord(key, damaged, kDrivesRecordVersion);
    EXPECT_EQ(catalogue_.FindJob(job.id).status().code(), absl::StatusCode::kDataLoss)
        << int{drives} << " drives";
  }
}

TEST_F(DriveRecordsTest, RemembersFolders) {
  EXPECT_THAT(*catalogue_.Drives(), IsEmpty());
  const std::vector<std::string> drives = {"/mnt/b", "/mnt/a, with a comma"};
  ASSERT_EQ(catalogue_.SetDrives(drives), absl::OkStatus());
  EXPECT_EQ(*catalogue_.Drives(), drives);
  ASSERT_EQ(catalogue_.SetDrives({"/mnt/c"}), absl::OkStatus());
  EXPECT_THAT(*catalogue_.Drives(), ElementsAre("/mnt/c"));
  EXPECT_THAT(*catalogue_.Jobs(), IsEmpty());
  const std::string fields = FieldsOf(store_.records["drives"]);
  store_.records["drives"] =
      SealRecord("drives", fields.substr(0, fields.size() - 1), kDrivesRecordVersion);
  EXPECT_EQ(catalogue_.Drives().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace eps
