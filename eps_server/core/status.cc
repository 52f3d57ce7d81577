// ShardRouter: answers about the state of all desks, for each other and for the status page. Each
// wait on the page names who waits, for what, and since when.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "eps_server/core/shard_router.h"
#include "eps_server/core/wait_page.h"

namespace eps {
namespace {

void FillStageProgress(const ShardFacts& facts, v1::StatusReply* status) {
  const std::vector<StageSpec>& stages = facts.job.spec.stages;
  std::vector<v1::StageProgress> all(stages.size());
  for (const OwnedChunk& owned : facts.owned) {
    const Chunk& chunk = facts.job.chunks.chunk(owned.id);
    if (chunk.frozen) continue;
    const bool updated = owned.version > Version(facts.version);
    for (const StageId stage : chunk.uses) {
      v1::StageProgress& progress = all[stage.value()];
      progress.set_chunks(progress.chunks() + 1);
      progress.set_updated(progress.updated() + (updated ? 1 : 0));
    }
  }
  for (uint32_t stage = 0; stage < all.size(); ++stage) {
    if (all[stage].chunks() == 0) continue;
    all[stage].set_stage(stage);
    all[stage].set_name(stages[stage].name);
    *status->add_stage_progress() = std::move(all[stage]);
  }
}

}  // namespace

// ---------------------------------------------------------------- DeskQueries

double ShardRouter::NormOf(uint64_t step) const {
  return lead_ == nullptr ? 0 : lead_->steps.NormOf(step);
}

std::vector<v1::Have> ShardRouter::Counted(const std::vector<bool>& parts) const {
  return push_.Counted(parts);
}

absl::Status ShardRouter::CheckBegin(const v1::BeginStepRequest& request) const {
  return lead_ == nullptr ? absl::OkStatus() : lead_->leases.CheckBegin(request);
}

std::vector<Axis> ShardRouter::AxesForUpdate(ChunkId chunk) const {
  return fetch_.AxesForUpdate(chunk);
}

bool ShardRouter::IsIdle() const {
  return fetch_.idle() && steps_.idle() && trust_.idle() && transfer_.idle() && cuts_.idle() &&
         terms_.idle() && replay_.idle();
}

std::string ShardRouter::RecoveryWaitsFor() const {
  const std::string shards = terms_.WaitsFor();
  return shards.empty() && lead_ != nullptr ? lead_->steps.WaitsFor() : shards;
}

v1::LoggedSession ShardRouter::Session() const {
  v1::LoggedSession session;
  if (facts_.KnowsLeases()) {
    for (const PartLeases& part : facts_.parts) session.add_fences(part.seen);
  }
  if (lead_ != nullptr) lead_->leases.FillSession(&session);
  if (lead_ != nullptr) {
    for (const uint64_t incarnation : terms_.Incarnations()) {
      session.add_incarnations(incarnation);
    }
    for (v1::Decision& d : lead_->steps.LastDecisions()) *session.add_decisions() = std::move(d);
    if (trust_.last() != nullptr) *session.mutable_trust() = *trust_.last();
  }
  for (const v1::Stats& stats : steps_.last_stats()) *session.add_stats() = stats;
  return session;
}

// ---------------------------------------------------------------- the status page

void ShardRouter::FillStatus(uint64_t now_ms, v1::StatusReply* status) const {
  const JobFacts& job = facts_.job;
  status->set_job_id(job.id.value());
  status->set_job_name(job.spec.name);
  status->set_state(state());
  status->set_failure(facts_.failure.reason);
  if (facts_.state == v1::JOB_STATE_FAILED) {
    status->set_failure_code(static_cast<uint32_t>(facts_.failure.code));
  }
  status->set_shard(job.shard.value());
  status->set_shards(static_cast<uint32_t>(job.servers.size()));
  status->set_term(facts_.term.value());
  status->set_step(facts_.step);
  status->set_version(facts_.version);
  status->set_steps(job.spec.training.steps);
  status->set_chunks(static_cast<uint32_t>(facts_.owned.size()));
  uint64_t parameters = 0;
  for (const OwnedChunk& chunk : facts_.owned) parameters += job.chunks.chunk(chunk.id).elements;
  status->set_parameters(parameters);
  if (lead_ != nullptr) {
    status->set_joined_workers(static_cast<uint32_t>(lead_->leases.processes()));
    lead_->leases.FillStatus(status);
  }
  for (const auto& [name, value] : life_->counters) (*status->mutable_counters())[name] = value;
  fetch_.FillTimes(status);
  FillStageProgress(facts_, status);
  watch_.FillStatus(status);
  // Encoding just in time saves copies of all weights along every axis.
  uint64_t saved = 0;
  for (const OwnedChunk& owned : facts_.owned) {
    const Chunk& chunk = job.chunks.chunk(owned.id);
    const Codec& codec = job.codecs.weights(owned.id);
    if (codec.traits().exact) continue;
    const WeightAxes axes = job.codecs.axes(chunk.uses.front(), owned.id, /*backward=*/true);
    saved += codec.MaxEncodedSize(chunk, axes.first);
    if (axes.has_second) saved += codec.MaxEncodedSize(chunk, axes.second);
  }
  status->set_jit_saved_bytes(saved);
  FillGates(status);
  WaitPage page(now_ms, status);
  page.set_step(StepWaitsFor());
  page.set_update([this](ChunkId chunk) { return UpdateWaitsFor(chunk); });
  if (state() == v1::JOB_STATE_RECOVERING) {
    page.Add(facts_.replays() ? "the state of before" : "what all shards have", page.step(),
             terms_.recovering_since_ms());
  }
  if (lead_ != nullptr) lead_->leases.Waits(&page);
  drain_.Waits(&page);
  if (lead_ != nullptr) lead_->gates.Waits(&page);
  workers_.Waits(&page);
  fetch_.Waits(&page);
  push_.Waits(&page);
  transfer_.Waits(&page);
}

void ShardRouter::FillGates(v1::StatusReply* status) const {
  if (lead_ != nullptr) return lead_->gates.FillStatus(status);
  for (const std::string& holder : facts_.hold.gate.holders()) {
    v1::HeldGate* gate = status->add_gates();
    gate->set_holder(holder);
    gate->set_step(facts_.hold.gate.step());
  }
  if (facts_.hold.draining_since_ms.has_value()) status->add_draining(facts_.job.shard.value());
}

// Names what the chunk's update in the open step waits for.
std::string ShardRouter::UpdateWaitsFor(ChunkId chunk) const {
  if (facts_.Owned(chunk)->updating) return absl::StrCat("update of chunk ", chunk.value());
  if (steps_.IsReducing(chunk)) return absl::StrCat("reduction of chunk ", chunk.value());
  if (!push_.Complete(chunk)) return push_.FirstMissing(chunk);
  if (!steps_.has_decision()) return absl::StrCat("the lead's decision of step ", facts_.step);
  if (facts_.cuts.pending.has_value()) {
    return absl::StrCat("the cut of step ", facts_.cuts.pending->id.step.value(),
                        ", which waits for what shards and workers report of it");
  }
  const bool trusted = !facts_.job.adapts() || trust_.OfOpenStep() != nullptr;
  if (facts_.border_readers == 0 && !trusted) return trust_.WaitsFor();
  return absl::StrCat("an export of step ", facts_.step - 1);
}

std::string ShardRouter::StepWaitsFor() const {
  if (state() == v1::JOB_STATE_RECOVERING) return RecoveryWaitsFor();
  if (facts_.state == v1::JOB_STATE_IMPORTING) {
    return lead_ != nullptr ? lead_->steps.WaitsFor() : "ImportState";
  }
  for (const OwnedChunk& chunk : facts_.owned) {
    if (facts_.job.IsFrozen(chunk.id)) continue;
    if (chunk.version == Version(facts_.version)) return UpdateWaitsFor(chunk.id);
  }
  return "nothing";
}

}  // namespace eps
