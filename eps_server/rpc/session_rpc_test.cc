// Control.Session over a real socket.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

using Stream = grpc::ClientReaderWriter<v1::Beat, v1::Notice>;

// A worker's session on a server.
class SessionRpc : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(client_.CreateJob(spec_, {server_->address()}).ok());
    ASSERT_TRUE(client_.Initialize(spec_).ok());
  }
  v1::Beat Beat(uint64_t nonce) const {
    v1::Beat beat;
    beat.set_job_id(spec_.id().value());
    beat.set_worker_nonce(nonce);
    beat.set_term(1);
    beat.set_waits(true);
    return beat;
  }
  std::unique_ptr<Stream> Open() {
    contexts_.push_back(NewContext());
    return client_.control().Session(contexts_.back().get());
  }
  static absl::Status End(Stream* stream) { return FromGrpc(stream->Finish(), "Session"); }

  std::unique_ptr<Server> server_ = StartTestServer();
  TestClient client_{server_->address()};
  JobSpec spec_ = TinySyntheticSpec();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
};

TEST_F(SessionRpc, AnswersABeatAndEndsAtLeave) {
  v1::JoinReply joined;
  ASSERT_TRUE(client_.Join(spec_, &joined).ok());
  ASSERT_EQ(joined.leases_size(), static_cast<int>(spec_.training.parts));
  auto stream = Open();
  ASSERT_TRUE(stream->Write(Beat(1)));
  v1::Notice notice;
  ASSERT_TRUE(stream->Read(&notice));
  EXPECT_EQ(notice.leases_size(), joined.leases_size());
  EXPECT_EQ(notice.lease_ms(), 10'000u);
  EXPECT_FALSE(notice.done());
  v1::Beat leave = Beat(1);
  leave.set_leave(true);
  ASSERT_TRUE(stream->Write(leave));
  EXPECT_FALSE(stream->Read(&notice));
  const absl::Status ended = End(stream.get());
  EXPECT_TRUE(ended.ok()) << ended;
}

TEST_F(SessionRpc, AStandbyIsToldOfItsParts) {
  ASSERT_TRUE(client_.Join(spec_).ok());
  auto holder = Open();
  ASSERT_TRUE(holder->Write(Beat(1)));
  v1::JoinRequest request;
  request.set_job_id(spec_.id().value());
  request.set_worker_nonce(2);
  v1::JoinReply joined;
  ASSERT_TRUE(client_.control().Join(NewContext().get(), request, &joined).ok());
  EXPECT_EQ(joined.leases_size(), 0);
  auto standby = Open();
  ASSERT_TRUE(standby->Write(Beat(2)));
  v1::Notice notice;
  ASSERT_TRUE(standby->Read(&notice));
  EXPECT_EQ(notice.leases_size(), 0);
  v1::Beat leave = Beat(1);
  leave.set_leave(true);
  ASSERT_TRUE(holder->Write(leave));
  ASSERT_TRUE(standby->Read(&notice));
  ASSERT_GT(notice.leases_size(), 0);
  EXPECT_EQ(notice.leases(0).generation(), 2u);
}

TEST_F(SessionRpc, UnknownWorkersAndJobsEnd) {
  auto stream = Open();
  ASSERT_TRUE(stream->Write(Beat(9)));
  v1::Notice notice;
  EXPECT_FALSE(stream->Read(&notice));
  absl::Status ended = End(stream.get());
  EXPECT_TRUE(absl::IsAborted(ended)) << ended;
  stream = Open();
  v1::Beat beat = Beat(1);
  beat.set_job_id(7);
  ASSERT_TRUE(stream->Write(beat));
  EXPECT_FALSE(stream->Read(&notice));
  ended = End(stream.get());
  EXPECT_TRUE(absl::IsNotFound(ended)) << ended;
}

TEST_F(SessionRpc, ABrokenStreamEndsTheSession) {
  ASSERT_TRUE(client_.Join(spec_).ok());
  {
    auto stream = Open();
    ASSERT_TRUE(stream->Write(Beat(1)));
    v1::Notice notice;
    ASSERT_TRUE(stream->Read(&notice));
    contexts_.back()->TryCancel();
    EXPECT_FALSE(End(stream.get()).ok());
  }
  // The same process opens it again, and keeps its leases.
  auto stream = Open();
  ASSERT_TRUE(stream->Write(Beat(1)));
  v1::Notice notice;
  ASSERT_TRUE(stream->Read(&notice));
  EXPECT_EQ(notice.leases(0).generation(), 1u);
}

TEST_F(SessionRpc, ManyBeatsAreAnsweredOnce) {
  ASSERT_TRUE(client_.Join(spec_).ok());
  auto stream = Open();
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(stream->Write(Beat(1)));
  v1::Notice notice;
  ASSERT_TRUE(stream->Read(&notice)) << "only the first one is answered";
  v1::Beat leave = Beat(1);
  leave.set_leave(true);
  ASSERT_TRUE(stream->Write(leave));
  EXPECT_FALSE(stream->Read(&notice));
  EXPECT_TRUE(End(stream.get()).ok());
}

}  // namespace
}  // namespace eps
