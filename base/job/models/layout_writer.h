#ifndef EPS_BASE_JOB_MODELS_LAYOUT_WRITER_H_
#define EPS_BASE_JOB_MODELS_LAYOUT_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/job/layout.h"

namespace eps {

// Appends tensors and stages to those of a spec, which it does not own. Call Stage before the
// tensors that the stage uses.
class LayoutWriter {
 public:
  // The groups of a model (BuildLayout): matrices decay, vectors do not, frozen tensors do not
  // change.
  static constexpr GroupId kDecay{0};
  static constexpr GroupId kNoDecay{1};
  static constexpr GroupId kFrozen{2};

  LayoutWriter(std::vector<TensorSpec>* tensors, std::vector<StageSpec>* stages)
      : tensors_(tensors), stages_(stages) {}

  void Stage(const std::string& name) {
    stages_->emplace_back();
    stages_->back().name = name;
  }
  TensorId Matrix(const std::string& name, int64_t rows, int64_t cols, double std) {
    TensorSpec tensor;
    tensor.name = name;
    tensor.rows = static_cast<uint32_t>(rows);
    tensor.cols = static_cast<uint32_t>(cols);
    tensor.group = kDecay;
    tensor.init = Initializer::kNormal;
    tensor.init_std = std;
    return Add(tensor);
  }
  // A tensor with any initial values.
  TensorId Tensor(TensorSpec tensor, GroupId group) {
    tensor.group = group;
    return Add(tensor);
  }
  TensorId Vector(const std::string& name, int64_t cols, Initializer init) {
    TensorSpec tensor;
    tensor.name = name;
    tensor.rank = 1;
    tensor.rows = 1;
    tensor.cols = static_cast<uint32_t>(cols);
    tensor.group = kNoDecay;
    tensor.init = init;
    return Add(tensor);
  }
  // The last stage uses a tensor. A lookup, and a vector, is read along rows in both passes.
  void UseAsRows(TensorId id) { Use(id, Axis::kRow, Axis::kRow); }
  // x @ W contracts the first dimension of W, dY @ W^T the last.
  void UseAsInOut(TensorId id) { Use(id, Axis::kColumn, Axis::kRow); }
  // x @ W^T contracts them the other way round.
  void UseAsOutIn(TensorId id) { Use(id, Axis::kRow, Axis::kColumn); }

  void NormVectors(const std::string& prefix, int width) {
    UseAsRows(Vector(prefix + ".weight", width, Initializer::kOnes));
    UseAsRows(Vector(prefix + ".bias", width, Initializer::kZeros));
  }
  void Linear(const std::string& prefix, int64_t in, int64_t out, double std) {
    UseAsInOut(Matrix(prefix + ".weight", in, out, std));
    UseAsRows(Vector(prefix + ".bias", out, Initializer::kZeros));
  }

 private:
  TensorId Add(const TensorSpec& tensor) {
    tensors_->push_back(tensor);
    return TensorId(static_cast<uint32_t>(tensors_->size() - 1));
  }
  void Use(TensorId id, Axis forward, Axis backward) {
    stages_->back().uses.push_back({id, forward, backward});
  }

  std::vector<TensorSpec>* const tensors_;
  std::vector<StageSpec>* const stages_;
};

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_LAYOUT_WRITER_H_
