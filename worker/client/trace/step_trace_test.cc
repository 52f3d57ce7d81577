// A worker's spans go to the lead that asks for them, on the lead's clock.

#include "worker/client/trace/step_trace.h"

#include <deque>
#include <set>
#include <string>

#include "base/trace/trace_log.h"
#include "gtest/gtest.h"
#include "worker/client/testing/client_fixture.h"

namespace eps {
namespace {

constexpr int64_t kLeadIsAhead = int64_t{3600} * 1'000'000'000;
constexpr int64_t kTolerance = 1'000'000'000;

// A lead that traces the job.
grpc::Status Order(v1::BeginStepReply* reply) {
  const int64_t now_ns = TraceNowNs() + kLeadIsAhead;
  reply->mutable_trace_order()->set_received_ns(now_ns);
  reply->mutable_trace_order()->set_sent_ns(now_ns);
  return grpc::Status::OK;
}

grpc::Status Busy(v1::BeginStepReply*) {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy");
}

class StepTraceTest : public ClientFixture {
 protected:
  void AnswerAtLead(std::deque<grpc::Status (*)(v1::BeginStepReply*)> answers) {
    servers_[0]->Change([&answers](Script* s) { s->begin_steps = answers; });
  }
  v1::TraceReport ReportOf(size_t begin) const { return servers_[0]->seen().begins[begin].trace(); }
};

// Returns "NAME of step N" for all spans.
std::set<std::string> SpansOf(const v1::TraceReport& report) {
  std::set<std::string> spans;
  for (const v1::TraceSpan& span : report.spans()) {
    spans.insert(report.names(static_cast<int>(span.name())) + " of step " +
                 std::to_string(span.step()));
  }
  return spans;
}

TEST_F(StepTraceTest, RecordsNothingWithoutAnOrder) {
  StartServers(1);
  Join();
  Begin(1);
  EXPECT_FALSE(TraceIsOn());
  Begin(2);
  EXPECT_FALSE(servers_[0]->seen().begins[1].has_trace());
}

TEST_F(StepTraceTest, SpansComeWithTheNextBegin) {
  StartServers(2);
  Join();
  AnswerAtLead({Order, Order});
  Begin(1);
  EXPECT_TRUE(TraceIsOn());
  EXPECT_FALSE(servers_[0]->seen().begins[0].has_trace());
  const int64_t before = TraceNowNs();
  ExpectFetch(StageId(1), 0);
  ASSERT_TRUE(client_->Flush().ok());
  const int64_t after = TraceNowNs();
  Begin(2);
  const v1::TraceReport first = ReportOf(1);
  EXPECT_EQ(SpansOf(first), (std::set<std::string>{"decode weights of step 1", "flush of step 1"}));
  for (const v1::TraceSpan& span : first.spans()) {
    EXPECT_GE(span.start_ns(), before + kLeadIsAhead - kTolerance);
    EXPECT_LE(span.start_ns(), after + kLeadIsAhead + kTolerance);
  }
  ExpectFetch(StageId(1), 1);
  Begin(3);
  const std::set<std::string> second = SpansOf(ReportOf(2));
  EXPECT_EQ(second, (std::set<std::string>{"begin step of step 2", "decode weights of step 2"}));
  EXPECT_FALSE(TraceIsOn()) << "the last answer asks for nothing";
  for (const v1::BeginStepRequest& begin : servers_[1]->seen().begins) {
    EXPECT_FALSE(begin.has_trace()) << "only the lead collects";
  }
}

TEST_F(StepTraceTest, ARepeatedBeginBringsNoSpanTwice) {
  StartServers(1);
  Join();
  AnswerAtLead({Order, Busy});
  Begin(1);
  ExpectFetch(StageId(1), 0);
  Begin(2);
  ASSERT_EQ(servers_[0]->seen().begins.size(), 3u);
  EXPECT_EQ(SpansOf(ReportOf(1)), std::set<std::string>{"decode weights of step 1"});
  EXPECT_EQ(SpansOf(ReportOf(2)), std::set<std::string>());
}

}  // namespace
}  // namespace eps
