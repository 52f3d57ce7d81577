#include "cli/driver/report/tensorboard.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

struct Event {
  double wall_time = 0;
  uint64_t step = 0;
  std::string version;
  bool session_start = false;
  std::vector<std::pair<std::string, float>> scalars;
};

uint64_t LittleEndian(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes.at(at + i))} << (8 * i);
  }
  return value;
}

uint32_t Unmasked(uint64_t masked) {
  const uint32_t rotated = static_cast<uint32_t>(masked) - 0xa282ead8u;
  return rotated << 15 | rotated >> 17;
}

// Returns the records of a file. A bad checksum or an incomplete record fails the test.
std::vector<std::string> Records(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const uint64_t length = LittleEndian(file, at, 8);
    EXPECT_EQ(Unmasked(LittleEndian(file, at + 8, 4)), Crc32c(file.substr(at, 8)));
    EXPECT_LE(at + 16 + length, file.size());
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(Unmasked(LittleEndian(file, at + 12 + length, 4)), Crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

std::string ReadBytes(CodedInputStream* in) {
  uint32_t size = 0;
  std::string bytes;
  EXPECT_TRUE(in->ReadVarint32(&size) && in->ReadString(&bytes, static_cast<int>(size)));
  return bytes;
}

// Calls `on_field` for each field of a message, which reads its value.
template <class Fn>
void ForEachField(const std::string& message, const Fn& on_field) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(message.data()),
                      static_cast<int>(message.size()));
  while (const uint32_t tag = in.ReadTag()) {
    on_field(WireFormatLite::GetTagFieldNumber(tag), WireFormatLite::GetTagWireType(tag), &in);
  }
  EXPECT_TRUE(in.ConsumedEntireMessage());
}

std::pair<std::string, float> ParseScalar(const std::string& message) {
  std::pair<std::string, float> scalar;
  int fields = 0;
  ForEachField(message, [&](int field, int, CodedInputStream* in) {
    uint32_t bits = 0;
    ++fields;
    if (field == 1) {
      scalar.first = ReadBytes(in);
    } else {
      EXPECT_EQ(field, 2);
      EXPECT_TRUE(in->ReadLittleEndian32(&bits));
      std::memcpy(&scalar.second, &bits, sizeof(bits));
    }
  });
  EXPECT_EQ(fields, 2) << scalar.first;  // a value of 0 is written, too
  return scalar;
}

Event ParseEvent(const std::string& message) {
  Event event;
  ForEachField(message, [&](int field, int, CodedInputStream* in) {
    uint64_t bits = 0;
    switch (field) {
      case 1:
        EXPECT_TRUE(in->ReadLittleEndian64(&bits));
        std::memcpy(&event.wall_time, &bits, sizeof(bits));
        return;
      case 2:
        EXPECT_TRUE(in->ReadVarint64(&event.step));
        return;
      case 3:
        event.version = ReadBytes(in);
        return;
      case 5:
        ForEachField(ReadBytes(in), [&](int value, int, CodedInputStream* values) {
          EXPECT_EQ(value, 1);
          event.scalars.push_back(ParseScalar(ReadBytes(values)));
        });
        return;
      case 7:
        event.session_start = ReadBytes(in) == std::string("\x08\x01", 2);
        return;
      default:
        ADD_FAILURE() << "field " << field;
    }
  });
  return event;
}

class TensorBoardTest : public testing::Test {
 protected:
  TensorBoardTest()
      : folder_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                             testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  std::vector<Event> Read(const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    std::vector<Event> events;
    for (const std::string& record : Records(bytes.str())) events.push_back(ParseEvent(record));
    return events;
  }

  const std::string folder_;
};

v1::StepRecord Record(uint64_t step) {
  v1::StepRecord record;
  record.set_step(step);
  record.set_loss(2.5);
  record.set_grad_norm(0);
  record.set_lr(1e-4);
  record.set_tokens(100);
  record.set_step_seconds(0.5);
  return record;
}

TEST_F(TensorBoardTest, WritesFramedScalarsThatReadersCheck) {
  auto log = TensorBoardLog::Open(folder_, 0);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Add(Record(1)).ok());
  v1::StepRecord evaluation;
  evaluation.set_step(300);
  evaluation.mutable_evaluation()->set_loss(NAN);
  ASSERT_TRUE((*log)->Add(evaluation).ok());
  // Read while the log is open: it contains all added records.
  const std::vector<Event> events = Read((*log)->path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[1].session_start);
  EXPECT_EQ(events[1].step, 1u);
  EXPECT_EQ(events[2].step, 1u);
  const std::vector<std::pair<std::string, float>> scalars = {{"train/loss", 2.5f},
                                                              {"train/grad_norm", 0.0f},
                                                              {"train/learning_rate", 1e-4f},
                                                              {"train/tokens_per_second", 200.0f}};
  EXPECT_EQ(events[2].scalars, scalars);
  EXPECT_EQ(events[3].step, 300u);
  ASSERT_EQ(events[3].scalars.size(), 1u);
  EXPECT_EQ(events[3].scalars[0].first, "eval/loss");
  EXPECT_TRUE(std::isnan(events[3].scalars[0].second));
  for (const Event& event : events) EXPECT_GT(event.wall_time, 1.6e9);
}

TEST_F(TensorBoardTest, AResumeStartsFileAndSession) {
  std::vector<std::string> paths;
  for (const uint64_t base : {0, 7, 7}) {
    auto log = TensorBoardLog::Open(folder_, base);
    ASSERT_TRUE(log.ok()) << log.status();
    paths.push_back((*log)->path());
    const std::vector<Event> events = Read(paths.back());
    ASSERT_EQ(events.size(), 2u);
    EXPECT_TRUE(events[1].session_start);
    EXPECT_EQ(events[1].step, base + 1);
  }
  EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3);
}

TEST_F(TensorBoardTest, SaysWhereItCannotWrite) {
  fs::create_directories(folder_);
  std::ofstream(folder_ + "/file") << "x";
  const auto log = TensorBoardLog::Open(folder_ + "/file", 0);
  ASSERT_FALSE(log.ok());
  EXPECT_TRUE(absl::StrContains(log.status().message(), folder_ + "/file")) << log.status();
  auto full = TensorBoardLog::Open(folder_ + "/ok", 0);
  ASSERT_TRUE(full.ok());
  fs::remove_all(folder_ + "/ok");
  EXPECT_TRUE((*full)->Add(Record(1)).ok()) << "writing to a deleted file succeeds";
}

}  // namespace
}  // namespace eps
