#include "eps_server/core/testing/fake_outbox.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/job/layout/model_layout.h"
#include "eps_server/core/testing/event_text.h"

namespace eps {
namespace {

JobSpec SmallSpec() {
  JobSpec spec;
  spec.name = "alone";
  spec.model.type = ModelType::kSynthetic;
  spec.model.synthetic.n_layer = 2;
  spec.model.synthetic.n_embd = 16;
  EPS_CHECK(BuildLayout(/*weight_decay=*/0.01, &spec).ok());
  spec.chunk_elements = 256;
  spec.training.steps = 3;
  spec.training.parts = 2;
  spec.data.tokens = 100'000;
  spec.data.sha256 = std::string(64, '0');
  EPS_CHECK(spec.Validate().ok());
  return spec;
}

}  // namespace

void FakeOutbox::Emit(Effect effect) { lines_.push_back(ToText(effect)); }

OpId FakeOutbox::StartOp(Request request) {
  last_op = last_op.Next();
  Emit(effect::Start{last_op, std::move(request)});
  return last_op;
}

TimerId FakeOutbox::StartTimer(uint64_t after_ms) {
  last_timer = last_timer.Next();
  Emit(effect::SetTimer{last_timer, after_ms});
  return last_timer;
}

void FakeOutbox::Log(uint64_t step, const v1::LogFact& fact, Bytes, Bytes) {
  lines_.push_back("Log " + std::to_string(step) + " " + fact.ShortDebugString());
}

void FakeOutbox::ToLead(v1::ShardMessage message) {
  Emit(effect::ToShard{ShardId(0), message});
  if (on_to_lead != nullptr) on_to_lead(message);
}

void FakeOutbox::Raise(const InternalEvent& event) {
  raised.push_back(event);
  if (on_raise != nullptr) on_raise(event);
}

std::vector<std::string> FakeOutbox::Take() { return std::exchange(lines_, {}); }

std::vector<std::string> FakeOutbox::TakeUntraced() {
  std::vector<std::string> lines = Take();
  lines.erase(std::remove_if(lines.begin(), lines.end(),
                             [](const std::string& line) { return line.rfind("Trace ", 0) == 0; }),
              lines.end());
  return lines;
}

SmallJob::SmallJob(uint32_t shards)
    : spec(SmallSpec()), shards_(shards), chunks_(ChunkMap::Build(spec)) {}

ShardFacts SmallJob::MakeFacts() const {
  std::vector<std::string> servers;
  for (uint32_t s = 0; s < shards_; ++s) servers.push_back("shard-" + std::to_string(s));
  std::vector<ChunkId> owned;
  const std::vector<ShardId> placement = chunks_.Place(shards_);
  for (uint32_t c = 0; c < placement.size(); ++c) {
    if (placement[c] == shard) owned.push_back(ChunkId(c));
  }
  JobFacts job{spec, chunks_, *CodecTable::Build(spec, chunks_), spec.id(), shard, servers,
               caps, limits};
  ShardFacts facts(std::move(job), owned, Term(1));
  facts.state = v1::JOB_STATE_RUNNING;
  facts.step = 1;
  return facts;
}

}  // namespace eps
