// Connecting, joining and beginning steps.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "worker/client/testing/client_fixture.h"

namespace eps {
namespace {

using std::chrono::milliseconds;

using JoinAndBeginTest = ClientFixture;

grpc::Status Busy(v1::BeginStepReply*) {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy");
}

TEST_F(JoinAndBeginTest, JoinRefusesUnknownCodecsListingKnownOnes) {
  StartServers(1);
  // Join reads the spec under the same lock.
  servers_[0]->Change([this](Script*) {
    spec_.codecs.weights = "mx5";
    spec_.codecs.gradients = "topk:0.01";
  });
  auto client = ParameterClient::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = (*client)->Join(JoinOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* const text :
       {"this worker cannot take part: quantization.weights: there is no codec \"mx5\"",
        "known are fp32, bf16", "; the codecs of the job are bf16, fp32, mx5, topk:0.01"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << text << " | " << status;
  }
}

TEST_F(JoinAndBeginTest, JoinLearnsSpecPartsTermAndStep) {
  StartServers(2);
  ChangeAll([](Script* s) {
    s->leases.parts = {1, 0};
    s->term = 5;
    s->next_step = 3;
    s->importing_joins = 2;  // the client retries until the job has its weights
  });
  Join();
  EXPECT_EQ(job_.spec.ToText(), spec_.ToText());
  EXPECT_EQ(job_.parts, (std::vector<PartId>{PartId(0), PartId(1)}));
  EXPECT_EQ(job_.term, Term(5));
  EXPECT_EQ(job_.next_step, Step(3));
  EXPECT_FALSE(job_.done);
}

TEST_F(JoinAndBeginTest, JoinWaitsForWeightsWithTheServer) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) { s->importing = true; });
  std::thread release([this] {
    EXPECT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.statuses >= 2; }));
    ChangeAll([](Script* s) { s->importing = false; });
  });
  Join();
  release.join();
}

TEST_F(JoinAndBeginTest, JoinGivesUpOnASilentServer) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) {
    s->importing = true;
    s->answer_status = false;
  });
  auto client = ParameterClient::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = (*client)->Join(JoinOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
}

TEST_F(JoinAndBeginTest, ConnectNamesTheFaultOfAnAddress) {
  ClientOptions options;
  EXPECT_EQ(ParameterClient::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.servers = {"nowhere"};
  auto bad = ParameterClient::Connect(options);
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(bad.status().message(), "nowhere")) << bad.status();

  StartServers(1);
  options.servers = {servers_[0]->address()};
  servers_[0]->Stop();
  options.rpc_timeout = milliseconds(200);
  auto away = ParameterClient::Connect(options);
  EXPECT_EQ(away.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(away.status().message(), options.servers[0])) << away.status();
  EXPECT_TRUE(absl::StrContains(away.status().message(), "worker.rpc_timeout")) << away.status();
}

TEST_F(JoinAndBeginTest, BeginStepNamesPartsOnEveryShard) {
  StartServers(2);
  ChangeAll([](Script* s) { s->leases.parts = {0, 1}; });
  Join();
  auto start = client_->BeginStep(Step(4));
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->version, Version(3));
  EXPECT_FALSE(start->done);
  EXPECT_FALSE(start->counted);
  for (auto& server : servers_) {
    const Seen seen = server->seen();
    ASSERT_EQ(seen.begins.size(), 1u);
    EXPECT_EQ(seen.begins[0].parts_size(), 2);
    EXPECT_FALSE(seen.begins[0].report_only());
  }
  auto end = client_->BeginStep(Step(spec_.training.steps + 1));
  ASSERT_TRUE(end.ok());
  EXPECT_TRUE(end->done);
}

TEST_F(JoinAndBeginTest, ReportsLossesToTheLead) {
  StartServers(2);
  ChangeAll([](Script* s) { s->leases.parts = {0, 1}; });
  Join();
  Begin(3);
  const PartLossSum losses[] = {{PartId(0), 1.5, 10}, {PartId(1), 2.5, 11}};
  const absl::Status status = client_->ReportLosses(losses);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(servers_[1]->seen().reports.empty()) << "only the lead sums";
  const v1::BeginStepRequest request = servers_[0]->seen().reports.back();
  EXPECT_TRUE(request.report_only());
  EXPECT_EQ(request.step(), 4u);
  ASSERT_EQ(request.losses_size(), 2);
  EXPECT_EQ(request.losses(1).part(), 1u);
  EXPECT_EQ(request.losses(1).loss_sum(), 2.5);
  EXPECT_EQ(request.losses(1).tokens(), 11u);
  EXPECT_EQ(request.losses(1).step(), 3u);
}

TEST_F(JoinAndBeginTest, BeginsAtTheLowestOpenStep) {
  StartServers(2);
  servers_[0]->Change([](Script* s) { s->next_step = 6; });
  servers_[1]->Change([](Script* s) { s->next_step = 5; });
  Join();
  EXPECT_EQ(job_.next_step, Step(5)) << "the lead is at step 6";
  EXPECT_FALSE(job_.done);
  Begin(5);
  EXPECT_EQ(servers_[0]->seen().begins.size(), 0u) << "it has completed step 5";
  EXPECT_EQ(servers_[1]->seen().begins.size(), 1u);
  std::vector<StageMemory> gradients;  // read until Flush returns
  for (uint32_t stage = 0; stage < 3; ++stage) gradients.push_back(Gradient(StageId(stage), 1));
  for (uint32_t stage = 0; stage < 3; ++stage) {
    ASSERT_TRUE(Push(StageId(stage), 0, &gradients[stage]).ok());
  }
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_TRUE(servers_[0]->seen().headers.empty()) << "its contributions are counted";
  EXPECT_FALSE(servers_[1]->seen().headers.empty());
  Begin(6);
  EXPECT_EQ(servers_[0]->seen().begins.size(), 1u);
  EXPECT_EQ(servers_[1]->seen().begins.size(), 2u);
}

TEST_F(JoinAndBeginTest, ACountedStepNeedsNoWork) {
  StartServers(1);
  ChangeAll([this](Script* s) {
    for (uint32_t stage = 0; stage < 3; ++stage) {
      for (const ChunkId chunk : chunks_.ChunksOfStage(StageId(stage))) {
        v1::Have& have = s->have.emplace_back();
        have.set_use_stage(stage);
        have.set_part_first(0);
        have.set_part_count(1);
        have.set_chunk(chunk.value());
      }
    }
  });
  Join();
  auto start = client_->BeginStep(Step(1));
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_TRUE(start->counted);
  ChangeAll([](Script* s) { s->have.pop_back(); });
  start = client_->BeginStep(Step(2));
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_FALSE(start->counted);
}

TEST_F(JoinAndBeginTest, ReportsAnEvaluationToTheLead) {
  StartServers(2);
  ChangeAll([](Script* s) { s->leases.parts = {1, 3}; });
  Join();
  const uint64_t steps = spec_.training.steps;
  // After a step in the middle, and after the last one, where the servers return done.
  for (const uint64_t step : {uint64_t{5}, steps + 1}) {
    ASSERT_TRUE(client_->BeginStep(Step(step)).ok());
    const size_t reports = servers_[0]->seen().reports.size();
    servers_[0]->Change([](Script* s) { s->begin_steps.assign(2, Busy); });
    const absl::Status status =
        client_->ReportEvaluation({{PartId(1), 4.5, 10}, {PartId(3), 2.25, 12}});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(servers_[0]->seen().reports.size(), reports + 3) << "retried like any other request";
    const v1::BeginStepRequest request = servers_[0]->seen().reports.back();
    EXPECT_EQ(request.step(), step);
    EXPECT_EQ(request.parts_size(), 2);
    EXPECT_TRUE(request.report_only());
    EXPECT_EQ(request.losses_size(), 0);
    ASSERT_EQ(request.evaluations_size(), 2);
    EXPECT_EQ(request.evaluations(1).part(), 3u);
    EXPECT_EQ(request.evaluations(1).step(), step - 1);
    EXPECT_EQ(request.evaluations(1).loss_sum(), 2.25);
    EXPECT_EQ(request.evaluations(1).tokens(), 12u);
    EXPECT_EQ(request.worker_nonce(), servers_[0]->seen().begins.front().worker_nonce());
  }
  EXPECT_TRUE(servers_[1]->seen().reports.empty()) << "only the lead sums";
  EXPECT_EQ(servers_[1]->seen().begins.size(), 2u);
}

TEST_F(JoinAndBeginTest, BeginStepWaitsForADrainingServer) {
  StartServers(2);
  Join();
  servers_[1]->Change([](Script* s) { s->begin_steps.assign(3, Busy); });
  EXPECT_TRUE(client_->BeginStep(Step(1)).ok());
  EXPECT_EQ(servers_[1]->seen().begins.size(), 4u);
  EXPECT_EQ(servers_[0]->seen().begins.size(), 1u);
}

TEST_F(JoinAndBeginTest, BeginStepGivesUpOnAbsentServers) {
  StartServers(2);
  options_.rpc_timeout = milliseconds(200);
  Join();
  servers_[1]->Stop();
  const absl::Status status = client_->BeginStep(Step(7)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[1]->address())) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "BeginStep 7")) << status;
}

TEST_F(JoinAndBeginTest, BeginStepWaitsWhileAServerAnswers) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  Join();
  ChangeAll([](Script* s) { s->park_begin_steps = true; });
  std::thread release([this] {
    EXPECT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.begins.size() >= 3; }));
    ChangeAll([](Script* s) { s->park_begin_steps = false; });
  });
  const auto start = client_->BeginStep(Step(1));
  EXPECT_TRUE(start.ok()) << start.status();
  release.join();
  EXPECT_GE(servers_[0]->seen().statuses, 2);
}

TEST_F(JoinAndBeginTest, BeginStepGivesUpOnSilentServers) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  Join();
  ChangeAll([](Script* s) {
    s->park_begin_steps = true;
    s->answer_status = false;
  });
  const absl::Status status = client_->BeginStep(Step(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
}

TEST_F(JoinAndBeginTest, BeginStepReportsRefusalsAndContradictions) {
  struct Case {
    grpc::Status (*reply)(v1::BeginStepReply*);
    absl::StatusCode code;
    std::string named;
  };
  const std::vector<Case> cases = {
      {[](v1::BeginStepReply*) {
         return grpc::Status(grpc::StatusCode::ABORTED, "term 1 is over");
       },
       absl::StatusCode::kAborted, "term 1 is over"},
      {[](v1::BeginStepReply* r) {
         r->set_term(2);
         return grpc::Status::OK;
       },
       absl::StatusCode::kAborted, "term moved from 1 to 2"},
      {[](v1::BeginStepReply* r) {
         r->set_version(9);
         return grpc::Status::OK;
       },
       absl::StatusCode::kInternal, "version 9"},
      {[](v1::BeginStepReply* r) {
         r->add_codecs()->set_chunk(1000);
         return grpc::Status::OK;
       },
       absl::StatusCode::kInternal, "chunk 1000"},
  };
  for (const Case& c : cases) {
    servers_.clear();
    StartServers(2);
    Join();
    servers_[1]->Change([&](Script* s) { s->begin_steps = {c.reply}; });
    const absl::Status status = client_->BeginStep(Step(1)).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.named)) << status;
    client_.reset();
  }
}

TEST_F(JoinAndBeginTest, BeginStepReturnsEarlierPushErrors) {
  StartServers(1);
  Join();
  Begin();
  ChangeAll([](Script* s) {
    s->park_begin_steps = true;
    s->pushes.header_replies = {ReplyOf(AckOf(v1::Ack::REFUSED, 1, 1))};
  });
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  const absl::Status status = client_->BeginStep(Step(2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "refused")) << status;
}

}  // namespace
}  // namespace eps
