#include "checkpoint/initial_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "checkpoint/checkpoint.h"
#include "base/status_macros.h"

namespace eps {
namespace {

constexpr absl::string_view kPrefix = "transformer.";
constexpr char kEmbedding[] = "transformer.wte.weight";
constexpr char kHead[] = "lm_head.weight";
constexpr size_t kShownNames = 5;
constexpr size_t kPiece = size_t{1} << 20;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// "3 tensors: a, b, …"
std::string ListNames(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kShownNames); ++i) {
    shown.push_back(ShowUntrusted(names[i]));
  }
  return absl::StrCat(names.size(),
                      names.size() == 1 ? " tensor: " : " tensors: ", absl::StrJoin(shown, ", "),
                      names.size() > kShownNames ? ", …" : "");
}

// The causal mask, which transformers saved with the weights until version 4.
bool IsMaskBuffer(absl::string_view name) {
  absl::ConsumePrefix(&name, kPrefix);
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  uint32_t layer = 0;
  return parts.size() == 4 && parts[0] == "h" && absl::SimpleAtoi(parts[1], &layer) &&
         parts[2] == "attn" && (parts[3] == "bias" || parts[3] == "masked_bias");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightsReader>> WeightsReader::Open(const std::string& path,
                                                                   const JobSpec& spec) {
  std::unique_ptr<WeightsReader> reader(new WeightsReader());
  EPS_ASSIGN_OR_RETURN(reader->folder_, SafetensorsFolder::Open(path));
  std::vector<std::string> missing;
  for (const SafetensorsEntry& expected : EntriesOf(spec)) {
    EPS_RETURN_IF_ERROR(reader->Take(expected, &missing));
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat(reader->path(), " lacks, of the model of config.json, ", ListNames(missing)));
  }
  EPS_RETURN_IF_ERROR(reader->PassOverTheRest(spec));
  return reader;
}

absl::Status WeightsReader::Take(const SafetensorsEntry& expected,
                                 std::vector<std::string>* missing) {
  const auto& tensors = folder_->tensors();
  auto found = tensors.find(expected.name);
  if (absl::StartsWith(expected.name, kPrefix)) {
    const auto plain = tensors.find(expected.name.substr(kPrefix.size()));
    if (found != tensors.end() && plain != tensors.end()) {
      return absl::DataLossError(
          absl::StrCat(path(), " has tensor ", expected.name, " a second time, as ", plain->first));
    }
    if (found == tensors.end()) found = plain;
  }
  if (found == tensors.end()) {
    missing->push_back(expected.name);
    return absl::OkStatus();
  }
  const SafetensorsEntry& entry = *found->second.entry;
  const std::string& file = found->second.file->path();
  if (entry.shape != expected.shape) {
    std::vector<uint64_t> turned(entry.shape.rbegin(), entry.shape.rend());
    return absl::DataLossError(absl::StrCat(
        file, ": tensor ", entry.name, " is ", ShapeText(entry.shape), ", config.json says ",
        ShapeText(expected.shape),
        turned == expected.shape ? " (GPT-2's matrices are stored as [in, out])" : ""));
  }
  if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16") {
    return absl::DataLossError(absl::StrCat(file, ": tensor ", entry.name, " is ", entry.dtype,
                                            ", weights are read from F32, BF16 and F16"));
  }
  tensors_.push_back(found->second);
  return absl::OkStatus();
}

absl::Status WeightsReader::PassOverTheRest(const JobSpec& spec) {
  std::set<const SafetensorsEntry*> used;
  for (const Tensor& tensor : tensors_) used.insert(tensor.entry);
  const bool gpt2 = spec.model.type == ModelType::kGpt2;
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : folder_->tensors()) {
    if (used.count(tensor.entry) != 0 || (gpt2 && IsMaskBuffer(name))) continue;
    if (gpt2 && spec.model.gpt2.tie_word_embeddings && name == kHead) {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (spec.tensors[i].name != kEmbedding) continue;
        EPS_RETURN_IF_ERROR(CheckTiedHead(tensor, tensors_[i]));
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

absl::Status WeightsReader::CheckTiedHead(const Tensor& head, const Tensor& embedding) const {
  const auto differ = [&](const std::string& how) {
    return absl::DataLossError(absl::StrCat(
        head.file->path(), ": ", kHead, " ", how, " ", embedding.entry->name,
        ", but config.json ties them; set tie_word_embeddings to false there to train them apart, "
        "or remove the tensor"));
  };
  if (head.entry->shape != embedding.entry->shape) {
    return differ(absl::StrCat("is ", ShapeText(head.entry->shape), ", unlike"));
  }
  const uint64_t elements = embedding.entry->elements();
  std::vector<float> ours(std::min<uint64_t>(elements, kPiece));
  std::vector<float> theirs(ours.size());
  for (uint64_t first = 0; first < elements; first += ours.size()) {
    const size_t count = std::min<uint64_t>(ours.size(), elements - first);
    EPS_RETURN_IF_ERROR(embedding.Read(first, count, ours.data()));
    EPS_RETURN_IF_ERROR(head.Read(first, count, theirs.data()));
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
