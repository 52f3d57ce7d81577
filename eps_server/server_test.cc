#include "eps_server/server.h"

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>

#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/test_client.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kPatience{600};

ServerOptions DurableOptions(const std::string& folder) {
  ServerOptions options;
  options.threads = 2;
  options.memory_limit_bytes = uint64_t{1} << 30;
  options.cut_steps = 1;
  options.scrub_bytes_per_second = uint64_t{1} << 40;  // without a pause
  options.storage.emplace();
  options.storage->kind = "dram";
  options.storage->path = folder;
  options.storage->staging_bytes = uint64_t{8} << 20;
  return options;
}

// A read of the scrub is in flight at almost any time, and needs the pool to end.
TEST(Server, EndsWhileItScrubs) {
  constexpr int kServers = 20;
  for (int i = 0; i < kServers; ++i) {
    const std::string folder = testing::TempDir() + "/scrubs-" + std::to_string(i);
    auto server = Server::Start(DurableOptions(folder));
    ASSERT_TRUE(server.ok()) << server.status();
    TestClient client((*server)->address());
    const JobSpec spec = TinySyntheticSpec();
    const absl::Status created = client.CreateJob(spec, {(*server)->address()});
    ASSERT_TRUE(created.ok()) << created;
    ASSERT_TRUE(client.WaitForStatus(
        [](const v1::StatusReply& s) { return s.state() == v1::JOB_STATE_IMPORTING; }));
    ASSERT_TRUE(client.Initialize(spec).ok());
    ASSERT_TRUE(client.WaitForStatus(
        [](const v1::StatusReply& s) { return s.counters().count("scrub_passes") > 0; }));
    std::future<void> ended = std::async(std::launch::async, [&server] { server->reset(); });
    if (ended.wait_for(kPatience) != std::future_status::ready) {
      ADD_FAILURE() << "server " << i << " does not end";
      std::abort();  // the future would wait for it
    }
  }
}

}  // namespace
}  // namespace eps
