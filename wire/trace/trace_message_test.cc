// Reports of spans: their clocks, and their size.

#include "wire/trace/trace_message.h"

#include <string>

#include "base/trace/span_names.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(TraceMessageTest, ParkedRequestsMoveNoClock) {
  // The other clock is 100 s ahead; each message takes 2 ms, and the request is parked for 30 s.
  RoundTrip trip;
  trip.sent_ns = 5 * kSecond;
  trip.other_received_ns = 105 * kSecond + 2'000'000;
  trip.other_sent_ns = 135 * kSecond + 2'000'000;
  trip.received_ns = 35 * kSecond + 4'000'000;
  EXPECT_EQ(trip.OtherIsAheadNs(), 100 * kSecond);
}

TEST(TraceMessageTest, SpansMoveToTheOtherClock) {
  TraceRecording::Taken taken;
  taken.dropped = 4;
  taken.spans.push_back({kForwardSpan, 3, 10, 20, {7, 2, 1}});
  taken.spans.push_back({kBackwardSpan, 3, 40, 50, {7, 2, 0}});
  taken.spans.push_back({kForwardSpan, 4, 90, 5, {8, 1, 0}});
  const v1::TraceReport report = ToTraceReport("worker", taken, -1000, 1 << 20);
  EXPECT_EQ(report.process(), "worker");
  EXPECT_EQ(report.dropped(), 4u);
  ASSERT_EQ(report.names_size(), 2);
  ASSERT_EQ(report.spans_size(), 3);
  EXPECT_EQ(report.names(static_cast<int>(report.spans(2).name())), "forward");
  EXPECT_EQ(report.names(static_cast<int>(report.spans(1).name())), "backward");
  EXPECT_EQ(report.spans(0).start_ns(), -990);
  EXPECT_EQ(report.spans(0).duration_ns(), 20u);
  EXPECT_EQ(report.spans(0).thread(), 3u);
  EXPECT_EQ(report.spans(0).step(), 7u);
  EXPECT_EQ(report.spans(0).subject(), 2u);
  EXPECT_EQ(report.spans(0).part(), 1u);
}

TEST(TraceMessageTest, ALongReportDropsTheNewestSpans) {
  TraceRecording::Taken taken;
  constexpr uint64_t kSpans = 100'000;
  for (uint64_t i = 0; i < kSpans; ++i) {
    taken.spans.push_back({kDecodeSpan, 1, static_cast<int64_t>(i), 1u << 30, {1u << 30, 9, 9}});
  }
  const v1::TraceReport report = ToTraceReport("worker", taken, 0, kMaxWorkerReportBytes);
  EXPECT_LE(report.ByteSizeLong(), kMaxWorkerReportBytes);
  EXPECT_GT(report.ByteSizeLong(), kMaxWorkerReportBytes / 2);
  EXPECT_EQ(report.dropped() + static_cast<uint64_t>(report.spans_size()), kSpans);
  EXPECT_EQ(report.spans(0).start_ns(), 0);
}

}  // namespace
}  // namespace eps
