// When the server ends a Fetch stream whose client has closed its side.

#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(FetchEnd, FollowsTheRefusalOfAnUnknownStage) {
  const std::unique_ptr<Server> server = StartTestServer();
  TestClient client(server->address());
  const JobSpec spec = TinySyntheticSpec();
  ASSERT_TRUE(client.CreateJob(spec, {server->address()}).ok());
  ASSERT_TRUE(client.Initialize(spec).ok());
  ASSERT_TRUE(client.BeginStep(spec, 1).ok());
  for (int i = 0; i < 100; ++i) {
    auto context = NewContext();
    auto stream = client.data().Fetch(context.get());
    v1::FetchRequest request;
    request.set_tag(6);
    request.set_job_id(spec.id().value());
    request.set_term(1);
    request.set_stage(99);
    stream->WriteLast(request, grpc::WriteOptions());
    v1::FetchSlice slice;
    ASSERT_TRUE(stream->Read(&slice)) << "attempt " << i;
    EXPECT_EQ(slice.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
    EXPECT_FALSE(stream->Read(&slice));
    EXPECT_TRUE(stream->Finish().ok());
  }
}

}  // namespace
}  // namespace eps
