#include "eps_server/core/shard_facts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eps {

ShardFacts::ShardFacts(JobFacts job_facts, const std::vector<ChunkId>& owned_chunks,
                       Term first_term)
    : job(std::move(job_facts)),
      local(job.chunks.chunks().size(), -1),
      term(first_term),
      parts(job.spec.training.parts) {
  for (const ChunkId id : owned_chunks) {
    local[id.value()] = static_cast<int32_t>(owned.size());
    owned.emplace_back().id = id;
  }
}

const OwnedChunk* ShardFacts::Owned(ChunkId chunk) const {
  if (chunk.value() >= local.size() || local[chunk.value()] < 0) return nullptr;
  return &owned[local[chunk.value()]];
}

OwnedChunk* ShardFacts::Owned(ChunkId chunk) {
  return const_cast<OwnedChunk*>(static_cast<const ShardFacts*>(this)->Owned(chunk));
}

bool ShardFacts::WaitsForState() const {
  return state == v1::JOB_STATE_IMPORTING || state == v1::JOB_STATE_RECOVERING;
}

bool ShardFacts::PushResiduals() const {
  if (open.push_residuals.has_value()) return *open.push_residuals;
  return job.durable() || job.spec.codecs.residual_home == ResidualHome::kServer ||
         (hold.gate.has_step() && hold.gate.step() == step) || step == job.spec.training.steps;
}

absl::Status ShardFacts::FailedStatus() const {
  return absl::FailedPreconditionError(
      absl::StrCat("the job cannot go on: ", failure.reason,
                   "; start it again with --resume=latest to go on from the last checkpoint"));
}

absl::Status ShardFacts::CheckDriver(absl::string_view rpc, const DriverLease& lease) const {
  if (!driver.exists()) return absl::OkStatus();
  if (lease.board == driver.board && !lease.IsBefore(driver)) return absl::OkStatus();
  const std::string text = lease.exists() ? absl::StrCat("this driver's lease (generation ",
                                                         lease.generation, ") is over")
                                          : "this driver has no lease";
  return absl::AbortedError(absl::StrCat(rpc, ": ", text, "; the driver with generation ",
                                         driver.generation, " has the job now (eps job show)"));
}

absl::Status ShardFacts::CheckParts(absl::string_view rpc,
                                    absl::Span<const uint32_t> requested) const {
  std::vector<bool> named(parts.size(), false);
  for (const uint32_t part : requested) {
    if (part >= named.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(rpc, ": part ", part, " of a job of ", named.size(), " parts"));
    }
    if (named[part]) {
      return absl::InvalidArgumentError(absl::StrCat(rpc, ": part ", part, " is named twice"));
    }
    named[part] = true;
  }
  return absl::OkStatus();
}

absl::Status ShardFacts::CheckGeneration(absl::string_view rpc, PartId part,
                                         uint64_t generation) const {
  const PartLeases& known = parts[part.value()];
  if (generation < known.seen) {
    return absl::AbortedError(
        absl::StrCat(rpc, ": part ", part.value(), ": generation ", generation,
                     " of its lease is over, generation ", known.seen,
                     " has begun; another process holds the part; join again"));
  }
  if (generation > known.granted) {
    return absl::InvalidArgumentError(
        absl::StrCat(rpc, ": part ", part.value(), ": generation ", generation,
                     " of its lease was never granted",
                     job.is_lead() ? "" : ", as far as the lead has told this server",
                     "; the last one is generation ", known.granted));
  }
  return absl::OkStatus();
}

bool ShardFacts::KnowsLeases() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const PartLeases& part) { return part.seen > 0; });
}

absl::StatusOr<std::vector<ChunkId>> ShardFacts::NamedChunks(absl::string_view rpc,
                                                             absl::Span<const uint32_t> ids) const {
  std::vector<ChunkId> chunks;
  std::vector<bool> named(owned.size(), false);
  for (const uint32_t id : ids) {
    if (Owned(ChunkId(id)) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(rpc, ": chunk ", id, " is not one of shard ", job.shard.value()));
    }
    if (named[local[id]]) {
      return absl::InvalidArgumentError(absl::StrCat(rpc, ": chunk ", id, " is named twice"));
    }
    named[local[id]] = true;
    chunks.push_back(ChunkId(id));
  }
  return chunks;
}

bool ShardFacts::EndsProcess(const absl::Status& status) const {
  return job.durable() && (absl::IsInternal(status) || absl::IsDataLoss(status));
}

v1::ShardMessage ShardFacts::NewMessage() const {
  v1::ShardMessage message;
  message.set_job_id(job.id.value());
  message.set_from(job.shard.value());
  message.set_term(term.value());
  return message;
}

effect::Trace ShardFacts::Traced(TraceAction::Kind kind, uint64_t subject, Version version,
                                 const CutId& cut) const {
  return effect::Trace{TraceAction{kind, term, Step(step), subject, version, cut}};
}

}  // namespace eps
