#include "worker/client/parameter_client.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "spec/model_layout.h"
#include "spec/test_specs.h"
#include "worker/client/scripted_shard.h"

namespace eps {
namespace {

using std::chrono::milliseconds;

JobSpec Spec(int width, uint64_t chunk_elements) {
  JobSpec spec = TinySyntheticSpec();
  spec.model.synthetic.n_layer = 3;
  spec.model.synthetic.n_embd = width;
  spec.model.synthetic.tied = false;
  spec.chunk_elements = chunk_elements;
  spec.training.parts = 4;
  spec.groups.clear();
  spec.tensors.clear();
  spec.stages.clear();
  EXPECT_TRUE(BuildLayout(0.01, &spec).ok());
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

// The tensors of a stage, in the order of its uses.
struct StageMemory {
  StageMemory(const JobSpec& spec, StageId stage) {
    for (const TensorUse& use : spec.stages[stage.value()].uses) {
      tensors.emplace_back(spec.tensors[use.tensor.value()].elements(), -1.0f);
    }
  }
  TensorPointers pointers() {
    TensorPointers p;
    for (auto& tensor : tensors) p.push_back(tensor.data());
    return p;
  }
  std::vector<std::vector<float>> tensors;
};

class ParameterClientTest : public testing::Test {
 protected:
  void StartServers(int count, int width = 64, uint64_t chunk_elements = 2048) {
    spec_ = Spec(width, chunk_elements);
    chunks_ = ChunkMap::Build(spec_);
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i) {
      servers_.push_back(std::make_unique<ScriptedShard>(&spec_, &chunks_, i));
      addresses.push_back(servers_.back()->address());
    }
    for (auto& server : servers_) server->SetServers(addresses);
    options_.servers = {addresses[0]};
    options_.account = &account_;
  }

  void ChangeAll(const std::function<void(Script*)>& change) {
    for (auto& server : servers_) server->Change(change);
  }

  // Connects and joins.
  void Join() {
    auto client = ParameterClient::Connect(options_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto job = client_->Join(JoinOptions());
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }

  void Begin(uint64_t step = 1) {
    auto start = client_->BeginStep(Step(step), {});
    ASSERT_TRUE(start.ok()) << start.status();
  }

  // Fetches a stage and expects the scripted weights.
  void ExpectFetch(StageId stage, uint64_t version, bool backward = false) {
    StageMemory memory(spec_, stage);
    auto fetch = client_->FetchStage(stage, Version(version), backward, memory.pointers());
    const absl::Status status = fetch->Wait();
    ASSERT_TRUE(status.ok()) << status;
    ExpectWeights(memory, stage, version);
  }

  void ExpectWeights(const StageMemory& memory, StageId stage, uint64_t version) {
    for (const ChunkId id : chunks_.ChunksOfStage(stage)) {
      const Chunk& chunk = chunks_.chunk(id);
      for (const Segment& segment : chunk.segments) {
        const auto& uses = spec_.stages[stage.value()].uses;
        size_t use = 0;
        while (uses[use].tensor != segment.tensor) ++use;
        for (uint64_t i = 0; i < segment.elements(); ++i) {
          ASSERT_EQ(memory.tensors[use][segment.tensor_offset + i],
                    ScriptedWeight(id.value(), segment.offset + i, version))
              << "chunk " << id << " element " << i;
        }
      }
    }
  }

  StageMemory Gradient(StageId stage, float base) {
    StageMemory memory(spec_, stage);
    for (size_t t = 0; t < memory.tensors.size(); ++t) {
      for (size_t i = 0; i < memory.tensors[t].size(); ++i) {
        memory.tensors[t][i] = base + static_cast<float>(t) * 0.25f +
                               static_cast<float>(i % 509) * 0.001f;
      }
    }
    return memory;
  }

  absl::Status Push(StageId stage, uint32_t part, StageMemory* gradient,
                    std::shared_ptr<void> keep_alive = nullptr) {
    return client_->Push(stage, PartId(part), 7, gradient->pointers(), std::move(keep_alive));
  }

  // What the servers counted for (stage, part) is `gradient`, each chunk once.
  void ExpectCounted(StageId stage, uint32_t part, const StageMemory& gradient) {
    for (const ChunkId id : chunks_.ChunksOfStage(stage)) {
      const Seen seen = servers_[PlaceOf(id)]->seen();
      const Seen::Place place{stage.value(), part, id.value()};
      ASSERT_EQ(seen.counted.count(place), 1u) << "chunk " << id;
      EXPECT_EQ(seen.times_counted.at(place), 1);
      EXPECT_EQ(seen.tokens.at(place), 7u);
      for (const Segment& segment : chunks_.chunk(id).segments) {
        const auto& uses = spec_.stages[stage.value()].uses;
        size_t use = 0;
        while (uses[use].tensor != segment.tensor) ++use;
        for (uint64_t i = 0; i < segment.elements(); ++i) {
          ASSERT_EQ(seen.counted.at(place)[segment.offset + i],
                    gradient.tensors[use][segment.tensor_offset + i]);
        }
      }
    }
  }

  size_t PlaceOf(ChunkId id) const {
    return chunks_.Place(static_cast<uint32_t>(servers_.size()))[id.value()].value();
  }

  JobSpec spec_;
  ChunkMap chunks_;
  MemoryAccount account_;
  std::vector<std::unique_ptr<ScriptedShard>> servers_;
  ClientOptions options_;
  JoinedJob job_;
  std::unique_ptr<ParameterClient> client_;
};

v1::Ack AckOf(v1::Ack::Outcome outcome, uint64_t term, uint64_t step, uint32_t retry_after_ms = 0) {
  v1::Ack ack;
  ack.set_outcome(outcome);
  ack.set_term(term);
  ack.set_step(step);
  ack.set_message("scripted");
  ack.set_retry_after_ms(retry_after_ms);
  return ack;
}

TEST_F(ParameterClientTest, JoinLearnsSpecPartsTermAndStep) {
  StartServers(2);
  ChangeAll([](Script* s) {
    s->parts = {1, 0};
    s->term = 5;
    s->next_step = 3;
    s->importing_joins = 2;  // the client asks again until the job has its weights
  });
  Join();
  EXPECT_EQ(job_.spec.ToText(), spec_.ToText());
  EXPECT_EQ(job_.parts, (std::vector<PartId>{PartId(0), PartId(1)}));
  EXPECT_EQ(job_.term, Term(5));
  EXPECT_EQ(job_.next_step, Step(3));
  EXPECT_FALSE(job_.done);
}

TEST_F(ParameterClientTest, JoinWaitsForTheWeightsAsLongAsTheServerDoes) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) { s->importing = true; });
  std::thread release([this] {
    EXPECT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.statuses >= 2; }));
    ChangeAll([](Script* s) { s->importing = false; });
  });
  Join();
  release.join();
}

TEST_F(ParameterClientTest, JoinGivesUpOnASilentServer) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) {
    s->importing = true;
    s->answer_status = false;
  });
  auto client = ParameterClient::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = (*client)->Join(JoinOptions()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
}

TEST_F(ParameterClientTest, ConnectNamesWhatIsWrongWithAnAddress) {
  ClientOptions options;
  EXPECT_EQ(ParameterClient::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.servers = {"nowhere"};
  auto bad = ParameterClient::Connect(options);
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(bad.status().message(), "nowhere")) << bad.status();

  StartServers(1);
  options.servers = {servers_[0]->address()};
  servers_[0]->Stop();
  options.rpc_timeout = milliseconds(200);
  auto away = ParameterClient::Connect(options);
  EXPECT_EQ(away.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(away.status().message(), options.servers[0])) << away.status();
  EXPECT_TRUE(absl::StrContains(away.status().message(), "worker.rpc_timeout")) << away.status();
}

TEST_F(ParameterClientTest, FetchesStagesThatAreStripedOverServers) {
  StartServers(2);
  ChangeAll([](Script* s) { s->slice_bytes = 1000; });
  Join();
  Begin();
  for (uint32_t stage = 0; stage < 3; ++stage) {
    ExpectFetch(StageId(stage), 4, /*backward=*/stage == 2);
  }
  const Seen seen = servers_[0]->seen();
  ASSERT_EQ(seen.fetches.size(), 3u);
  EXPECT_EQ(seen.fetches[0].pass(), v1::PASS_FORWARD);
  EXPECT_EQ(seen.fetches[2].pass(), v1::PASS_BACKWARD);
  EXPECT_EQ(seen.fetches[2].version(), 4u);
  EXPECT_GT(client_->stats().fetched_bytes, 3u * 64 * 64 * 4);
  EXPECT_EQ(account_.live_bytes(), 0u);
  EXPECT_GT(account_.peak_bytes(MemoryKind::kStage), 0u);
}

TEST_F(ParameterClientTest, TakesTheCodecsOfTheStepsTable) {
  StartServers(1);
  ChangeAll([](Script* s) { s->weights = s->gradients = "bf16"; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  ASSERT_TRUE(client_->FetchStage(StageId(1), Version(1), false, memory.pointers())->Wait().ok());
  ASSERT_EQ(chunks_.chunk(ChunkId(3)).segments[0].tensor, spec_.stages[1].uses[0].tensor);
  EXPECT_EQ(ScriptedWeight(3, 4, 1), 3004.5f);
  EXPECT_EQ(memory.tensors[0][4], 3008.0f) << "3004.5 in bf16";
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_EQ(servers_[0]->seen().headers[0].codec(), static_cast<uint32_t>(CodecId::kBf16));
}

TEST_F(ParameterClientTest, AssemblesSlicesOfDifferentChunksThatInterleave) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->interleave = true;
    s->slice_bytes = 100;
  });
  Join();
  Begin();
  ExpectFetch(StageId(1), 2);
}

TEST_F(ParameterClientTest, KeepsAtMostEightRequestsInFlight) {
  StartServers(1);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  std::vector<StageMemory> memories(12, StageMemory(spec_, StageId(0)));
  std::vector<std::unique_ptr<PendingFetch>> fetches;
  for (auto& memory : memories) {
    fetches.push_back(client_->FetchStage(StageId(0), Version(1), false, memory.pointers()));
  }
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.fetches.size() >= 8; }));
  for (size_t i = 0; i < fetches.size(); ++i) {
    ChangeAll([](Script* s) { s->answer_parked = 1; });
    ASSERT_TRUE(fetches[i]->Wait().ok());
    ExpectWeights(memories[i], StageId(0), 1);
  }
  EXPECT_EQ(servers_[0]->seen().fetches.size(), 12u);
  EXPECT_EQ(servers_[0]->seen().most_in_flight, 8u);
}

TEST_F(ParameterClientTest, RepeatsOnlyWhatIsMissingWhenAFetchBreaks) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->slice_bytes = 4096;      // two slices for each of the two panels, one for the bias
    s->break_fetch_after = 4;   // in the middle of the second panel
  });
  Join();
  Begin();
  ExpectFetch(StageId(1), 9);
  const Seen seen = servers_[0]->seen();
  ASSERT_EQ(seen.fetches.size(), 2u);
  EXPECT_EQ(seen.fetches[0].chunks_size(), 3);
  EXPECT_LT(seen.fetches[1].chunks_size(), 3) << "the chunks that were complete are not repeated";
  EXPECT_EQ(client_->stats().reconnects, 1u);
  EXPECT_GE(seen.hellos, 4) << "Hello is the first call on every connection";
}

TEST_F(ParameterClientTest, RepeatsAChunkWhoseCrcDiffers) {
  StartServers(1);
  ChangeAll([](Script* s) { s->damage = 2; });
  Join();
  Begin();
  ExpectFetch(StageId(0), 1);
  EXPECT_EQ(servers_[0]->seen().fetches.size(), 3u);
}

TEST_F(ParameterClientTest, RefusesAChunkWhoseCrcDiffersAgainAndAgain) {
  StartServers(1);
  ChangeAll([](Script* s) { s->damage = 1000; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(0));
  const absl::Status status =
      client_->FetchStage(StageId(0), Version(1), false, memory.pointers())->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "layer.0")) << status;
}

TEST_F(ParameterClientTest, RefusesSlicesThatContradictTheRequest) {
  const std::vector<std::pair<std::string, std::function<void(v1::FetchSlice*)>>> cases = {
      {"not asked for", [](v1::FetchSlice* s) { s->set_tag(99); }},
      {"not asked for", [](v1::FetchSlice* s) { s->set_chunk(7); }},
      {"got version 8", [](v1::FetchSlice* s) { s->set_version(8); }},
      {"codec 2", [](v1::FetchSlice* s) { s->set_codec(2); }},
      {"expected offset", [](v1::FetchSlice* s) { s->set_offset(s->offset() + 1); }},
      {"at most", [](v1::FetchSlice* s) { s->set_total_bytes(1 << 30); }},
      {"a slice of", [](v1::FetchSlice* s) { s->mutable_data()->append("x"); }},
      {"the last", [](v1::FetchSlice* s) { s->mutable_data()->resize(1); }},
  };
  for (const auto& [expected, edit] : cases) {
    servers_.clear();
    StartServers(1);
    ChangeAll([&edit = edit](Script* s) { s->edit_slice = edit; });
    Join();
    Begin();
    StageMemory memory(spec_, StageId(0));
    const absl::Status status =
        client_->FetchStage(StageId(0), Version(1), false, memory.pointers())->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << expected << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), expected)) << status;
    client_.reset();
  }
}

TEST_F(ParameterClientTest, PassesOnTheRefusalOfAFetch) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->edit_slice = [](v1::FetchSlice* slice) {
      slice->clear_data();
      slice->set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
      slice->set_message("version 1 is gone");
    };
  });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(2));
  const absl::Status status =
      client_->FetchStage(StageId(2), Version(1), false, memory.pointers())->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "version 1 is gone")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "2 (layer.2)")) << status;
}

TEST_F(ParameterClientTest, DoesNotWriteToAnAbandonedDestination) {
  StartServers(1);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  auto gone = std::make_unique<StageMemory>(spec_, StageId(0));
  auto kept = std::make_unique<StageMemory>(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, kept->pointers());
  client_->FetchStage(StageId(0), Version(1), false, gone->pointers()).reset();
  gone.reset();  // the address sanitizer watches it
  fetch.reset();
  ChangeAll([](Script* s) { s->park_fetches = false; });
  ExpectFetch(StageId(1), 3);  // comes behind them on the stream
  for (const auto& tensor : kept->tensors) {
    for (const float value : tensor) ASSERT_EQ(value, -1.0f);
  }
}

TEST_F(ParameterClientTest, DoesNotDecodeWhatWasAbandonedBeforeItsTurn) {
  StartServers(1);
  Join();
  Begin();
  // The threads that decode are held up by gradients that do not want to go.
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  StageMemory gradient = Gradient(StageId(2), 1);
  for (uint32_t part = 0; part < 4; ++part) {
    std::shared_ptr<void> keep_alive(&gradient, [released](void*) {
      EXPECT_EQ(released.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    });
    ASSERT_TRUE(Push(StageId(2), part, &gradient, std::move(keep_alive)).ok());
  }
  StageMemory memory(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, memory.pointers());
  ASSERT_TRUE(servers_[0]->WaitUntil([&](const Seen&) {
    return client_->stats().fetched_bytes == (64 * 64 + 64) * sizeof(float);
  }));
  fetch.reset();
  release.set_value();
  ASSERT_TRUE(client_->Flush().ok());
  client_.reset();
  for (const auto& tensor : memory.tensors) {
    for (const float value : tensor) ASSERT_EQ(value, -1.0f);
  }
}

TEST_F(ParameterClientTest, AFetchMayOutliveItsClient) {
  StartServers(1);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, memory.pointers());
  client_.reset();
  EXPECT_EQ(fetch->Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(ParameterClientTest, GoesOnAfterAServerWasRestarted) {
  StartServers(2);
  ChangeAll([](Script* s) { s->park_fetches = s->hold_credits = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(0));
  auto fetch = client_->FetchStage(StageId(0), Version(1), false, memory.pointers());
  StageMemory gradient = Gradient(StageId(2), 3);
  ASSERT_TRUE(Push(StageId(2), 0, &gradient).ok());
  const auto busy = [](const Seen& s) { return !s.fetches.empty() && !s.headers.empty(); };
  for (auto& server : servers_) ASSERT_TRUE(server->WaitUntil(busy));
  ChangeAll([](Script* s) { s->park_fetches = s->hold_credits = false; });
  servers_[1]->Stop();
  servers_[1]->Start();
  ASSERT_TRUE(fetch->Wait().ok());
  ExpectWeights(memory, StageId(0), 1);
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(2), 0, gradient);
}

TEST_F(ParameterClientTest, GivesUpOnAServerThatStaysAwayAndNamesIt) {
  StartServers(2);
  options_.rpc_timeout = milliseconds(300);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.pointers());
  ASSERT_TRUE(servers_[1]->WaitUntil([](const Seen& s) { return !s.fetches.empty(); }));
  servers_[1]->Stop();
  const absl::Status status = fetch->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[1]->address())) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "stage 1 (layer.1)")) << status;
  StageMemory gradient = Gradient(StageId(2), 3);
  EXPECT_EQ(Push(StageId(2), 0, &gradient), status);
  EXPECT_EQ(client_->BeginStep(Step(2), {}).status(), status);
}

TEST_F(ParameterClientTest, GivesUpOnAServerThatAcceptsConnectionsButNoStream) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(300);
  ChangeAll([](Script* s) { s->break_fetch_streams = 1'000'000; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  const absl::Status status =
      client_->FetchStage(StageId(1), Version(1), false, memory.pointers())->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "scripted break")) << status;
}

TEST_F(ParameterClientTest, WaitsForAParkedFetchAsLongAsTheServerAnswers) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) { s->park_fetches = true; });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.pointers());
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.statuses >= 3; }));
  ChangeAll([](Script* s) { s->park_fetches = false; });
  EXPECT_TRUE(fetch->Wait().ok());
  ExpectWeights(memory, StageId(1), 1);
}

TEST_F(ParameterClientTest, GivesUpOnASilentServer) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) {
    s->park_fetches = true;
    s->answer_status = false;
  });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.pointers());
  const absl::Status status = fetch->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
}

TEST_F(ParameterClientTest, EndsAWaitWhenTheJobHasFailed) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  ChangeAll([](Script* s) {
    s->park_fetches = true;
    s->failure = "part 1 is gone; start again with --resume=latest";
  });
  Join();
  Begin();
  StageMemory memory(spec_, StageId(1));
  auto fetch = client_->FetchStage(StageId(1), Version(1), false, memory.pointers());
  const absl::Status status = fetch->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "--resume=latest")) << status;
}

TEST_F(ParameterClientTest, PushesEachChunkToItsServer) {
  StartServers(2);
  Join();
  Begin();
  std::vector<StageMemory> gradients;
  for (uint32_t stage = 0; stage < 3; ++stage) {
    gradients.push_back(Gradient(StageId(stage), static_cast<float>(stage)));
  }
  for (uint32_t stage = 3; stage-- > 0;) {
    ASSERT_TRUE(Push(StageId(stage), 0, &gradients[stage]).ok());
  }
  ASSERT_TRUE(client_->Flush().ok());
  for (uint32_t stage = 0; stage < 3; ++stage) {
    ExpectCounted(StageId(stage), 0, gradients[stage]);
  }
  const Seen seen = servers_[0]->seen();
  EXPECT_EQ(seen.headers[0].key().job_id(), spec_.id().value());
  EXPECT_EQ(seen.headers[0].key().step(), 1u);
  EXPECT_EQ(seen.headers[0].key().part_count(), 1u);
  EXPECT_NE(seen.headers[0].worker_nonce(), 0u);
  EXPECT_EQ(account_.live_bytes(), 0u);
}

TEST_F(ParameterClientTest, SendsPayloadInSlicesOfTwoMiB) {
  StartServers(1, /*width=*/1024, /*chunk_elements=*/1 << 20);
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, gradient);
  EXPECT_EQ(servers_[0]->seen().largest_frame, size_t{2} << 20);
}

TEST_F(ParameterClientTest, SendsPayloadOnlyAfterItsCredit) {
  StartServers(1);
  ChangeAll([](Script* s) { s->hold_credits = true; });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.headers.size() == 3; }))
      << "headers run ahead of credits";
  EXPECT_EQ(servers_[0]->seen().payload_frames, 0);
  ChangeAll([](Script* s) { s->hold_credits = false; });
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_FALSE(servers_[0]->seen().payload_without_credit);
  ExpectCounted(StageId(1), 0, gradient);
}

TEST_F(ParameterClientTest, DropsKeepAliveOnceTheGradientIsEncoded) {
  StartServers(1);
  ChangeAll([](Script* s) { s->hold_credits = true; });
  Join();
  Begin();
  auto gradient = std::make_unique<StageMemory>(Gradient(StageId(1), 1));
  const StageMemory copy = *gradient;
  std::weak_ptr<void> watch;
  {
    std::shared_ptr<void> keep_alive(new int(0), [&](void* p) {
      gradient.reset();
      delete static_cast<int*>(p);
    });
    watch = keep_alive;
    ASSERT_TRUE(Push(StageId(1), 0, gradient.get(), std::move(keep_alive)).ok());
  }
  ASSERT_TRUE(servers_[0]->WaitUntil([&](const Seen&) { return watch.expired(); }));
  ChangeAll([](Script* s) { s->hold_credits = false; });
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, copy);
}

TEST_F(ParameterClientTest, HoldsEncodedGradientsWithinThePushWindow) {
  StartServers(2);
  options_.push_window_bytes = 2 * 2048 * 4 + 100;  // two panels
  Join();
  Begin();
  std::vector<StageMemory> gradients;
  for (uint32_t i = 0; i < 12; ++i) {
    gradients.push_back(Gradient(StageId(i % 3), static_cast<float>(i)));
  }
  for (uint32_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(Push(StageId(i % 3), i / 3, &gradients[i]).ok());
  }
  ASSERT_TRUE(client_->Flush().ok());
  for (uint32_t i = 0; i < 12; ++i) ExpectCounted(StageId(i % 3), i / 3, gradients[i]);
  EXPECT_LE(account_.peak_bytes(MemoryKind::kStage), options_.push_window_bytes);
}

TEST_F(ParameterClientTest, RepeatsAPushWithTheSameIdentityWhenItBreaks) {
  StartServers(1);
  ChangeAll([](Script* s) { s->break_push_after = 2; });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, gradient);
  const Seen seen = servers_[0]->seen();
  EXPECT_GT(seen.headers.size(), 3u);
  for (const v1::PushHeader& header : seen.headers) {
    EXPECT_EQ(header.worker_nonce(), seen.headers[0].worker_nonce());
  }
  EXPECT_GE(client_->stats().reconnects, 1u);
}

TEST_F(ParameterClientTest, TakesDuplicateAndStaleOfAnEarlierStepAsSuccess) {
  for (const v1::Ack& ack : {AckOf(v1::Ack::DUPLICATE, 1, 1), AckOf(v1::Ack::STALE, 1, 2)}) {
    servers_.clear();
    StartServers(1);
    ChangeAll([&](Script* s) { s->ack_header = [ack](const v1::PushHeader&) { return ack; }; });
    Join();
    Begin();
    StageMemory gradient = Gradient(StageId(1), 1);
    ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
    EXPECT_TRUE(client_->Flush().ok()) << client_->Flush();
    EXPECT_EQ(servers_[0]->seen().payload_frames, 0);
    EXPECT_EQ(client_->stats().duplicates, ack.outcome() == v1::Ack::DUPLICATE ? 3u : 0u);
    client_.reset();
  }
}

TEST_F(ParameterClientTest, ReportsRefusalsWithTheirReason) {
  struct Case {
    v1::Ack ack;
    absl::StatusCode code;
    std::string named;
  };
  const std::vector<Case> cases = {
      {AckOf(v1::Ack::CONFLICT, 1, 1), absl::StatusCode::kInternal, "other bytes"},
      {AckOf(v1::Ack::STALE, 2, 1), absl::StatusCode::kAborted, "term moved from 1 to 2"},
      {AckOf(v1::Ack::STALE, 1, 1), absl::StatusCode::kFailedPrecondition, "stale"},
      {AckOf(v1::Ack::REFUSED, 1, 1), absl::StatusCode::kFailedPrecondition, "scripted"},
      {AckOf(v1::Ack::OUTCOME_UNSPECIFIED, 1, 1), absl::StatusCode::kInternal, "unknown outcome"},
  };
  for (const Case& c : cases) {
    servers_.clear();
    StartServers(1);
    ChangeAll([&](Script* s) { s->ack_header = [&](const v1::PushHeader&) { return c.ack; }; });
    Join();
    Begin();
    StageMemory gradient = Gradient(StageId(1), 1);
    ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
    const absl::Status status = client_->Flush();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.named)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "layer.1")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
    client_.reset();
  }
}

TEST_F(ParameterClientTest, OffersAgainWhatWasPushedBack) {
  StartServers(1);
  std::atomic<int> refusals{4};
  ChangeAll([&](Script* s) {
    s->ack_header = [&](const v1::PushHeader&) -> std::optional<v1::Ack> {
      if (refusals.fetch_sub(1) <= 0) return std::nullopt;
      return AckOf(v1::Ack::REFUSED, 1, 1, /*retry_after_ms=*/5);
    };
  });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  ExpectCounted(StageId(1), 0, gradient);
  EXPECT_EQ(servers_[0]->seen().headers.size(), 7u);
}

TEST_F(ParameterClientTest, RefusesAReplyThatNothingWaitsFor) {
  StartServers(1);
  ChangeAll([](Script* s) {
    s->reply_unknown_tag = true;
    s->ack_header = [](const v1::PushHeader&) { return AckOf(v1::Ack::ACCEPTED, 1, 1); };
  });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  EXPECT_EQ(client_->Flush().code(), absl::StatusCode::kInternal);
}

TEST_F(ParameterClientTest, DoesNotSendWhatTheServersHave) {
  StartServers(1);
  const auto stage_chunks = chunks_.ChunksOfStage(StageId(1));
  ChangeAll([&](Script* s) {
    s->parts = {2};
    v1::Have have;
    have.set_use_stage(1);
    have.set_part_first(2);
    have.set_part_count(1);
    have.set_chunk(stage_chunks[0].value());
    s->have.push_back(have);
    have.set_part_first(0);  // a merged contribution that covers part 2
    have.set_part_count(4);
    have.set_chunk(stage_chunks[1].value());
    s->have.push_back(have);
    have.set_part_first(0);  // of another part
    have.set_part_count(2);
    have.set_chunk(stage_chunks[2].value());
    s->have.push_back(have);
  });
  Join();
  Begin();
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 2, &gradient).ok());
  ASSERT_TRUE(client_->Flush().ok());
  const Seen seen = servers_[0]->seen();
  ASSERT_EQ(seen.headers.size(), 1u);
  EXPECT_EQ(seen.headers[0].key().chunk(), stage_chunks[2].value());
}

TEST_F(ParameterClientTest, BeginStepCarriesPartsAndLosses) {
  StartServers(2);
  ChangeAll([](Script* s) { s->parts = {0, 1}; });
  Join();
  auto start = client_->BeginStep(
      Step(4), {PartLossSum{PartId(0), 1.5, 10}, PartLossSum{PartId(1), 2.5, 11}});
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->version, Version(3));
  EXPECT_FALSE(start->done);
  for (auto& server : servers_) {
    const Seen seen = server->seen();
    ASSERT_EQ(seen.begins.size(), 1u);
    const v1::BeginStepRequest& request = seen.begins[0];
    EXPECT_EQ(request.parts_size(), 2);
    ASSERT_EQ(request.losses_size(), 2);
    EXPECT_EQ(request.losses(1).part(), 1u);
    EXPECT_EQ(request.losses(1).loss_sum(), 2.5);
    EXPECT_EQ(request.losses(1).tokens(), 11u);
    EXPECT_EQ(request.losses(1).step(), 3u);
  }
  auto end = client_->BeginStep(Step(spec_.training.steps + 1), {});
  ASSERT_TRUE(end.ok());
  EXPECT_TRUE(end->done);
}

TEST_F(ParameterClientTest, BeginStepWaitsForAServerThatDrains) {
  StartServers(2);
  Join();
  std::atomic<int> refusals{3};
  servers_[1]->Change([&](Script* s) {
    s->begin_step = [&](const v1::BeginStepRequest&, v1::BeginStepReply*) {
      return refusals.fetch_sub(1) > 0
                 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining")
                 : grpc::Status::OK;
    };
  });
  EXPECT_TRUE(client_->BeginStep(Step(1), {}).ok());
  EXPECT_EQ(servers_[1]->seen().begins.size(), 4u);
  EXPECT_EQ(servers_[0]->seen().begins.size(), 1u);
}

TEST_F(ParameterClientTest, BeginStepGivesUpOnAServerThatStaysAway) {
  StartServers(2);
  options_.rpc_timeout = milliseconds(200);
  Join();
  servers_[1]->Stop();
  const absl::Status status = client_->BeginStep(Step(7), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[1]->address())) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "BeginStep 7")) << status;
}

TEST_F(ParameterClientTest, BeginStepWaitsAsLongAsAServerAnswers) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  Join();
  ChangeAll([](Script* s) { s->park_begin_steps = true; });
  std::thread release([this] {
    EXPECT_TRUE(servers_[0]->WaitUntil([](const Seen& s) { return s.begins.size() >= 3; }));
    ChangeAll([](Script* s) { s->park_begin_steps = false; });
  });
  const auto start = client_->BeginStep(Step(1), {});
  EXPECT_TRUE(start.ok()) << start.status();
  release.join();
  EXPECT_GE(servers_[0]->seen().statuses, 2);
}

TEST_F(ParameterClientTest, BeginStepGivesUpOnASilentServer) {
  StartServers(1);
  options_.rpc_timeout = milliseconds(100);
  Join();
  ChangeAll([](Script* s) {
    s->park_begin_steps = true;
    s->answer_status = false;
  });
  const absl::Status status = client_->BeginStep(Step(1), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), servers_[0]->address())) << status;
}

TEST_F(ParameterClientTest, BeginStepReportsRefusalsAndContradictions) {
  using Reply = std::function<grpc::Status(const v1::BeginStepRequest&, v1::BeginStepReply*)>;
  struct Case {
    Reply reply;
    absl::StatusCode code;
    std::string named;
  };
  const std::vector<Case> cases = {
      {[](const v1::BeginStepRequest&, v1::BeginStepReply*) {
         return grpc::Status(grpc::StatusCode::ABORTED, "term 1 is over");
       },
       absl::StatusCode::kAborted, "term 1 is over"},
      {[](const v1::BeginStepRequest&, v1::BeginStepReply* r) {
         r->set_term(2);
         return grpc::Status::OK;
       },
       absl::StatusCode::kAborted, "term moved from 1 to 2"},
      {[](const v1::BeginStepRequest&, v1::BeginStepReply* r) {
         r->set_version(9);
         return grpc::Status::OK;
       },
       absl::StatusCode::kInternal, "version 9"},
      {[](const v1::BeginStepRequest&, v1::BeginStepReply* r) {
         r->add_codecs()->set_chunk(1000);
         return grpc::Status::OK;
       },
       absl::StatusCode::kInternal, "chunk 1000"},
  };
  for (const Case& c : cases) {
    servers_.clear();
    StartServers(2);
    Join();
    servers_[1]->Change([&](Script* s) { s->begin_step = c.reply; });
    const absl::Status status = client_->BeginStep(Step(1), {}).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), c.named)) << status;
    client_.reset();
  }
}

TEST_F(ParameterClientTest, BeginStepReturnsTheFailureOfAnEarlierPush) {
  StartServers(1);
  Join();
  Begin();
  ChangeAll([](Script* s) {
    s->park_begin_steps = true;
    s->ack_header = [](const v1::PushHeader&) { return AckOf(v1::Ack::REFUSED, 1, 1); };
  });
  StageMemory gradient = Gradient(StageId(1), 1);
  ASSERT_TRUE(Push(StageId(1), 0, &gradient).ok());
  const absl::Status status = client_->BeginStep(Step(2), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "refused")) << status;
}

}  // namespace
}  // namespace eps
