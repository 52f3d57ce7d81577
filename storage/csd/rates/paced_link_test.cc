#include "storage/csd/rates/paced_link.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "storage/csd/rates/device_rates.h"

namespace eps {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kRate = 64e6;
constexpr uint64_t kBytes = 3 * kPacedSlice + 1000;

double SecondsSince(PaceClock::time_point begin) {
  return std::chrono::duration<double>(PaceClock::now() - begin).count();
}

TEST(PacedLinkTest, ReservationsFollowEachOther) {
  PacedLink link;
  const PaceClock::time_point now = PaceClock::now();
  EXPECT_EQ(link.Reserve(now, seconds(3)), now + seconds(3));
  // It waits for the one before it, and begins no earlier than asked for.
  EXPECT_EQ(link.Reserve(now + seconds(1), seconds(2)), now + seconds(5));
  EXPECT_EQ(link.Reserve(now + seconds(9), seconds(1)), now + seconds(10));
}

TEST(PacedLinkTest, TransfersNeverBeatTheRate) {
  PacedLink link;
  constexpr int kThreads = 4;
  constexpr int kRounds = 5;
  const PaceClock::time_point begin = PaceClock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&link] {
      for (int round = 0; round < kRounds; ++round) PacedTransfer({{&link, kRate}}).Await(kBytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(SecondsSince(begin), kThreads * kRounds * kBytes / kRate - 1e-3);
}

TEST(PacedLinkTest, TheSlowestLinkDecides) {
  PacedLink fast;
  PacedLink slow;
  const PaceClock::time_point begin = PaceClock::now();
  PacedTransfer({{&fast, 4 * kRate}, {&slow, kRate}}).Await(kBytes);
  EXPECT_GE(SecondsSince(begin), kBytes / kRate - 1e-3);
  // The fast link was free in between: its reservations end a slice before those of the slow one.
  EXPECT_LT(fast.Reserve(begin, milliseconds(0)), slow.Reserve(begin, milliseconds(0)));
}

TEST(PacedLinkTest, IdleTimeIsNotCaughtUp) {
  PacedLink link;
  const PaceClock::time_point begin = PaceClock::now();
  PacedTransfer transfer({{&link, kRate}});
  transfer.Await(kPacedSlice);
  PacedLink other;  // takes the time of 100 slices
  PacedTransfer({{&other, kRate / 100}}).Await(kPacedSlice);
  transfer.Await(kPacedSlice);
  // The second slice begins at most kPacedLateness before this thread asked for it.
  EXPECT_GE(link.Reserve(begin, milliseconds(0)) - begin,
            std::chrono::duration<double>(102 * kPacedSlice / kRate) - kPacedLateness);
}

TEST(PacedLinkTest, NoRateTakesNoTime) {
  PacedLink link;
  PacedTransfer({{&link, 0}}).Await(uint64_t{1} << 40);
  const PaceClock::time_point now = PaceClock::now();
  EXPECT_EQ(link.Reserve(now, milliseconds(0)), now);
}

TEST(DeviceRatesTest, TextKeepsEachNumber) {
  DeviceRates rates;
  rates.host_read = 3.1e9 / 64;
  rates.device_write = 0.1;
  rates.decompress_update = 7;
  const auto parsed = ParseDeviceRates(ToText(rates));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->host_read, rates.host_read);
  EXPECT_EQ(parsed->device_write, rates.device_write);
  EXPECT_EQ(parsed->internal, 0);
  EXPECT_EQ(parsed->decompress_update, 7);
}

TEST(DeviceRatesTest, RefusesOtherTexts) {
  for (const char* const text :
       {"", "1,2,3", "1,2,3,4,5,6,-7", "1,2,3,4,5,6,x", "1,2,3,4,5,6,inf", "1,2,3,4,5,6,7,8"}) {
    EXPECT_FALSE(ParseDeviceRates(text).ok()) << text;
  }
}

}  // namespace
}  // namespace eps
