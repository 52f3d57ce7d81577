#include "optimizer/reduction_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/numerics/tree_add.h"
#include "base/status_macros.h"

namespace eps {

class ReductionPlan::Builder {
 public:
  Builder(const Chunk& chunk, const std::vector<UpdateInput>& inputs)
      : chunk_(chunk), inputs_(inputs), plan_(chunk) {}

  absl::Status AddUses(uint32_t parts) {
    EPS_RETURN_IF_ERROR(IndexInputs());
    const TreeRange root{0, parts};
    for (uint32_t use = 0; use < chunk_.uses.size(); ++use) {
      if (use == 0) {
        EPS_RETURN_IF_ERROR(AddNode(use, root, /*buffer=*/0));
      } else {
        EPS_RETURN_IF_ERROR(AddRightBranch(use, root, /*buffer=*/0));
      }
    }
    for (const auto& [key, input] : by_place_) {
      if (!used_[input]) {
        return Refuse(inputs_[input], "is no node of the reduction tree or overlaps another one");
      }
    }
    return absl::OkStatus();
  }

  ReductionPlan Take() { return std::move(plan_); }

 private:
  using Place = std::pair<uint32_t, TreeRange>;  // use, parts

  absl::Status Refuse(const UpdateInput& input, absl::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrCat("update of chunk ", chunk_.id.value(), ": the contribution of parts ",
                     input.parts.first, " to ", uint64_t{input.parts.first} + input.parts.count,
                     " (exclusive) to use ", input.use, " ", why));
  }

  absl::Status IndexInputs() {
    for (uint32_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].data == nullptr) return Refuse(inputs_[i], "has no data");
      if (!by_place_.emplace(Place(inputs_[i].use, inputs_[i].parts), i).second) {
        return Refuse(inputs_[i], "is there twice");
      }
    }
    used_.assign(inputs_.size(), false);
    return absl::OkStatus();
  }

  void Emit(Kind kind, uint32_t buffer, const EncodedChunk* input) {
    plan_.operations_.push_back({kind, buffer, input});
    plan_.buffers_ = std::max<size_t>(plan_.buffers_, buffer + (kind == Kind::kAdd ? 2 : 1));
  }

  // Emits the read of the input that is exactly this node, if there is one.
  bool AddInput(uint32_t use, TreeRange node, Kind kind, uint32_t buffer) {
    const auto it = by_place_.find(Place(use, node));
    if (it == by_place_.end()) return false;
    used_[it->second] = true;
    Emit(kind, buffer, inputs_[it->second].data.get());
    return true;
  }

  // Emits the sum of the node into `buffer`.
  absl::Status AddNode(uint32_t use, TreeRange node, uint32_t buffer) {
    if (AddInput(use, node, Kind::kRead, buffer)) return absl::OkStatus();
    if (node.count <= 1) {
      return absl::InvalidArgumentError(absl::StrCat("update of chunk ", chunk_.id.value(),
                                                     ": the contribution of part ", node.first,
                                                     " to use ", use, " is missing"));
    }
    const uint32_t left = LeftLeaves(node.count);
    EPS_RETURN_IF_ERROR(AddNode(use, TreeRange{node.first, left}, buffer));
    return AddRightBranch(use, TreeRange{node.first + left, node.count - left}, buffer);
  }

  // Emits the addition of the node's sum to `buffer`, which holds its left sibling.
  absl::Status AddRightBranch(uint32_t use, TreeRange node, uint32_t buffer) {
    if (AddInput(use, node, Kind::kReadAdd, buffer)) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(AddNode(use, node, buffer + 1));
    Emit(Kind::kAdd, buffer, nullptr);
    return absl::OkStatus();
  }

  const Chunk& chunk_;
  const std::vector<UpdateInput>& inputs_;
  std::map<Place, uint32_t> by_place_;
  std::vector<bool> used_;
  ReductionPlan plan_;
};

absl::StatusOr<ReductionPlan> ReductionPlan::Build(const Chunk& chunk, uint32_t parts,
                                                   const std::vector<UpdateInput>& inputs) {
  Builder builder(chunk, inputs);
  EPS_RETURN_IF_ERROR(builder.AddUses(parts));
  ReductionPlan plan = builder.Take();
  plan.PlanStrips();
  return plan;
}

ReductionPlan ReductionPlan::Of(const Chunk& chunk, const EncodedChunk& sum) {
  ReductionPlan plan(chunk);
  plan.operations_.push_back({Kind::kRead, 0, &sum});
  plan.buffers_ = 1;
  plan.PlanStrips();
  return plan;
}

void ReductionPlan::PlanStrips() {
  using strip_kernels::StepKind;
  if (buffers_ > strip_kernels::kMaxPushed) return;
  std::vector<strip_kernels::Step> steps;
  for (const Operation& operation : operations_) {
    if (operation.kind == Kind::kAdd) {
      steps.push_back({StepKind::kPopAdd});
      continue;
    }
    const bool add = operation.kind == Kind::kReadAdd;
    if (!add && !steps.empty()) steps.push_back({StepKind::kPush});
    if (const SparseElements* const sparse = operation.input->sparse_elements()) {
      steps.push_back({add ? StepKind::kAddSparse : StepKind::kReadSparse, nullptr, sparse});
      continue;
    }
    const CodecId format = operation.input->in_place_format();
    if (format != CodecId::kFp32 && format != CodecId::kBf16) return;
    const bool fp32 = format == CodecId::kFp32;
    const uint8_t* const elements = operation.input->bytes().data();
    if (add) {
      steps.push_back({fp32 ? StepKind::kAddFp32 : StepKind::kAddBf16, elements});
    } else {
      steps.push_back({fp32 ? StepKind::kReadFp32 : StepKind::kReadBf16, elements});
    }
  }
  strips_ = std::move(steps);
}

void ReductionPlan::Run(const Panel& panel, float* buffers, float* out) const {
  if (InPlace(panel)) {
    strip_kernels::Reduce(strips_.data(), strips_.size(),
                          panel.offset(chunk_->segments[panel.segment]), panel.elements(), out);
    return;
  }
  if (operations_.size() == 1) {  // nothing to add, so no buffer is needed
    ForEachTileOf(panel, [&](const Tile& tile) {
      operations_[0].input->Read(tile, /*accumulate=*/false, panel.cols, out + tile.col);
    });
    return;
  }
  ForEachTileOf(panel, [&](const Tile& tile) {
    RunTile(tile, buffers);
    for (size_t r = 0; r < tile.rows; ++r) {
      std::memcpy(out + r * panel.cols + tile.col, buffers + r * tile.cols,
                  tile.cols * sizeof(float));
    }
  });
}

void ReductionPlan::RunPieces(const Panel& panel, const ElementRange& range, float* out,
                              strip_kernels::PieceSink* sink) const {
  strip_kernels::ReducePieces(strips_.data(), strips_.size(),
                              panel.offset(chunk_->segments[panel.segment]) + range.offset,
                              range.elements, out, sink);
}

void ReductionPlan::RunTile(const Tile& tile, float* buffers) const {
  const size_t elements = size_t{tile.rows} * tile.cols;
  for (const Operation& operation : operations_) {
    float* buffer = buffers + operation.buffer * kBufferElements;
    switch (operation.kind) {
      case Kind::kRead:
        operation.input->Read(tile, /*accumulate=*/false, tile.cols, buffer);
        break;
      case Kind::kReadAdd:
        operation.input->Read(tile, /*accumulate=*/true, tile.cols, buffer);
        break;
      case Kind::kAdd:
        TreeAdd(buffer, buffer + kBufferElements, elements, buffer);
        break;
    }
  }
}

}  // namespace eps
