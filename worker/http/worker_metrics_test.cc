#include "worker/http/worker_metrics.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "wire/http/metric_families.h"
#include "wire/http/testing/http_get.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Reports a step of 8 tokens after which the client has fetched so many bytes.
void Report(WorkerMetrics* metrics, uint64_t step, uint64_t fetched_bytes) {
  LossSum loss;
  loss.tokens = 8;
  StepTiming timing;
  timing.forward_seconds = 0.25;
  timing.fetch_wait_seconds = 0.5;
  ClientStats stats;
  stats.fetched_bytes = fetched_bytes;
  MemoryAccount account;
  metrics->OnStep(Step(step), loss, timing, stats, {64, 128}, account);
}

TEST(WorkerMetrics, CountersOutlastAClient) {
  WorkerMetrics metrics;
  EXPECT_FALSE(metrics.joined());
  metrics.OnJoined(2);
  Report(&metrics, 1, 100);
  Report(&metrics, 2, 200);
  metrics.OnJoined(2);  // the lease was lost; counters of a client begin again
  Report(&metrics, 2, 100);
  EXPECT_TRUE(metrics.joined());
  const std::string text = MetricsText(metrics.Collect());
  for (const char* line :
       {"eps_worker_joined 1", "eps_worker_parts 2", "eps_worker_step 2",
        "eps_worker_steps_total 3", "eps_worker_tokens_total 24",
        "eps_worker_seconds_total{phase=\"forward\"} 0.75",
        "eps_worker_seconds_total{phase=\"fetch_wait\"} 1.5", "eps_worker_fetched_bytes_total 300",
        "eps_worker_device_bytes 64", "eps_worker_device_peak_bytes 128"}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat(line, "\n")));
  }
  metrics.OnLeft();
  EXPECT_THAT(MetricsText(metrics.Collect()), HasSubstr("eps_worker_joined 0\n"));
}

TEST(WorkerMetrics, ServerIsReadyWithinAJob) {
  WorkerMetrics metrics;
  const auto server = ServeWorkerMetrics("127.0.0.1:0", &metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& address = (*server)->address();
  EXPECT_THAT(HttpGet(address, "/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(HttpGet(address, "/readyz"), StartsWith("HTTP/1.1 503 "));
  metrics.OnJoined(1);
  EXPECT_THAT(HttpGet(address, "/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("\neps_worker_parts 1\n"));
  EXPECT_THAT(HttpGet(address, "/"), StartsWith("HTTP/1.1 404 "));
  const auto second = ServeWorkerMetrics(address, &metrics);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("port 0 for several workers"));
  EXPECT_EQ(ServeWorkerMetrics("here", &metrics).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// docs/reference/metrics.md lists every metric with its type and its help text.
TEST(WorkerMetrics, ThePageListsAllMetrics) {
  std::ifstream file("docs/reference/metrics.md");
  ASSERT_TRUE(file.is_open());
  std::ostringstream page;
  page << file.rdbuf();
  size_t rows = 0;
  for (const absl::string_view line : absl::StrSplit(page.str(), '\n')) {
    rows += absl::StartsWith(line, "| `eps_worker_") ? 1 : 0;
  }
  const auto families = WorkerMetrics().Collect();
  EXPECT_EQ(rows, families.size());
  for (const prometheus::MetricFamily& family : families) {
    const bool counter = family.type == prometheus::MetricType::Counter;
    EXPECT_THAT(page.str(),
                HasSubstr(absl::StrCat("| `", family.name, "` | ", counter ? "counter" : "gauge",
                                       " | ", family.help, " |")));
    EXPECT_EQ(counter, absl::EndsWith(family.name, "_total")) << family.name;
  }
}

}  // namespace
}  // namespace eps
