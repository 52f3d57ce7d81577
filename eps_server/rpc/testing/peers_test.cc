// Which addresses a server connects to: those in servers.peers, or loopback.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/job/job_spec.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/grpc_peers.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr char kForeign[] = "192.0.2.1:50151";  // an address of documentation: nobody has it

std::unique_ptr<Server> StartWith(std::vector<std::string> peers) {
  ServerOptions options;
  options.threads = 2;
  options.memory_limit_bytes = uint64_t{1} << 30;
  options.peers = std::move(peers);
  auto server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

absl::Status Prepare(TestClient* client, const std::vector<std::string>& servers) {
  v1::PrepareJobRequest request;
  request.set_spec_text(TinySyntheticSpec().ToText());
  for (const std::string& server : servers) request.add_servers(server);
  request.set_shard(1);
  request.set_term(1);
  v1::PrepareJobReply reply;
  return FromGrpc(client->shard().PrepareJob(NewContext().get(), request, &reply), "");
}

void ExpectRefused(const absl::Status& status, const std::string& address) {
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), address)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "servers.peers")) << status;
}

TEST(GrpcPeersTest, AllowsLoopbackUnlessListed) {
  const GrpcPeers none({});
  EXPECT_TRUE(none.CheckPeer("127.0.0.1:5").ok());
  EXPECT_TRUE(none.CheckPeer("localhost:5").ok());
  ExpectRefused(none.CheckPeer(kForeign), kForeign);
  EXPECT_EQ(none.CheckPeer("nonsense").code(), absl::StatusCode::kInvalidArgument);

  const GrpcPeers some({"node-1:50151", "node-2:0"});
  EXPECT_TRUE(some.CheckPeer("node-1:50151").ok());
  EXPECT_TRUE(some.CheckPeer("node-2:7").ok());
  for (const char* other : {"node-1:50152", "node-3:50151", "127.0.0.1:5"}) {
    ExpectRefused(some.CheckPeer(other), other);
  }
}

TEST(ServerPeers, TheLeadCallsNoStranger) {
  const auto server = StartWith({});
  TestClient client(server->address());
  const JobSpec spec = TinySyntheticSpec();
  ExpectRefused(client.CreateJob(spec, {server->address(), kForeign}), kForeign);
  EXPECT_TRUE(client.CreateJob(spec, {server->address()}).ok()) << "the lead itself is no peer";
}

TEST(ServerPeers, AShardCallsNoStranger) {
  const auto server = StartWith({"127.0.0.1:9"});
  TestClient client(server->address());
  ExpectRefused(Prepare(&client, {kForeign, server->address()}), kForeign);
  ExpectRefused(Prepare(&client, {"127.0.0.1:10", server->address()}), "127.0.0.1:10");
  const absl::Status status = Prepare(&client, {"127.0.0.1:9", server->address()});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ServerPeers, ListedServersFormAJob) {
  const auto second = StartWith({"127.0.0.1:0"});
  const auto lead = StartWith({second->address()});
  TestClient client(lead->address());
  const absl::Status status =
      client.CreateJob(TinySyntheticSpec(), {lead->address(), second->address()});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ServerPeers, EachEntryIsAnAddress) {
  ServerOptions options;
  options.memory_limit_bytes = 1 << 20;
  options.peers = {"node-1"};
  const absl::Status status = Server::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "servers.peers: \"node-1\"")) << status;
}

}  // namespace
}  // namespace eps
