#include "worker/client/residual_keeper.h"

#include <utility>

namespace eps {

ResidualKeeper::ResidualKeeper(
    const JobView* job, std::vector<PartId> parts,
    std::function<void(std::shared_ptr<FetchOp>, const std::vector<ChunkId>&)> fetch,
    std::function<void()> on_arrival)
    : job_(job),
      parts_(std::move(parts)),
      fetch_(std::move(fetch)),
      on_arrival_(std::move(on_arrival)) {}

void ResidualKeeper::Begin(Step step, Version version, std::vector<bool> push) {
  const bool skipped = version == version_;
  if (!lives_here()) {
    residuals_.clear();
    wanted_.clear();
  } else if (!skipped) {
    // All other residuals belong to contributions of another process, and are on the servers.
    wanted_.clear();
    for (const auto& [place, residual] : left_out_) wanted_.insert(place);
    residuals_ = std::move(left_out_);
  }
  left_out_.clear();
  step_ = step;
  version_ = version;
  push_ = std::move(push);
}

void ResidualKeeper::Want(StageId stage) {
  for (const PartId part : parts_) {
    std::vector<ChunkId> missing;
    for (const ChunkId chunk : job_->chunks.ChunksOfStage(stage)) {
      if (codec_or_null(chunk) == nullptr) continue;
      if (wanted_.insert({stage, part, chunk}).second) missing.push_back(chunk);
    }
    if (missing.empty()) continue;
    auto op = std::make_shared<FetchOp>();
    op->stage = stage;
    op->version = version_;
    op->backward = true;
    op->residuals_of = part;
    op->missing = static_cast<uint32_t>(missing.size());
    op->on_done = [this](const FetchOp& done) EPS_REQUIRES(client_lock) { OnFetched(done); };
    fetch_(std::move(op), missing);
  }
}

void ResidualKeeper::OnFetched(const FetchOp& op) {
  // The step may be over, if another process's contributions were counted.
  if (op.version == version_) {
    for (const auto& [chunk, residual] : op.residuals) {
      residuals_[{op.stage, *op.residuals_of, ChunkId(chunk)}] = residual;
    }
  }
  on_arrival_();
}

std::optional<Bytes> ResidualKeeper::Find(const Place& place) const {
  const auto it = residuals_.find(place);
  if (it == residuals_.end()) return std::nullopt;
  return it->second;
}

void ResidualKeeper::Put(const Place& place, Bytes residual) {
  if (lives_here()) {
    left_out_[place] = std::move(residual);
  } else {
    residuals_.erase(place);
  }
}

bool ResidualKeeper::OnlyHere() const {
  for (const auto& [place, residual] : left_out_) {
    if (!PushesTo(job_->placement[place.chunk.value()])) return true;
  }
  return false;
}

}  // namespace eps
