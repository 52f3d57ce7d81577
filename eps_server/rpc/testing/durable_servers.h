#ifndef EPS_SERVER_RPC_TESTING_DURABLE_SERVERS_H_
#define EPS_SERVER_RPC_TESTING_DURABLE_SERVERS_H_

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eps/v1/scheduler.grpc.pb.h"
#include "eps_server/rpc/testing/test_client.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"

namespace eps {

// Two servers with data directories, which go with the test. The first is the lead. For tests.
class DurableServersTest : public testing::Test {
 protected:
  static constexpr size_t kServers = 2;

  DurableServersTest()
      : folder_(absl::StrCat(testing::TempDir(), "/durable-servers-",
                             testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
                             getpid())) {
    std::filesystem::remove_all(folder_);
    for (size_t i = 0; i < kServers; ++i) {
      servers_.push_back(nullptr);
      addresses_.emplace_back("127.0.0.1:0");
      Start(i);
    }
  }
  ~DurableServersTest() override {
    servers_.clear();
    std::filesystem::remove_all(folder_);
  }

  // Starts a server again, at the address that it had.
  void Start(size_t i) {
    servers_[i].reset();
    ServerOptions options;
    options.listen = addresses_[i];
    options.threads = 2;
    options.memory_limit_bytes = uint64_t{1} << 30;
    options.storage.emplace();
    options.storage->kind = "dram";
    options.storage->path = absl::StrCat(folder_, "/", i);
    options.storage->staging_bytes = uint64_t{8} << 20;
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    servers_[i] = *std::move(server);
    addresses_[i] = servers_[i]->address();
    clients_[i] = std::make_unique<TestClient>(addresses_[i]);
  }
  std::unique_ptr<v1::Scheduler::Stub> board() {
    return v1::Scheduler::NewStub(clients_[0]->channel());
  }
  // Waits until all servers are in that state. The lead knows first.
  void WaitFor(v1::JobState state) {
    for (const auto& client : clients_) {
      EXPECT_TRUE(client->WaitForStatus([&](const v1::StatusReply& status) {
        return status.state() == state;
      })) << v1::JobState_Name(state);
    }
  }

  const std::string folder_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::string> addresses_;
  std::unique_ptr<TestClient> clients_[kServers];
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_DURABLE_SERVERS_H_
