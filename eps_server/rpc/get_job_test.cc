#include <memory>
#include <string>

#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

bool Contains(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

class GetJobTest : public testing::Test {
 protected:
  std::unique_ptr<Server> server_ = StartTestServer();
  TestClient client_{server_->address()};
  JobSpec spec_ = TinySyntheticSpec();
};

TEST_F(GetJobTest, TellsWhatTheJobIs) {
  v1::GetJobRequest request;
  v1::GetJobReply reply;
  const auto get = [&] {
    return FromGrpc(client_.control().GetJob(NewContext().get(), request, &reply), "");
  };
  EXPECT_EQ(get().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
  ASSERT_TRUE(get().ok());
  EXPECT_EQ(reply.job_id(), spec_.id().value());
  EXPECT_EQ(reply.spec_text(), spec_.ToText());
  ASSERT_EQ(reply.servers_size(), 1);
  EXPECT_EQ(reply.servers(0), server_->address());
  EXPECT_EQ(reply.config(), "");
  request.set_job_id(spec_.id().value() + 1);
  EXPECT_EQ(get().code(), absl::StatusCode::kNotFound);
}

TEST_F(GetJobTest, TheLastConfigurationIsKept) {
  v1::CreateJobRequest create;
  create.set_spec_text(spec_.ToText());
  create.add_servers(server_->address());
  const auto create_with = [&](const std::string& config) {
    v1::CreateJobReply created;
    create.set_config(config);
    return FromGrpc(client_.control().CreateJob(NewContext().get(), create, &created), "");
  };
  ASSERT_TRUE(create_with("training: {steps: 1}").ok());
  ASSERT_TRUE(create_with("").ok());
  v1::GetJobReply reply;
  ASSERT_TRUE(client_.control().GetJob(NewContext().get(), v1::GetJobRequest(), &reply).ok());
  EXPECT_EQ(reply.config(), "training: {steps: 1}");
  const absl::Status status = create_with(std::string((size_t{256} << 10) + 1, '#'));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status, "a configuration of 262145 bytes")) << status;
}

}  // namespace
}  // namespace eps
