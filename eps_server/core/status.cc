// ShardCore: what a status page says. Each wait names on whom, for what, and since when.

#include <utility>

#include "absl/strings/str_cat.h"
#include "eps_server/core/shard_core_impl.h"

namespace eps {
namespace {

constexpr int kMaxWaits = 64;  // a page is for people

}  // namespace

std::string ShardCore::Impl::PartName(PartId part) const {
  return absl::StrCat("part ", part.value());
}

void ShardCore::Impl::FillStatus(uint64_t now_ms, v1::StatusReply* status) const {
  status->set_job_id(job_id_.value());
  status->set_job_name(spec_.name);
  status->set_state(state());
  status->set_failure(failure_);
  status->set_shard(options_.shard.value());
  status->set_shards(static_cast<uint32_t>(options_.servers.size()));
  status->set_term(term_.value());
  status->set_step(step_);
  status->set_version(base_version_);
  status->set_steps(spec_.training.steps);
  status->set_chunks(static_cast<uint32_t>(owned_.size()));
  uint64_t parameters = 0;
  for (const ChunkState& chunk : owned_) parameters += chunks_.chunk(chunk.id).elements;
  status->set_parameters(parameters);
  status->set_joined_workers(static_cast<uint32_t>(joined_.size()));
  for (const auto& [name, value] : counters_) (*status->mutable_counters())[name] = value;
  std::vector<std::string> names;
  for (const StageSpec& stage : spec_.stages) names.push_back(stage.name);
  stage_clock_.Fill(names, status);
  uint64_t saved = 0;
  for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
    for (const ChunkId id : chunks_.ChunksOfStage(StageId(s))) {
      const Chunk& chunk = chunks_.chunk(id);
      const Codec& codec = codecs_.weights(id);
      if (!Owns(id) || chunk.uses.front() != StageId(s) || codec.traits().exact) continue;
      const WeightAxes axes = codecs_.axes(StageId(s), id, /*backward=*/true);
      saved += codec.MaxEncodedSize(chunk, axes.first);
      if (axes.has_second) saved += codec.MaxEncodedSize(chunk, axes.second);
    }
  }
  status->set_jit_saved_bytes(saved);
  FillWaits(now_ms, status);
}

void ShardCore::Impl::FillWaits(uint64_t now_ms, v1::StatusReply* status) const {
  const auto add = [&](std::string what, std::string waits_for, uint64_t since_ms) {
    if (status->waits_size() >= kMaxWaits) return;
    v1::Wait* wait = status->add_waits();
    wait->set_what(std::move(what));
    wait->set_waits_for(std::move(waits_for));
    wait->set_seconds(static_cast<double>(now_ms - since_ms) / 1e3);
  };
  // The first contribution that a chunk of the open step misses.
  const auto missing = [&](const ChunkState& chunk) {
    if (chunk.updating) return absl::StrCat("update of chunk ", chunk.id.value());
    if (chunk.reducing) return absl::StrCat("reduction of chunk ", chunk.id.value());
    if (ledger_.Complete(chunk.id)) {
      return decisions_.count(step_) == 0 ? absl::StrCat("the lead's decision of step ", step_)
                                          : absl::StrCat("an export of step ", step_ - 1);
    }
    const ContributionLedger::Place place = ledger_.FirstMissing(chunk.id);
    return absl::StrCat("chunk ", chunk.id.value(), ": gradient of part ", place.parts.first,
                        ", use ", StageName(place.use));
  };
  std::string step_waits_for = "nothing";
  if (state() == v1::JOB_STATE_RECOVERING) {
    step_waits_for = RecoveryWaitsFor();
    add(replay_.has_value() ? "the state of before" : "what all shards have", step_waits_for,
        recovering_since_ms_);
  } else if (state_ == v1::JOB_STATE_IMPORTING) {
    step_waits_for = is_lead() ? lead_->WaitsFor() : "ImportState";
  } else {
    for (const ChunkState& chunk : owned_) {
      if (chunk.version != Version(base_version_)) continue;
      step_waits_for = missing(chunk);
      break;
    }
  }
  for (const event::Join& join : joins_) {
    add(absl::StrCat("Join of worker ", join.request.worker_rank()), step_waits_for, now_ms);
  }
  for (const ParkedBegin& begin : begins_) {
    const bool gated = gate_step_ != 0 && begin.request.step() > gate_step_;
    add(absl::StrCat("BeginStep ", begin.request.step(), " of ",
                     PartName(PartId(begin.request.parts(0)))),
        gated ? absl::StrCat("the gate at step ", gate_step_) : step_waits_for, begin.since_ms);
  }
  for (const ChunkState& chunk : owned_) {
    for (const ParkedFetch& fetch : chunk.parked) {
      add(absl::StrCat("Fetch of chunk ", chunk.id.value(), " version ", fetch.version.value()),
          missing(chunk), fetch.since_ms);
    }
  }
  for (const Offer& offer : offers_) {
    const v1::ContributionKey& key = offer.header.key();
    add(absl::StrCat("Push of chunk ", key.chunk(), " by part ", key.part_first()),
        absl::StrCat("memory of its quota: ", admission_.held_bytes(PartId(key.part_first())),
                     " of ", admission_.quota().total_bytes, " bytes held, oldest stage ",
                     StageName(ledger_.OldestIncompleteStage())),
        offer.since_ms);
  }
  for (const auto& [stream, job] : exports_) {
    if (!job.started) {
      add(absl::StrCat("ExportState of step ", job.request.step()), step_waits_for, job.since_ms);
    }
  }
}

}  // namespace eps
