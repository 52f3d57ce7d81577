#include "eps_server/server.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"
#include "eps_server/rpc/testing/honest_worker.h"
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

// Creates a job, which can then be imported.
void CreateAndWait(const JobSpec& spec, TestClient* client, const std::string& address) {
  const absl::Status created = client->CreateJob(spec, {address});
  ASSERT_TRUE(created.ok()) << created;
  ASSERT_TRUE(client->WaitForStatus(
      [](const v1::StatusReply& s) { return s.state() == v1::JOB_STATE_IMPORTING; }));
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
    CreateAndWait(spec, &client, (*server)->address());
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

// A worker that reports nothing of its steps holds up a cut, which holds up the updates.
TEST(Server, NamesTheCutThatUpdatesWaitFor) {
  auto server = Server::Start(DurableOptions(testing::TempDir() + "/names-the-cut"));
  ASSERT_TRUE(server.ok()) << server.status();
  JobSpec spec = TinySyntheticSpec();
  spec.training.mode = Mode::kSealed;
  TestClient client((*server)->address());
  CreateAndWait(spec, &client, (*server)->address());
  HonestWorker worker({(*server)->address()}, spec);
  ASSERT_TRUE(worker.Step().ok());
  auto second = std::async(std::launch::async, [&worker] { return worker.Step(); });
  const std::string expected = "the cut of step 1, which waits for what shards and workers report";
  EXPECT_TRUE(client.WaitForStatus([&expected](const v1::StatusReply& status) {
    return std::any_of(status.waits().begin(), status.waits().end(), [&](const v1::Wait& wait) {
      return absl::StrContains(wait.waits_for(), expected);
    });
  }));
  server->reset();
  EXPECT_FALSE(second.get().ok());
}

// Mode sealed with state on a disk: the gradients of a step are larger than the server's memory.
TEST(Server, StoresGradientsBeyondItsMemory) {
  JobSpec spec = TinySyntheticSpec();
  spec.name = "deep";
  spec.model.synthetic.n_layer = 32;
  spec.model.synthetic.n_embd = 256;
  spec.training.mode = Mode::kSealed;
  spec.chunk_elements = 256 * 256;
  spec.tensors.clear();
  spec.groups.clear();
  spec.stages.clear();
  ASSERT_TRUE(BuildLayout(/*weight_decay=*/0, &spec).ok());
  uint64_t gradient_bytes = 0;
  for (const Chunk& chunk : ChunkMap::Build(spec).chunks()) gradient_bytes += 4 * chunk.elements;
  ServerOptions options = DurableOptions(testing::TempDir() + "/stores-gradients");
  options.memory_limit_bytes = gradient_bytes - 1;
  options.cut_steps = 1000;  // one waits for what workers report
  options.storage->kind = "nvme";
  options.storage->staging_bytes = uint64_t{3} << 20;
  const auto server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  TestClient client((*server)->address());
  CreateAndWait(spec, &client, (*server)->address());
  HonestWorker worker({(*server)->address()}, spec);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = worker.Step();
    ASSERT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace eps
