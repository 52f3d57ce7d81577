#include "checkpoint/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/initial_values.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"

namespace eps {
namespace {

constexpr size_t kShownNames = 5;
constexpr size_t kPiece = size_t{1} << 20;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Returns "3 tensors: a, b, …".
std::string ListNames(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kShownNames); ++i) {
    shown.push_back(ShowUntrusted(names[i]));
  }
  return absl::StrCat(names.size(),
                      names.size() == 1 ? " tensor: " : " tensors: ", absl::StrJoin(shown, ", "),
                      names.size() > kShownNames ? ", …" : "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightsReader>> WeightsReader::Open(const std::string& path,
                                                                   const JobSpec& spec) {
  std::unique_ptr<WeightsReader> reader(new WeightsReader(spec));
  EPS_ASSIGN_OR_RETURN(reader->folder_, SafetensorsFolder::Open(path));
  std::vector<std::string> missing;
  std::vector<std::string> created;
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    for (const FileTensor& expected : reader->layout_.files(TensorId(t))) {
      EPS_RETURN_IF_ERROR(
          reader->Take(FamilyOf(spec.model.type), expected, expected.is_new ? &created : &missing));
    }
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat(reader->path(), " lacks, of the model of config.json, ", ListNames(missing)));
  }
  if (!created.empty()) {
    reader->notes_.push_back(absl::StrCat(reader->path(), " lacks, as the model says, ",
                                          ListNames(created), "; begins with new values"));
  }
  EPS_RETURN_IF_ERROR(reader->PassOverTheRest());
  return reader;
}

absl::Status WeightsReader::Read(TensorId tensor, uint64_t first, size_t count, float* out) const {
  return layout_.ForEachPiece(
      tensor, first, count,
      [&](size_t entry, uint64_t from, size_t offset, size_t piece) -> absl::Status {
        if (tensors_[entry].has_value()) return tensors_[entry]->Read(from, piece, out + offset);
        // A new tensor is one entry.
        FillInitialValues(spec_, tensor, from, absl::MakeSpan(out + offset, piece));
        return absl::OkStatus();
      });
}

absl::Status WeightsReader::Take(const ModelFamily& family, const FileTensor& expected,
                                 std::vector<std::string>* missing) {
  const auto& tensors = folder_->tensors();
  auto found = tensors.find(expected.name);
  const absl::string_view prefix = family.optional_prefix();
  if (!prefix.empty() && absl::StartsWith(expected.name, prefix)) {
    const auto plain = tensors.find(expected.name.substr(prefix.size()));
    if (found != tensors.end() && plain != tensors.end()) {
      return absl::DataLossError(
          absl::StrCat(path(), " has tensor ", expected.name, " a second time, as ", plain->first));
    }
    if (found == tensors.end()) found = plain;
  }
  if (found == tensors.end()) {
    missing->push_back(expected.name);
    tensors_.emplace_back();
    return absl::OkStatus();
  }
  const SafetensorsEntry& entry = *found->second.entry;
  const std::string& file = found->second.file->path();
  if (entry.shape != expected.shape) {
    std::vector<uint64_t> turned(entry.shape.rbegin(), entry.shape.rend());
    return absl::DataLossError(
        absl::StrCat(file, ": tensor ", entry.name, " is ", ShapeText(entry.shape),
                     ", config.json says ", ShapeText(expected.shape),
                     turned == expected.shape ? absl::StrCat(" (", family.shape_note(), ")") : ""));
  }
  if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16") {
    return absl::DataLossError(absl::StrCat(file, ": tensor ", entry.name, " is ", entry.dtype,
                                            ", weights are read from F32, BF16 and F16"));
  }
  tensors_.push_back(found->second);
  return absl::OkStatus();
}

absl::Status WeightsReader::PassOverTheRest() {
  std::set<const SafetensorsEntry*> used;
  for (const std::optional<Tensor>& tensor : tensors_) {
    if (tensor.has_value()) used.insert(tensor->entry);
  }
  const ModelFamily& family = FamilyOf(spec_.model.type);
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : folder_->tensors()) {
    if (used.count(tensor.entry) != 0 || family.IsObsolete(name)) continue;
    const absl::string_view tied_to = family.EqualTo(spec_.model, name);
    if (!tied_to.empty()) {
      for (uint32_t t = 0; t < spec_.tensors.size(); ++t) {
        if (spec_.tensors[t].name != tied_to) continue;
        EPS_RETURN_IF_ERROR(CheckTied(tensor, TensorId(t)));
      }
      continue;
    }
    unknown.push_back(name);
  }
  if (!unknown.empty()) {
    notes_.push_back(absl::StrCat(path(), " has, beside the model of config.json, ",
                                  ListNames(unknown), "; not used"));
  }
  return absl::OkStatus();
}

absl::Status WeightsReader::CheckTied(const Tensor& copy, TensorId original) const {
  const TensorSpec& tied = spec_.tensors[original.value()];
  const auto differ = [&](const std::string& how) {
    return absl::DataLossError(absl::StrCat(
        copy.file->path(), ": ", copy.entry->name, " ", how, " ", tied.name,
        ", but config.json ties them; set tie_word_embeddings to false there to train them apart, "
        "or remove the tensor"));
  };
  const std::vector<FileTensor>& files = layout_.files(original);
  if (files.size() != 1 || copy.entry->shape != files[0].shape) {
    return differ(absl::StrCat("is ", ShapeText(copy.entry->shape), ", unlike"));
  }
  const uint64_t elements = tied.elements();
  std::vector<float> ours(std::min<uint64_t>(elements, kPiece));
  std::vector<float> theirs(ours.size());
  for (uint64_t first = 0; first < elements; first += ours.size()) {
    const size_t count = std::min<uint64_t>(ours.size(), elements - first);
    EPS_RETURN_IF_ERROR(Read(original, first, count, ours.data()));
    EPS_RETURN_IF_ERROR(copy.Read(first, count, theirs.data()));
    for (size_t i = 0; i < count; ++i) {
      if (std::memcmp(&ours[i], &theirs[i], sizeof(float)) == 0) continue;
      return differ(absl::StrCat("differs at element ", first + i, " from"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ChunkState> WeightsReader::ReadChunk(const JobSpec& spec, const Chunk& chunk) const {
  ChunkState state(StateBytes(spec, chunk), '\0');
  std::vector<float> values;
  for (const Segment& segment : chunk.segments) {
    values.resize(segment.elements());
    EPS_RETURN_IF_ERROR(Read(segment.tensor, segment.tensor_offset, values.size(), values.data()));
    std::memcpy(&state[segment.offset * sizeof(float)], values.data(),
                values.size() * sizeof(float));
  }
  return state;
}

}  // namespace eps
