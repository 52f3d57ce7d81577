#include "worker/models/program_tensors.h"

#include <cstring>

#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "worker/models/program_ops.h"
#include "worker/models/stage_inputs.h"

namespace eps {

using at::Tensor;
namespace {

// Returns for each token whether it is no padding.
std::vector<int32_t> RealTokens(const MicroBatch& batch) {
  std::vector<int32_t> real;
  for (const uint32_t length : batch.lengths) {
    for (uint32_t i = 0; i < batch.seq_len; ++i) real.push_back(i < length ? 1 : 0);
  }
  return real;
}

}  // namespace

std::vector<Tensor> ProgramConstants(const ModelProgram& program, const ProgramStageSpec& stage) {
  std::vector<Tensor> constants;
  for (const uint32_t index : stage.constants) {
    const ProgramConstant& constant = program.constants[index];
    constants.push_back(
        at::empty(constant.shape, at::TensorOptions().dtype(ScalarTypeOf(constant.type))));
    std::memcpy(constants.back().mutable_data_ptr(), constant.bytes.data(), constant.bytes.size());
  }
  return constants;
}

std::vector<Tensor> ProgramColumns(const ModelProgram& program, const CallList& calls,
                                   const MicroBatch& batch, const Tensor& like) {
  TORCH_CHECK(batch.positions.empty() || program.variant == ProgramVariant::kPacked,
              "documents share rows, which the variant ", NameOf(program.variant), " of ",
              program.architecture, " does not separate");
  const at::TensorOptions ids = like.options().dtype(at::kLong);
  const std::vector<int64_t> shape = {batch.samples, batch.seq_len};
  std::vector<Tensor> columns;
  for (const ProgramInput input : calls.inputs) {
    switch (input) {
      case ProgramInput::kInputIds:
        columns.push_back(IdTensor(batch.tokens, batch, like));
        break;
      case ProgramInput::kPositionIds:
        columns.push_back(batch.positions.empty()
                              ? at::arange(batch.seq_len, ids).expand(shape).contiguous()
                              : IdTensor(batch.positions, batch, like));
        break;
      case ProgramInput::kAttentionMask:
        columns.push_back(batch.lengths.empty() ? at::ones(shape, ids)
                                                : IdTensor(RealTokens(batch), batch, like));
        break;
      case ProgramInput::kTokenTypeIds:
        columns.push_back(batch.token_types.empty() ? at::zeros(shape, ids)
                                                    : IdTensor(batch.token_types, batch, like));
        break;
      case ProgramInput::kPixelValues:
        columns.push_back(ImageTensor(program.image, batch, like).to(ScalarTypeOf(program.type)));
    }
  }
  return columns;
}

absl::Status CheckProgramLayout(const JobSpec& spec, StageId stage) {
  const ModelProgram& program = *spec.model.program;
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage.value(), " of the job: ", what,
                                                   ": not the layout of its model program"));
  };
  if (spec.stages.size() != program.stages.size()) return refuse("another number of stages");
  const std::vector<TensorUse>& uses = spec.stages[stage.value()].uses;
  const std::vector<ProgramUse>& expected = program.stages[stage.value()].uses;
  if (uses.size() != expected.size()) return refuse("another number of tensors");
  for (size_t use = 0; use < uses.size(); ++use) {
    const uint32_t index = uses[use].tensor.value();
    const ProgramTensor& tensor = program.tensors[expected[use].tensor];
    const bool same = index == expected[use].tensor && index < spec.tensors.size() &&
                      spec.tensors[index].rank == tensor.rank() &&
                      spec.tensors[index].rows == tensor.rows() &&
                      spec.tensors[index].cols == tensor.cols();
    if (!same) return refuse(absl::StrCat("tensor ", index, " is not ", tensor.name));
  }
  return absl::OkStatus();
}

}  // namespace eps
