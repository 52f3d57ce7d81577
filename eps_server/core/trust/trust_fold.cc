#include "eps_server/core/trust/trust_fold.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "optimizer/trust_ratio.h"

namespace eps {

TrustFold::TrustFold(const JobSpec& spec, const ChunkMap& chunks)
    : spec_(spec), chunks_(chunks), squares_(chunks.chunks().size()) {}

void TrustFold::Begin(uint64_t step) {
  step_ = step;
  squares_.assign(squares_.size(), {});
}

absl::Status TrustFold::OnNorms(const v1::TensorNorms& norms) {
  if (norms.step() != step_) return absl::OkStatus();
  const auto found = static_cast<size_t>(norms.weight_squares_size());
  if (norms.step_squares_size() != norms.weight_squares_size()) {
    return absl::InvalidArgumentError(absl::StrCat("norms of step ", step_, ": ", found,
                                                   " of weights and ", norms.step_squares_size(),
                                                   " of steps"));
  }
  int next = 0;
  for (const uint32_t id : norms.chunks()) {
    if (id >= squares_.size() || chunks_.chunk(ChunkId(id)).frozen) {
      return absl::InvalidArgumentError(
          absl::StrCat("norms of step ", step_, " for chunk ", id, ", which is not trained"));
    }
    const size_t segments = chunks_.chunk(ChunkId(id)).segments.size();
    if (found - static_cast<size_t>(next) < segments) {
      return absl::InvalidArgumentError(absl::StrCat("norms of step ", step_, " for chunk ", id,
                                                     ", which has ", segments,
                                                     " segments: too few"));
    }
    std::vector<SegmentSquares> squares;
    for (size_t i = 0; i < segments; ++i, ++next) {
      squares.push_back({norms.weight_squares(next), norms.step_squares(next)});
    }
    if (squares_[id].empty()) squares_[id] = std::move(squares);
  }
  if (static_cast<size_t>(next) == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("norms of step ", step_, ": ", found, " for ", next, " segments"));
}

std::optional<ChunkId> TrustFold::Missing() const {
  for (const Chunk& chunk : chunks_.chunks()) {
    if (!chunk.frozen && squares_[chunk.id.value()].empty()) return chunk.id;
  }
  return std::nullopt;
}

std::optional<v1::Trust> TrustFold::Fold() const {
  if (step_ == 0 || Missing().has_value()) return std::nullopt;
  std::vector<SegmentSquares> tensors(spec_.tensors.size());
  for (const Chunk& chunk : chunks_.chunks()) {
    if (chunk.frozen) continue;
    for (size_t i = 0; i < chunk.segments.size(); ++i) {
      SegmentSquares* const tensor = &tensors[chunk.segments[i].tensor.value()];
      tensor->weights += squares_[chunk.id.value()][i].weights;
      tensor->steps += squares_[chunk.id.value()][i].steps;
    }
  }
  v1::Trust trust;
  trust.set_step(step_);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const ParameterGroup& group = spec_.groups[spec_.tensors[t].group.value()];
    trust.add_ratios(HasTrustRatio(spec_.optimizer, group) ? TrustRatio(tensors[t]) : 1);
  }
  return trust;
}

}  // namespace eps
