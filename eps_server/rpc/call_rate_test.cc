#include "eps_server/rpc/call_rate.h"

#include <chrono>
#include <vector>

#include "gtest/gtest.h"

namespace eps {
namespace {

using std::chrono::milliseconds;

class CallRateTest : public testing::Test {
 protected:
  // Returns how many of `calls` calls may begin now.
  int Admitted(const void* connection, int calls) {
    int admitted = 0;
    for (int i = 0; i < calls; ++i) admitted += rate_.Admit(connection, now_) ? 1 : 0;
    return admitted;
  }

  CallRate rate_;
  CallRate::Clock::time_point now_{std::chrono::hours(1)};
  const char first_ = 0;
  const char second_ = 0;
};

TEST_F(CallRateTest, ABurstIsAdmittedOnce) {
  EXPECT_EQ(Admitted(&first_, 3000), 2000);
  EXPECT_EQ(Admitted(&first_, 10), 0);
  EXPECT_EQ(Admitted(&second_, 3000), 2000) << "another connection has a bucket of its own";
}

TEST_F(CallRateTest, CallsComeBackWithTime) {
  EXPECT_EQ(Admitted(&first_, 2000), 2000);
  now_ += milliseconds(100);
  EXPECT_EQ(Admitted(&first_, 200), 100);
  now_ += std::chrono::hours(1);
  EXPECT_EQ(Admitted(&first_, 5000), 2000) << "no more than a burst is saved";
}

TEST_F(CallRateTest, ManyConnectionsForgetNoEmptyBucket) {
  EXPECT_EQ(Admitted(&first_, 2000), 2000);
  std::vector<char> others(100'000);
  for (const char& other : others) {
    EXPECT_TRUE(rate_.Admit(&other, now_));
    now_ += std::chrono::microseconds(1);
  }
  EXPECT_LE(Admitted(&first_, 2000), 101) << "0.1 s have passed";
}

}  // namespace
}  // namespace eps
