#include "storage/records/sealed_record.h"

#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

std::string SomeRecord() {
  RecordWriter writer;
  writer.U32(7);
  writer.U64(uint64_t{1} << 40);
  writer.F64(-0.5);
  writer.Text("tail");
  return SealRecord("some/key", std::move(writer).Take());
}

TEST(SealedRecord, ReturnsTheFieldsThatWereSealed) {
  const std::string record = SomeRecord();
  const auto fields = UnsealRecord("some/key", record);
  ASSERT_TRUE(fields.ok()) << fields.status();
  RecordReader reader(*fields);
  EXPECT_EQ(reader.U32(), 7u);
  EXPECT_EQ(reader.U64(), uint64_t{1} << 40);
  EXPECT_EQ(reader.F64(), -0.5);
  EXPECT_EQ(reader.Text(4), "tail");
  EXPECT_TRUE(reader.complete());
  EXPECT_EQ(reader.U32(), 0u);
  EXPECT_FALSE(reader.complete());
}

TEST(SealedRecord, NoticesEachFlippedBit) {
  const std::string good = SomeRecord();
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << (bit % 8));
    const absl::Status status = UnsealRecord("some/key", bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "bit " << bit << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "some/key")) << status;
  }
}

TEST(SealedRecord, IsDamagedIfShortOrMoved) {
  const std::string good = SomeRecord();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(UnsealRecord("some/key", good.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(UnsealRecord("other/key", good).status()));
}

}  // namespace
}  // namespace eps
