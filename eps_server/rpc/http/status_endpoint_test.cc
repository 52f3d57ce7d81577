#include "eps_server/rpc/http/status_endpoint.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "wire/http/testing/http_get.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

using ::testing::StartsWith;
using Phase = StatusEndpoint::Phase;

void AnswerAtOnce(const std::function<void(v1::StatusReply)>& done) {
  v1::StatusReply status;
  status.set_memory_limit_bytes(99);
  done(std::move(status));
}

ProcessFacts NoFacts() { return ProcessFacts(); }

// Returns the code of the answer.
int CodeOf(const StatusEndpoint& endpoint, const std::string& path) {
  return std::stoi(HttpGet(endpoint.address(), path).substr(sizeof("HTTP/1.1")));
}

TEST(StatusEndpoint, ProbesFollowThePhase) {
  const auto endpoint = StatusEndpoint::Start("127.0.0.1:0", AnswerAtOnce, NoFacts);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const auto codes = [&] {
    std::vector<int> all;
    for (const char* path : {"/healthz", "/startupz", "/readyz", "/metrics"}) {
      all.push_back(CodeOf(**endpoint, path));
    }
    return all;
  };
  EXPECT_EQ(codes(), std::vector<int>({200, 503, 503, 503}));
  (*endpoint)->SetPhase(Phase::kReady);
  EXPECT_EQ(codes(), std::vector<int>({200, 200, 200, 200}));
  (*endpoint)->SetPhase(Phase::kStopping);
  EXPECT_EQ(codes(), std::vector<int>({200, 200, 503, 200}));
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/readyz"), HasSubstr("the server is stopping"));
}

TEST(StatusEndpoint, ScrapeReportsTheStatus) {
  const auto endpoint = StatusEndpoint::Start("127.0.0.1:0", AnswerAtOnce, NoFacts);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  (*endpoint)->SetPhase(Phase::kReady);
  const std::string page = HttpGet((*endpoint)->address(), "/metrics");
  EXPECT_THAT(page, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("\neps_memory_limit_bytes 99\n"));
  for (const char* path : {"/", "/metrics/", "/api/state", "/../healthz"}) {
    EXPECT_EQ(CodeOf(**endpoint, path), 404) << path;
  }
}

TEST(StatusEndpoint, ReportsATakenPort) {
  const auto first = StatusEndpoint::Start("127.0.0.1:0", AnswerAtOnce, NoFacts);
  ASSERT_TRUE(first.ok());
  const auto second = StatusEndpoint::Start((*first)->address(), AnswerAtOnce, NoFacts);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("change servers.http"));
}

TEST(StatusEndpoint, ScrapeEndsWithoutAnAnswer) {
  std::function<void(v1::StatusReply)> late;
  const auto endpoint = StatusEndpoint::Start(
      "127.0.0.1:0", [&](std::function<void(v1::StatusReply)> done) { late = std::move(done); },
      NoFacts);
  ASSERT_TRUE(endpoint.ok());
  (*endpoint)->SetPhase(Phase::kReady);
  EXPECT_THAT(HttpGet((*endpoint)->address(), "/metrics"), StartsWith("HTTP/1.1 503 "));
  late(v1::StatusReply());
}

}  // namespace
}  // namespace eps
