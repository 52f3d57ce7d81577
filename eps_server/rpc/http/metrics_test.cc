#include "eps_server/rpc/http/metrics.h"

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "wire/http/metric_families.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

v1::StatusReply StatusOfAJob() {
  v1::StatusReply status;
  status.set_job_id(0xabc);
  status.set_shard(1);
  status.set_state(v1::JOB_STATE_RUNNING);
  status.set_step(7);
  (*status.mutable_counters())["accepted"] = 12;
  (*status.mutable_counters())["cut_ms"] = 1500;
  v1::MemoryUse* use = status.add_memory();
  use->set_kind("state");
  use->set_live_bytes(4096);
  status.mutable_last_step()->set_loss(2.5);
  v1::LinkBytes* const link = status.add_link_bytes();
  link->set_device("csd-0");
  link->set_link("host");
  link->set_direction("read");
  link->set_purpose("weights");
  link->set_bytes(512);
  for (const double slack : {0.25, -0.5, 0.0}) {
    v1::StageTimes* times = status.add_stage_times();
    times->set_visits(slack == 0 ? 0 : slack > 0 ? 3 : 1);
    times->set_jit_seconds(0.5);
    times->set_slack_seconds(slack);
  }
  return status;
}

ProcessFacts FactsOfAServer() {
  ProcessFacts facts;
  facts.insecure = true;
  facts.denied = 3;
  facts.certificate_end = 1'800'000'000;
  facts.disk_free_bytes = {{"/fast", 4096}, {"/state", 8192}};
  facts.board.phases[v1::JOB_PHASE_QUEUED] = 2;
  facts.board.undriven = 1;
  return facts;
}

TEST(Metrics, TextReportsTheStatus) {
  const std::string page = MetricsText(MetricsOf(StatusOfAJob(), FactsOfAServer()));
  const std::string labels = "{job=\"0000000000000abc\",shard=\"1\"";
  for (const std::string& line :
       {absl::StrCat("eps_step_current", labels, "} 7"),
        absl::StrCat("eps_push_requests_total", labels, ",result=\"accepted\"} 12"),
        absl::StrCat("eps_push_requests_total", labels, ",result=\"duplicate\"} 0"),
        absl::StrCat("eps_cut_seconds_total", labels, "} 1.5"),
        absl::StrCat("eps_job_state", labels, ",state=\"running\"} 1"),
        absl::StrCat("eps_job_state", labels, ",state=\"failed\"} 0"),
        // Three visits of 0.25 s and one of -0.5 s; a stage without visits does not count.
        absl::StrCat("eps_slack_mean_seconds", labels, "} 0.0625"),
        absl::StrCat("eps_slack_least_seconds", labels, "} -0.5"),
        absl::StrCat("eps_stage_jit_seconds_total", labels, "} 2"),
        std::string("eps_memory_bytes{kind=\"state\"} 4096"),
        absl::StrCat("eps_loss", labels, "} 2.5"), std::string("eps_insecure 1"),
        std::string("eps_calls_denied_total 3"),
        std::string("eps_certificate_end_timestamp_seconds 1800000000"),
        std::string("eps_disk_free_bytes{folder=\"/fast\"} 4096"),
        std::string("eps_disk_free_bytes{folder=\"/state\"} 8192"),
        std::string(
            "eps_storage_link_bytes_total{device=\"csd-0\",link=\"host\",direction=\"read\","
            "purpose=\"weights\"} 512"),
        std::string("eps_jobs{phase=\"queued\"} 2"), std::string("eps_jobs{phase=\"running\"} 0"),
        std::string("eps_jobs_undriven 1"),
        std::string("# TYPE eps_push_requests_total counter")}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(line, "\n")));
  }
}

TEST(Metrics, ServerWithoutAJobReportsItsProcess) {
  v1::StatusReply status;
  status.set_memory_limit_bytes(99);
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : MetricsOf(status, ProcessFacts()))
    names.insert(family.name);
  EXPECT_EQ(names.count("eps_memory_limit_bytes"), 1u);
  EXPECT_EQ(names.count("eps_step_current"), 0u);
}

// docs/reference/metrics.md lists every metric with its type and its help text.
TEST(Metrics, ThePageListsAllMetrics) {
  std::ifstream file("docs/reference/metrics.md");
  ASSERT_TRUE(file.is_open());
  std::ostringstream page;
  page << file.rdbuf();
  size_t rows = 0;
  for (const absl::string_view line : absl::StrSplit(page.str(), '\n')) {
    const bool of_a_worker = absl::StartsWith(line, "| `eps_worker_");
    rows += absl::StartsWith(line, "| `eps_") && !of_a_worker ? 1 : 0;
  }
  const auto families = MetricsOf(StatusOfAJob(), FactsOfAServer());
  EXPECT_EQ(rows, families.size());
  for (const prometheus::MetricFamily& family : families) {
    const char* type = family.type == prometheus::MetricType::Counter ? "counter" : "gauge";
    const std::string row =
        absl::StrCat("| `", family.name, "` | ", type, " | ", family.help, " |");
    EXPECT_THAT(page.str(), HasSubstr(row));
    EXPECT_EQ(family.type == prometheus::MetricType::Counter,
              absl::EndsWith(family.name, "_total"));
  }
}

}  // namespace
}  // namespace eps
