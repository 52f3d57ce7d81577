// Spans of this process: what a recording gets, and what a span costs while nobody records.

#include "base/trace/trace_log.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/trace/span_names.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(TraceLogTest, RecordsNothingUnlessRecording) {
  { const TraceSpan span(kForwardSpan, {1, 2, 3}); }
  EXPECT_FALSE(TraceIsOn());
  TraceRecording recording;
  EXPECT_TRUE(TraceIsOn());
  EXPECT_TRUE(recording.Take().spans.empty());
}

TEST(TraceLogTest, LeavesOutSpansThatBeganBefore) {
  std::vector<RecordedSpan> spans;
  {
    const TraceSpan before(kForwardSpan, {});
    TraceRecording recording;
    { const TraceSpan during(kBackwardSpan, {}); }
    spans = recording.Take().spans;
  }
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_STREQ(spans[0].name, kBackwardSpan);
}

TEST(TraceLogTest, SpansNestAndKeepTheirPlaces) {
  TraceRecording recording;
  const int64_t before = TraceNowNs();
  {
    const TraceSpan outer(kBackwardSpan, {7, 3, 2});
    const TraceSpan inner(kFlushSpan, {7});
  }
  const int64_t after = TraceNowNs();
  const std::vector<RecordedSpan> spans = recording.Take().spans;
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].name, kFlushSpan);  // ends first
  const RecordedSpan& outer = spans[1];
  EXPECT_EQ(outer.place.step, 7u);
  EXPECT_EQ(outer.place.subject, 3u);
  EXPECT_EQ(outer.place.part, 2u);
  EXPECT_EQ(outer.thread, spans[0].thread);
  EXPECT_LE(before, outer.start_ns);
  EXPECT_LE(outer.start_ns, spans[0].start_ns);
  const auto end = [](const RecordedSpan& s) {
    return s.start_ns + static_cast<int64_t>(s.duration_ns);
  };
  EXPECT_LE(end(spans[0]), end(outer));
  EXPECT_LE(end(outer), after);
  EXPECT_TRUE(recording.Take().spans.empty());  // each span is taken once
}

TEST(TraceLogTest, AFullRecordingDropsTheNewest) {
  TraceRecording small(2);
  TraceRecording large;
  for (uint64_t step = 1; step <= 5; ++step) RecordLasting(kStepSpan, TraceNowNs(), {step});
  const TraceRecording::Taken taken = small.Take();
  ASSERT_EQ(taken.spans.size(), 2u);
  EXPECT_EQ(taken.spans[0].place.step, 1u);
  EXPECT_EQ(taken.spans[0].thread, 0u);
  EXPECT_EQ(taken.spans[1].place.step, 2u);
  EXPECT_EQ(taken.dropped, 3u);
  EXPECT_EQ(large.Take().spans.size(), 5u);
  RecordLasting(kStepSpan, TraceNowNs(), {6});
  EXPECT_EQ(small.Take().spans.size(), 1u);  // there is room again
  EXPECT_EQ(small.Take().dropped, 0u);
}

TEST(TraceLogTest, ThreadsHaveTheirOwnNumbers) {
  constexpr int kThreads = 4;
  constexpr int kSpans = 1000;
  TraceRecording recording;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (uint64_t i = 0; i < kSpans; ++i) const TraceSpan span(kDecodeSpan, {i + 1, t + 1});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const TraceRecording::Taken taken = recording.Take();
  ASSERT_EQ(taken.spans.size(), size_t{kThreads} * kSpans);
  std::set<uint32_t> numbers;
  std::set<uint32_t> subjects;
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  for (const RecordedSpan& span : taken.spans) {
    numbers.insert(span.thread);
    subjects.insert(span.place.subject);
    pairs.insert({span.thread, span.place.subject});
  }
  EXPECT_EQ(numbers.size(), size_t{kThreads});
  EXPECT_EQ(numbers.count(0), 0u);
  EXPECT_EQ(subjects.size(), size_t{kThreads});
  EXPECT_EQ(pairs.size(), size_t{kThreads});
}

TEST(TraceLogTest, VersionsAreReadBySteps) {
  SetOpenStep(12, 10);  // two steps were skipped
  EXPECT_EQ(StepThatReads(10), 12u);
  EXPECT_EQ(StepThatReads(11), 13u);
  SetOpenStep(1, 0);
  EXPECT_EQ(StepThatReads(0), 1u);
}

// Returns the nanoseconds of one span, and of what `more` does beside it: the least of many rounds.
template <class More>
double NsOfSpan(const More& more) {
  constexpr int kSpans = 20'000;
  double least = 1e9;
  for (int round = 0; round < 50; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSpans; ++i) {
      const TraceSpan span(kDecodeSpan, {1, 2});
      more();
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    least = std::min(least, took.count() / kSpans);
  }
  return least;
}

TEST(TraceLogTest, SpansReadNoClockWhileOff) {
  const double alone = NsOfSpan([] {});
  const double with_clock = NsOfSpan([] { TraceNowNs(); });
  std::printf("a span while off: %.1f ns, and with a look at the clock %.1f ns\n", alone,
              with_clock);
  EXPECT_LT(2 * alone, with_clock) << "a span that nobody records costs more than the clock";
}

}  // namespace
}  // namespace eps
