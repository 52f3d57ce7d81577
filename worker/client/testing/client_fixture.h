#ifndef EPS_WORKER_CLIENT_TESTING_CLIENT_FIXTURE_H_
#define EPS_WORKER_CLIENT_TESTING_CLIENT_FIXTURE_H_

// A client and scripted servers over loopback, for the client's tests.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/memory_account.h"
#include "gtest/gtest.h"
#include "worker/client/parameter_client.h"
#include "worker/client/testing/scripted_shard.h"

namespace eps {

// Memory for a stage's tensors, in the order of its uses, filled with -1.
struct StageMemory {
  StageMemory(const JobSpec& spec, StageId stage);
  TensorPointers pointers();
  // Receives a fetch into this memory.
  std::shared_ptr<StageSink> sink() { return std::make_shared<HostSink>(&spec, stage, pointers()); }

  const JobSpec& spec;
  const StageId stage;
  std::vector<std::vector<float>> tensors;
};

v1::Ack AckOf(v1::Ack::Outcome outcome, uint64_t term, uint64_t step, uint32_t retry_after_ms = 0);
v1::PushReply ReplyOf(const v1::Ack& ack);

// A job on scripted servers and the client that trains it.
class ClientFixture : public testing::Test {
 protected:
  // Starts servers of a job with three untied layers and four parts. Call it before Join.
  void StartServers(int count, int width = 64, uint64_t chunk_elements = 2048);
  void ChangeAll(const std::function<void(Script*)>& change);
  // Connects and joins.
  void Join();
  void Begin(uint64_t step = 1);

  // Fetches a stage and expects the scripted weights.
  void ExpectFetch(StageId stage, uint64_t version, bool backward = false);
  void ExpectWeights(const StageMemory& memory, StageId stage, uint64_t version);

  StageMemory Gradient(StageId stage, float base);
  // Pushes a gradient that counted 7 tokens.
  absl::Status Push(StageId stage, uint32_t part, StageMemory* gradient,
                    std::shared_ptr<void> keep_alive = nullptr);
  // Expects that the servers counted `gradient` for (stage, part), each chunk once.
  void ExpectCounted(StageId stage, uint32_t part, const StageMemory& gradient);

  CodecSpec codecs_;    // the job's; set it before StartServers
  std::string frozen_;  // freezes tensors with this in their names; set it before StartServers
  JobSpec spec_;
  ChunkMap chunks_;
  MemoryAccount account_;
  std::vector<std::unique_ptr<ScriptedShard>> servers_;
  ClientOptions options_;
  JoinedJob job_;
  std::unique_ptr<ParameterClient> client_;
};

}  // namespace eps

#endif  // EPS_WORKER_CLIENT_TESTING_CLIENT_FIXTURE_H_
