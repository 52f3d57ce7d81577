#include "checkpoint/weights/weight_layout.h"

#include <utility>

#include "base/status_macros.h"

namespace eps {

WeightLayout::WeightLayout(const JobSpec& spec) {
  const ModelFamily& family = FamilyOf(spec.model.type);
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    first_.push_back(entries_.size());
    files_.push_back(family.InFiles(spec.model, spec.tensors[t], t));
    for (const FileTensor& file : files_.back()) {
      SafetensorsEntry entry;
      entry.name = file.name;
      entry.shape = file.shape;
      entries_.push_back(std::move(entry));
    }
  }
}

absl::Status WeightLayout::ForEachPiece(TensorId tensor, uint64_t first, size_t count,
                                        const Visitor& visit) const {
  for (const FilePiece& piece : PiecesOf(files(tensor), first, count)) {
    EPS_RETURN_IF_ERROR(
        visit(first_entry(tensor) + piece.file_tensor, piece.first, piece.offset, piece.count));
  }
  return absl::OkStatus();
}

}  // namespace eps
