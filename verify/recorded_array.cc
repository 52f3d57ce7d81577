#include "verify/recorded_array.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace eps {
namespace {

absl::Status CheckTensor(const std::string& path, const FileTensor& expected,
                         const SafetensorsEntry& entry) {
  if (entry.dtype == "F32" && entry.shape == expected.shape) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, ": tensor ", expected.name, " is ", entry.dtype, " ", absl::StrJoin(entry.shape, " x "),
      ", the job has F32 ", absl::StrJoin(expected.shape, " x ")));
}

}  // namespace

absl::StatusOr<RecordedArray> RecordedArray::Open(const std::string& path, const JobSpec& spec,
                                                  bool weights) {
  RecordedArray array;
  EPS_ASSIGN_OR_RETURN(array.file_, SafetensorsReader::Open(path));
  size_t count = 0;
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    const ModelFamily& family = FamilyOf(spec.model.type);
    const TensorSpec& tensor = spec.tensors[t];
    array.tensors_.emplace_back();
    if (weights) {
      array.tensors_.back() = family.InFiles(spec.model, tensor, t);
    } else if (!spec.IsFrozen(TensorId(static_cast<uint32_t>(t)))) {
      // Optimizer state is stored as the job lays out its tensors.
      array.tensors_.back() = AsLaidOut(tensor);
    }
    for (const FileTensor& expected : array.tensors_.back()) {
      const auto entry = array.file_->Find(expected.name);
      if (!entry.ok()) return absl::DataLossError(entry.status().message());
      EPS_RETURN_IF_ERROR(CheckTensor(path, expected, **entry));
      ++count;
    }
  }
  if (array.file_->entries().size() != count) {
    return absl::DataLossError(absl::StrCat(path, " holds ", array.file_->entries().size(),
                                            " tensors, the job has ", count));
  }
  return array;
}

absl::Status RecordedArray::Read(TensorId tensor, float* out) const {
  for (const FileTensor& part : tensors_[tensor.value()]) {
    EPS_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file_->Find(part.name));
    EPS_RETURN_IF_ERROR(file_->Read(*entry, 0, part.elements(), out));
    out += part.elements();
  }
  return absl::OkStatus();
}

}  // namespace eps
