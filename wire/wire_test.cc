#include <string>

#include "eps/v1/access.pb.h"
#include "eps/v1/control.pb.h"
#include "eps/v1/data.pb.h"
#include "eps/v1/shard.pb.h"
#include "gtest/gtest.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"
#include "wire/payload_message.h"

namespace eps {
namespace {

TEST(GrpcStatus, EveryCodeSurvivesBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "text");
    const grpc::Status wire = ToGrpc(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    const absl::Status back = FromGrpc(wire, "BeginStep on 10.0.0.1:50051");
    EXPECT_EQ(back.code(), status.code());
    EXPECT_EQ(back.message(), "BeginStep on 10.0.0.1:50051: text");
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK, "x").ok());
}

TEST(GrpcStatus, ARemovedStreamIsUnavailable) {
  const grpc::Status removed(grpc::StatusCode::UNKNOWN, "Stream removed");
  EXPECT_EQ(FromGrpc(removed, "Push").code(), absl::StatusCode::kUnavailable);
  const grpc::Status unknown(grpc::StatusCode::UNKNOWN, "something else");
  EXPECT_EQ(FromGrpc(unknown, "Push").code(), absl::StatusCode::kUnknown);
}

TEST(GrpcStatus, UnknownCodesBecomeUnknown) {
  const grpc::Status odd(static_cast<grpc::StatusCode>(99), "odd");
  EXPECT_EQ(FromGrpc(odd, "Push").code(), absl::StatusCode::kUnknown);
}

TEST(GrpcStatus, LongTextsAreCutAtACharacter) {
  std::string text;
  while (text.size() < 4000) text += "é";
  for (const std::string prefix : {"", "a"}) {
    const std::string cut = ToGrpc(absl::InternalError(prefix + text)).error_message();
    EXPECT_LE(cut.size(), kMaxStatusText);
    EXPECT_GT(cut.size(), kMaxStatusText - 8);
    EXPECT_EQ(cut.substr(cut.size() - 4), " …");
    const std::string body = cut.substr(prefix.size(), cut.size() - prefix.size() - 4);
    EXPECT_EQ(body.size() % 2, 0u) << "half a character was left";
  }
  const std::string exact(kMaxStatusText, 'x');
  EXPECT_EQ(ToGrpc(absl::InternalError(exact)).error_message(), exact);
}

TEST(Channel, DeclaredLimitsEqualTheConstants) {
  const google::protobuf::FileDescriptor* const files[] = {v1::HelloRequest::descriptor()->file(),
                                                           v1::FetchRequest::descriptor()->file(),
                                                           v1::ShardMessage::descriptor()->file()};
  for (const google::protobuf::FileDescriptor* file : files) {
    const google::protobuf::ServiceDescriptor& service = *file->service(0);
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& rpc = *service.method(i);
      const bool carries_spec = rpc.name() == "CreateJob" || rpc.name() == "PrepareJob";
      EXPECT_EQ(rpc.options().GetExtension(v1::max_request_bytes),
                carries_spec ? size_t{kMaxControlMessageBytes} : kMaxMessageBytes)
          << rpc.full_name();
    }
  }
}

TEST(Channel, ChecksAddresses) {
  for (const char* good : {"127.0.0.1:1", "localhost:50051", "node-3.eps.svc:65535", "[::1]:50051",
                           "[2001:db8::1]:7"}) {
    EXPECT_TRUE(CheckAddress(good, false).ok()) << good;
  }
  for (const char* bad : {"",
                          ":",
                          "host",
                          "host:",
                          ":50051",
                          "host:65536",
                          "host:-1",
                          "host:+1",
                          "host: 1",
                          "host:1x",
                          "host:999999999999",
                          "::1:50051",
                          "[::1:50051",
                          "[node]:50051",
                          "[]:1",
                          "http://host:1",
                          "ho st:1",
                          "host:1,host:2",
                          "unix:/tmp/x",
                          "ho\nst:1"}) {
    const absl::Status status = CheckAddress(bad, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("HOST:PORT"), absl::string_view::npos) << bad;
  }
  EXPECT_TRUE(CheckAddress("127.0.0.1:0", true).ok());
  EXPECT_FALSE(CheckAddress("127.0.0.1:0", false).ok());
}

TEST(Channel, KnowsLoopback) {
  for (const char* yes : {"127.0.0.1:1", "127.8.0.1:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(IsLoopback(yes)) << yes;
  }
  for (const char* no : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.example:1", "node:1", "1",
                         "localhost.example:1"}) {
    EXPECT_FALSE(IsLoopback(no)) << no;
  }
}

}  // namespace
}  // namespace eps
