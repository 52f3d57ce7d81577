#include "worker/client/testing/client_fixture.h"

#include <algorithm>

#include "base/job/layout/model_layout.h"
#include "base/testing/test_specs.h"

namespace eps {
namespace {

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

size_t UseOf(const JobSpec& spec, StageId stage, TensorId tensor) {
  const auto& uses = spec.stages[stage.value()].uses;
  size_t use = 0;
  while (uses[use].tensor != tensor) ++use;
  return use;
}

}  // namespace

StageMemory::StageMemory(const JobSpec& job, StageId of) : spec(job), stage(of) {
  for (const TensorUse& use : spec.stages[stage.value()].uses) {
    tensors.emplace_back(spec.tensors[use.tensor.value()].elements(), -1.0f);
  }
}

TensorPointers StageMemory::pointers() {
  TensorPointers p;
  for (auto& tensor : tensors) p.push_back(tensor.data());
  return p;
}

v1::Ack AckOf(v1::Ack::Outcome outcome, uint64_t term, uint64_t step, uint32_t retry_after_ms) {
  v1::Ack ack;
  ack.set_outcome(outcome);
  ack.set_term(term);
  ack.set_step(step);
  ack.set_message("scripted");
  ack.set_retry_after_ms(retry_after_ms);
  return ack;
}

v1::PushReply ReplyOf(const v1::Ack& ack) {
  v1::PushReply reply;
  *reply.mutable_ack() = ack;
  return reply;
}

void ClientFixture::StartServers(int count, int width, uint64_t chunk_elements) {
  spec_ = Spec(width, chunk_elements);
  spec_.codecs = codecs_;
  if (!frozen_.empty()) Freeze(frozen_, /*others=*/false, &spec_);
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

void ClientFixture::ChangeAll(const std::function<void(Script*)>& change) {
  for (auto& server : servers_) server->Change(change);
}

void ClientFixture::Join() {
  auto client = ParameterClient::Connect(options_);
  ASSERT_TRUE(client.ok()) << client.status();
  client_ = *std::move(client);
  auto job = client_->Join(JoinOptions());
  ASSERT_TRUE(job.ok()) << job.status();
  job_ = *std::move(job);
}

void ClientFixture::Begin(uint64_t step) {
  auto start = client_->BeginStep(Step(step));
  ASSERT_TRUE(start.ok()) << start.status();
}

void ClientFixture::ExpectFetch(StageId stage, uint64_t version, bool backward) {
  StageMemory memory(spec_, stage);
  auto fetch = client_->FetchStage(stage, Version(version), backward, memory.sink());
  const absl::Status status = fetch->Wait();
  ASSERT_TRUE(status.ok()) << status;
  ExpectWeights(memory, stage, version);
}

void ClientFixture::ExpectWeights(const StageMemory& memory, StageId stage, uint64_t version) {
  for (const ChunkId id : chunks_.ChunksOfStage(stage)) {
    const Chunk& chunk = chunks_.chunk(id);
    for (const Segment& segment : chunk.segments) {
      const size_t use = UseOf(spec_, stage, segment.tensor);
      for (uint64_t i = 0; i < segment.elements(); ++i) {
        ASSERT_EQ(memory.tensors[use][segment.tensor_offset + i],
                  ScriptedWeight(id.value(), segment.offset + i, version))
            << "chunk " << id << " element " << i;
      }
    }
  }
}

StageMemory ClientFixture::Gradient(StageId stage, float base) {
  StageMemory memory(spec_, stage);
  for (size_t t = 0; t < memory.tensors.size(); ++t) {
    for (size_t i = 0; i < memory.tensors[t].size(); ++i) {
      memory.tensors[t][i] =
          base + static_cast<float>(t) * 0.25f + static_cast<float>(i % 509) * 0.001f;
    }
  }
  return memory;
}

absl::Status ClientFixture::Push(StageId stage, uint32_t part, StageMemory* gradient,
                                 std::shared_ptr<void> keep_alive) {
  return client_->Push(
      stage, PartId(part), 7,
      std::make_shared<HostGradient>(spec_, stage, gradient->pointers(), std::move(keep_alive)));
}

void ClientFixture::ExpectCounted(StageId stage, uint32_t part, const StageMemory& gradient) {
  const std::vector<ShardId> placement = chunks_.Place(static_cast<uint32_t>(servers_.size()));
  for (const ChunkId id : chunks_.ChunksOfStage(stage)) {
    const Seen seen = servers_[placement[id.value()].value()]->seen();
    const Seen::Place place{stage.value(), part, id.value()};
    ASSERT_EQ(seen.counted.count(place), 1u) << "chunk " << id;
    EXPECT_EQ(seen.times_counted.at(place), 1);
    EXPECT_EQ(seen.tokens.at(place), 7u);
    for (const Segment& segment : chunks_.chunk(id).segments) {
      const size_t use = UseOf(spec_, stage, segment.tensor);
      for (uint64_t i = 0; i < segment.elements(); ++i) {
        ASSERT_EQ(seen.counted.at(place)[segment.offset + i],
                  gradient.tensors[use][segment.tensor_offset + i]);
      }
    }
  }
}

}  // namespace eps
