// When the server ends a Fetch stream whose client has closed its side.

#include <algorithm>
#include <string>
#include <vector>

#include "base/job/layout/chunk_map.h"
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

TEST(FetchEnd, FollowsARefusalThatConcernsNoChunk) {
  const JobSpec spec = TinySyntheticSpec();
  const ChunkMap chunks = ChunkMap::Build(spec);
  const auto of_stage = chunks.ChunksOfStage(StageId(0));
  // So many servers that one of them holds nothing of stage 0.
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> addresses;
  while (servers.size() <= of_stage.size()) {
    servers.push_back(StartTestServer());
    addresses.push_back(servers.back()->address());
  }
  const std::vector<ShardId> placement = chunks.Place(static_cast<uint32_t>(servers.size()));
  uint32_t without = 0;
  const auto holds = [&](ChunkId id) { return placement[id.value()] == ShardId(without); };
  while (std::any_of(of_stage.begin(), of_stage.end(), holds)) ++without;
  ASSERT_TRUE(TestClient(addresses[0]).CreateJob(spec, addresses).ok());
  TestClient client(addresses[without]);
  for (int i = 0; i < 100; ++i) {
    auto context = NewContext();
    auto stream = client.data().Fetch(context.get());
    v1::FetchRequest request;
    request.set_tag(6);
    request.set_job_id(spec.id().value());
    request.set_term(99);
    request.set_stage(0);
    stream->WriteLast(request, grpc::WriteOptions());
    v1::FetchSlice slice;
    ASSERT_TRUE(stream->Read(&slice)) << "attempt " << i;
    EXPECT_EQ(slice.code(), static_cast<uint32_t>(grpc::StatusCode::ABORTED)) << slice.message();
    EXPECT_FALSE(stream->Read(&slice));
    EXPECT_TRUE(stream->Finish().ok());
  }
}

}  // namespace
}  // namespace eps
