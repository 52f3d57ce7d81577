// The host trusts nothing that comes from a device.

#include "storage/csd/process/exchange.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/descriptor.h"
#include "gtest/gtest.h"
#include "storage/csd/process/frames.h"

namespace eps::csd {
namespace {

constexpr uint64_t kNumber = 7;

class ExchangeTest : public testing::Test {
 protected:
  ExchangeTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    host_ = Descriptor(ends[0]);
    device_ = Descriptor(ends[1]);
    read_.kind = Command::Kind::kHostRead;
    read_.number = kNumber;
    read_.bytes = sizeof(memory_);
  }
  // Sends bytes as the device, before the host asks.
  void Send(const std::string& bytes) {
    ASSERT_EQ(write(device_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  absl::Status Read(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    return Exchange(host_.get(), read_, {{}, absl::MakeSpan(memory_), nullptr},
                    std::chrono::steady_clock::now() + timeout, &answer_);
  }

  Descriptor host_;
  Descriptor device_;
  Command read_;
  uint8_t memory_[8192];
  absl::Status answer_;
};

TEST_F(ExchangeTest, ReadTakesItsSlices) {
  for (const char c : {'a', 'b'}) {
    Send(Encode(Reply{absl::StatusCode::kOk, kNumber, 4096}) + std::string(4096, c));
  }
  ASSERT_TRUE(Read().ok());
  EXPECT_TRUE(answer_.ok());
  EXPECT_EQ(memory_[4095], 'a');
  EXPECT_EQ(memory_[4096], 'b');
}

TEST_F(ExchangeTest, ErrorOfTheDeviceEndsTheRead) {
  Send(Encode(Reply{absl::StatusCode::kOk, kNumber, 4096}) + std::string(4096, 'a'));
  Send(Encode(Reply{absl::StatusCode::kInternal, kNumber, 5}) + "rot 9");
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(answer_, absl::InternalError("rot 9"));
}

TEST_F(ExchangeTest, ReplyToAnotherCommandIsRefused) {
  Send(Encode(Reply{absl::StatusCode::kOk, kNumber + 1, 4096}) + std::string(4096, 'a'));
  EXPECT_EQ(Read().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ExchangeTest, MoreDataThanAskedForIsRefused) {
  Send(Encode(Reply{absl::StatusCode::kOk, kNumber, sizeof(memory_) + 1}));
  EXPECT_EQ(Read().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ExchangeTest, ReplyWithoutDataIsRefused) {
  Send(Encode(Reply{absl::StatusCode::kOk, kNumber, 0}));
  EXPECT_EQ(Read().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ExchangeTest, LongResultIsRefused) {
  Command run;
  run.kind = Command::Kind::kRun;
  run.number = kNumber;
  std::string result;
  Send(Encode(Reply{absl::StatusCode::kOk, kNumber, kMaxKernelBytes + 1}));
  EXPECT_EQ(Exchange(host_.get(), run, {{}, {}, &result},
                     std::chrono::steady_clock::now() + std::chrono::seconds(20), &answer_)
                .code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(ExchangeTest, DamagedReplyIsRefused) {
  std::string reply = Encode(Reply{absl::StatusCode::kOk, kNumber, 4096});
  reply[9] = static_cast<char>(reply[9] ^ 1);
  Send(reply);
  EXPECT_EQ(Read().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ExchangeTest, ClosedSocketIsUnavailable) {
  device_ = Descriptor();
  EXPECT_EQ(Read().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ExchangeTest, SilenceEndsAtTheDeadline) {
  EXPECT_EQ(Read(std::chrono::milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace eps::csd
