#include "eps_server/core/testing/disorder.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eps_server/core/testing/core_training.h"
#include "eps_server/core/testing/event_text.h"

namespace eps {
namespace {

constexpr char kAnotherProfile[] = "another machine";
constexpr uint64_t kFirstTag = 1'000'000;  // far from the tags of the cluster

}  // namespace

Disorder::Disorder(CoreCluster* cluster, bool is_durable, bool asks_for_gone, Note note, Dice* dice)
    : cluster_(*cluster),
      is_durable_(is_durable),
      asks_for_gone_(asks_for_gone),
      note_(std::move(note)),
      dice_(*dice) {}

void Disorder::Act() {
  cluster_.now_ms += dice_(4);
  const ShardId shard(static_cast<uint32_t>(dice_(cluster_.shards())));
  if (!cluster_.IsUp(shard)) return;
  switch (dice_(25)) {
    case 0:
      return Export(shard);
    case 1:
      return Watch(shard);
    case 2:
      return Gate(shard);
    case 3:
      return Hear(shard, event::StreamClosed{OldStream()});
    case 4:
      return Join(shard);
    case 5:
      if (dice_(20) == 0) cluster_.FireTimers();
      return;
    case 6:
      return Link(shard);
    case 7:
    case 8:
      return Evaluate(shard);
    case 9:
      return Import(shard);
    case 10:
      return Hear(shard, event::FetchDrained{OldStream()});
    case 11:
      if (dice_(40) == 0) cluster_.hold_payloads = !cluster_.hold_payloads;
      return TakeOver(shard);
    case 12:
    case 13:
      return note_(shard, absl::StrCat("Status ", ToText(cluster_.Status(shard))));
    case 14:
    case 15:
    case 16:
    case 17:
      return Push();
    case 18:
      return Beat(shard);
    default:
      return Fetch(shard);
  }
}

StreamId Disorder::OldStream() {
  const uint64_t newest = cluster_.NewStream().value();
  return StreamId(newest - std::min<uint64_t>(newest - 1, dice_(12)));
}

ChunkId Disorder::AnyChunk() {
  return ChunkId(static_cast<uint32_t>(dice_(cluster_.chunks().chunks().size())));
}

PartId Disorder::AnyPart() {
  return PartId(static_cast<uint32_t>(dice_(cluster_.spec().training.parts)));
}

uint64_t Disorder::AnyStep(ShardId shard) {
  const uint64_t step = cluster_.Status(shard).step();
  return dice_(3) > 0 ? step : step + dice_(4) - std::min<uint64_t>(step, 2);
}

void Disorder::Export(ShardId shard) {
  v1::ExportStateRequest request;
  if (dice_(2) == 0) request.set_step(AnyStep(shard));
  request.set_weights_only(dice_(2) == 0);
  if (dice_(2) == 0) request.add_chunks(AnyChunk().value());
  Hear(shard, event::Export{cluster_.NewStream(), request});
}

void Disorder::Watch(ShardId shard) {
  const uint64_t until = dice_(2) == 0 ? 0 : cluster_.spec().training.steps;
  const event::Watch watch{cluster_.NewStream(), dice_(3), dice_(2), until};
  Hear(dice_(4) == 0 ? shard : ShardId(0), watch);
}

void Disorder::Gate(ShardId any) {
  if (!cluster_.IsUp(ShardId(0))) return;
  const ShardId shard = dice_(8) == 0 ? any : ShardId(0);  // only the lead knows the gates
  const auto gate = [this](ShardId shard, const char* holder, std::optional<uint64_t> step) {
    Hear(shard, event::Gate{cluster_.NewStream(), holder, step});
  };
  // A gate that is never lifted would end the run early.
  const bool lifts = dice_(2) == 0;
  const char* const holder = dice_(4) == 0 ? "another" : "driver";
  gate(shard, holder, lifts ? std::nullopt : std::make_optional(AnyStep(ShardId(0))));
  if (lifts || dice_(2) == 0) return;
  cluster_.RunSome(20);
  if (cluster_.IsUp(ShardId(0))) gate(ShardId(0), holder, std::nullopt);
}

void Disorder::Push() {
  const Chunk& chunk = cluster_.chunks().chunk(AnyChunk());
  const StageId use = chunk.uses[dice_(chunk.uses.size())];
  const uint32_t part = AnyPart().value();
  const ShardId owner = cluster_.OwnerOf(chunk.id);
  if (!cluster_.IsUp(owner)) return;
  const uint64_t step = std::max<uint64_t>(1, AnyStep(owner));
  cluster_.term = cluster_.Status(owner).term() + (dice_(20) == 0 ? 1 : 0);
  std::vector<float> gradient = TellingGradient(chunk, use, part, step + dice_(2));
  const bool skips = cluster_.spec().training.nonfinite == Nonfinite::kSkip;
  if (dice_(skips ? 2 : 200) == 0) {
    gradient[dice_(gradient.size())] = std::numeric_limits<float>::infinity();
  }
  const uint64_t tokens = dice_(200) == 0 ? 99 : CoreTraining::kTokens;
  const uint32_t count = dice_(6) == 0 ? 2 : 1;
  const uint64_t nonce = 1 + dice_(3);
  cluster_.Push(OldStream(), step, use, TreeRange{part, count}, chunk.id, gradient, tokens, nonce);
}

void Disorder::Fetch(ShardId shard) {
  // Workers do not know a term before its job opens.
  const v1::JobState state = cluster_.core(shard).state();
  if (is_durable_ && state != v1::JOB_STATE_RUNNING && state != v1::JOB_STATE_DONE) return;
  v1::FetchRequest request;
  request.set_tag(kFirstTag + dice_(400));
  request.set_job_id(cluster_.spec().id().value() + (dice_(30) == 0 ? 1 : 0));
  request.set_term(cluster_.Status(shard).term() + (dice_(20) == 0 ? 1 : 0));
  const uint64_t stages = cluster_.spec().stages.size() + (dice_(20) == 0 ? 1 : 0);
  request.set_stage(static_cast<uint32_t>(dice_(stages)));
  const uint64_t version = cluster_.Status(shard).version();
  if (asks_for_gone_) {
    request.set_version(dice_(10) > 0 ? version + dice_(2) : version + dice_(5) - 2);
  } else {
    request.set_version(version + 1 + dice_(2));
  }
  request.set_pass(dice_(2) == 0 ? v1::PASS_BACKWARD : v1::PASS_FORWARD);
  request.set_part(AnyPart().value() + (dice_(10) == 0 ? 5 : 0));
  request.set_residuals(dice_(4) == 0);
  if (dice_(3) == 0) request.add_chunks(AnyChunk().value());
  Hear(shard, event::Fetch{OldStream(), request});
}

void Disorder::Join(ShardId shard) {
  v1::JoinRequest request;
  request.set_worker_nonce(dice_(4));
  if (dice_(3) == 0) {
    request.set_compute_profile(kAnotherProfile);
    request.set_worker_nonce(request.worker_nonce() + 10);  // no such worker begins a step
  }
  if (dice_(3) == 0) request.set_worker_count(static_cast<uint32_t>(1 + dice_(4)));
  if (dice_(3) == 0) request.add_parts(static_cast<uint32_t>(dice_(4)));
  if (dice_(5) == 0) request.set_spec_digest("another job");
  Hear(dice_(4) == 0 ? shard : ShardId(0), event::Join{cluster_.NewStream(), request});
}

void Disorder::Beat(ShardId shard) {
  if (!cluster_.IsUp(ShardId(0))) return;
  v1::Beat beat;
  beat.set_job_id(cluster_.spec().id().value() + (dice_(30) == 0 ? 1 : 0));
  beat.set_worker_nonce(dice_(4));
  beat.set_term(cluster_.Status(ShardId(0)).term() + (dice_(20) == 0 ? 1 : 0));
  beat.set_step(AnyStep(ShardId(0)));
  beat.set_visits(dice_(8));
  beat.set_waits(dice_(2) == 0);
  beat.set_leave(dice_(6) == 0);
  const StreamId stream = dice_(2) == 0 ? cluster_.NewStream() : OldStream();
  Hear(dice_(6) == 0 ? shard : ShardId(0), event::Beat{stream, beat});
}

void Disorder::Link(ShardId shard) {
  if (shard == ShardId(0) || !cluster_.IsUp(ShardId(0))) return;
  Hear(ShardId(0), event::LinkDown{shard});
  Hear(shard, event::LinkDown{ShardId(0)});
  if (dice_(5) > 0) cluster_.RunSome(3);
  Hear(ShardId(0), event::LinkUp{shard});
  Hear(shard, event::LinkUp{ShardId(0)});
}

void Disorder::Evaluate(ShardId shard) {
  const uint64_t step = AnyStep(shard);
  v1::BeginStepRequest request = BeginRequest(shard, step);
  for (uint32_t p = 0; p < cluster_.spec().training.parts; ++p) {
    v1::PartLoss* const loss = request.add_evaluations();
    loss->set_part(p);
    loss->set_step(step - 1);
    loss->set_loss_sum(7.0 + p);
    loss->set_tokens(10);
  }
  Hear(dice_(2) == 0 ? shard : ShardId(0), event::BeginStep{cluster_.NewStream(), request});
}

void Disorder::TakeOver(ShardId shard) {
  if (dice_(12) > 0) return;
  v1::BeginStepRequest request = BeginRequest(shard, AnyStep(shard));
  request.set_probe(true);
  Hear(shard, event::BeginStep{cluster_.NewStream(), request});
}

v1::BeginStepRequest Disorder::BeginRequest(ShardId shard, uint64_t step) {
  v1::BeginStepRequest request;
  request.set_job_id(cluster_.spec().id().value() + (dice_(30) == 0 ? 1 : 0));
  request.set_term(cluster_.Status(shard).term() + (dice_(20) == 0 ? 1 : 0));
  request.set_step(step);
  request.set_worker_nonce(1 + dice_(3));
  if (dice_(20) > 0) request.add_parts(AnyPart().value() + (dice_(20) == 0 ? 4 : 0));
  return request;
}

void Disorder::Import(ShardId shard) {
  const StreamId stream = cluster_.NewStream();
  switch (dice_(4)) {
    case 0:
      return Hear(shard, event::ImportInitialize{stream});
    case 1:
      return Hear(shard, event::ImportChunk{stream, AnyChunk(), Version(0), Bytes()});
    case 2: {
      const ChunkId chunk = AnyChunk();
      return Hear(shard, event::ImportResidual{stream, chunk, StageId(0), AnyPart(), Bytes()});
    }
    default:
      return Hear(shard, event::ImportFinish{stream, Step(dice_(2)), Version(0), 0, 0});
  }
}

}  // namespace eps
