#include "wire/scheduler_client.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/job_terms.h"
#include "wire/testing/answering_control.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

// A board with the job "a", which somebody else changes before the first `rivals` updates.
class OneJob final : public v1::Scheduler::Service {
 public:
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsReply* reply) override {
    EXPECT_NE(request->request_id(), "");
    if (!request->name().empty() && request->name() != "a") return grpc::Status::OK;
    v1::Job* const job = reply->add_jobs();
    job->set_name("a");
    job->set_generation(generation);
    return grpc::Status::OK;
  }
  grpc::Status UpdateJob(grpc::ServerContext*, const v1::UpdateJobRequest* request,
                         v1::UpdateJobReply* reply) override {
    if (rivals > 0) {
      --rivals;
      ++generation;
    }
    if (request->expected_generation() != generation) {
      return {grpc::StatusCode::ABORTED, "the job's generation is another one"};
    }
    reply->mutable_job()->set_generation(++generation);
    reply->mutable_job()->set_desired(request->desired());
    return grpc::Status::OK;
  }
  // Sends one event after the revision and ends; the last stream waits for the client.
  grpc::Status WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::JobEvent>* writer) override {
    if (request->board() != 7) return {grpc::StatusCode::OUT_OF_RANGE, "another board"};
    if (request->from_revision() < kLastRevision) {
      v1::JobEvent event;
      event.set_kind(v1::JobEvent::KIND_PUT);
      event.set_revision(request->from_revision() + 1);
      writer->Write(event);
      return grpc::Status::OK;
    }
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }

  static constexpr uint64_t kLastRevision = 5;
  std::atomic<int> rivals{0};
  std::atomic<uint64_t> generation{1};
};

class SchedulerClientTest : public testing::Test {
 protected:
  SchedulerClientTest() {
    KeepGrpcInitialised();
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&control_);
    builder.RegisterService(&board_);
    server_ = builder.BuildAndStart();
    lead_ = "127.0.0.1:" + std::to_string(port);
    auto client = SchedulerClient::Connect(lead_, Clock::now() + std::chrono::seconds(20));
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  AnsweringControl control_;
  OneJob board_;
  std::unique_ptr<grpc::Server> server_;
  std::string lead_;
  std::unique_ptr<SchedulerClient> client_;
};

TEST_F(SchedulerClientTest, UpdatesRepeatAfterOthersDid) {
  board_.rivals = 3;
  const absl::StatusOr<v1::Job> job = client_->Update("a", v1::DESIRED_PAUSE);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->desired(), v1::DESIRED_PAUSE);
  EXPECT_EQ(job->generation(), 5u);
}

TEST_F(SchedulerClientTest, UnknownNamesAreNotFound) {
  const absl::Status status = client_->Update("b", v1::DESIRED_PAUSE).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), lead_)) << status;
}

TEST_F(SchedulerClientTest, WatchesGoOnWhereTheyEnded) {
  std::vector<uint64_t> revisions;
  const absl::Status status = client_->Watch(7, 2, "", [&](const v1::JobEvent& event) {
    revisions.push_back(event.revision());
    return event.revision() < OneJob::kLastRevision;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(revisions, (std::vector<uint64_t>{3, 4, 5}));
  const absl::Status other = client_->Watch(8, 2, "", [](const v1::JobEvent&) { return true; });
  EXPECT_TRUE(absl::IsOutOfRange(other)) << other;
}

TEST(SchedulerClient, NamesAServerThatIsAway) {
  const absl::Status status =
      SchedulerClient::Connect("127.0.0.1:1", Clock::now() + std::chrono::milliseconds(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "127.0.0.1:1")) << status;
}

TEST(JobTerms, NamesAreDnsLabels) {
  for (const std::string& good :
       {std::string("a"), std::string("7"), std::string("a-b-9"), std::string(63, 'x')}) {
    EXPECT_TRUE(IsJobName(good)) << good;
  }
  for (const std::string& bad :
       {std::string(""), std::string("-a"), std::string("a-"), std::string("A"), std::string("a.b"),
        std::string("a_b"), std::string("a b"), std::string("\xc3\xa4"), std::string(64, 'x')}) {
    EXPECT_FALSE(IsJobName(bad)) << bad;
  }
}

TEST(JobTerms, PhasesHaveTheirNames) {
  EXPECT_EQ(PhaseName(v1::JOB_PHASE_RUNNING), "RUNNING");
  EXPECT_EQ(PhaseName(static_cast<v1::JobPhase>(77)), "77");
  EXPECT_TRUE(HasEnded(v1::JOB_PHASE_CANCELLED));
  EXPECT_FALSE(HasEnded(v1::JOB_PHASE_PAUSED));
}

}  // namespace
}  // namespace eps
