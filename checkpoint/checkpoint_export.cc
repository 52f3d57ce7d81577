#include "checkpoint/checkpoint_export.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/config/config.h"
#include "base/files/files.h"
#include "base/files/safetensors_folder.h"
#include "base/folder.h"
#include "base/job/models/model_program.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/weights/lora_weights.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;  // elements that are held at once

struct Dtype {
  const char* name;       // as the user writes it
  const char* in_file;    // as safetensors spells it
  const char* in_config;  // as config.json spells it
  uint64_t element_bytes;
};
constexpr Dtype kDtypes[] = {
    {"f32", "F32", "float32", 4}, {"bf16", "BF16", "bfloat16", 2}, {"f16", "F16", "float16", 2}};

// Top-level files of a checkpoint that transformers does not load.
constexpr const char* kNotExported[] = {kSafetensorsFile, "trainer_state.json"};

// Of those, the files that describe the model, which a folder with adapters alone does not have.
constexpr const char* kOfModel[] = {"config.json", "generation_config.json"};
constexpr char kAdapterFile[] = "adapter_model.safetensors";

// A tensor of the exported files, and the elements of the job's tensor that it holds.
struct ExportedTensor {
  SafetensorsEntry entry;
  TensorId tensor;
  uint64_t first = 0;
};

// The origin of an export. `lora_or_null` is that of a model with adapters.
struct Source {
  const CheckpointReader& checkpoint;
  LoraWeights* lora_or_null;
  bool merge;

  // The adapters alone, or all other tensors.
  bool Takes(TensorId tensor) const {
    return lora_or_null == nullptr || lora_or_null->IsAdapter(tensor) != merge;
  }
  bool only_adapters() const { return lora_or_null != nullptr && !merge; }
  absl::Status Read(TensorId tensor, uint64_t first, size_t count, float* out) const {
    if (lora_or_null != nullptr) return lora_or_null->ReadMerged(tensor, first, count, out);
    return checkpoint.Read(/*field=*/0, tensor, first, count, out);
  }
};

std::vector<ExportedTensor> TensorsOf(const Source& source, const Dtype& dtype) {
  std::vector<ExportedTensor> tensors;
  const WeightLayout& weights = source.checkpoint.weights();
  for (uint32_t t = 0; t < source.checkpoint.spec().tensors.size(); ++t) {
    if (!source.Takes(TensorId(t))) continue;
    uint64_t first = 0;
    for (size_t i = 0; i < weights.files(TensorId(t)).size(); ++i) {
      SafetensorsEntry entry = weights.entries()[weights.first_entry(TensorId(t)) + i];
      if (source.only_adapters()) entry.name = source.lora_or_null->PeftName(TensorId(t));
      entry.dtype = dtype.in_file;
      const uint64_t elements = entry.elements();
      tensors.push_back({std::move(entry), TensorId(t), first});
      first += elements;
    }
  }
  return tensors;
}

// Returns the tensors of each shard as indices into `entries`.
std::vector<std::vector<size_t>> PlanShards(const std::vector<ExportedTensor>& entries,
                                            const Dtype& dtype, uint64_t max_bytes) {
  std::vector<std::vector<size_t>> shards(1);
  uint64_t filled = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t bytes = entries[i].entry.elements() * dtype.element_bytes;
    if (!shards.back().empty() && (filled >= max_bytes || bytes > max_bytes - filled)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  return shards;
}

absl::Status WriteShard(const Source& source, const std::vector<ExportedTensor>& all,
                        const std::vector<size_t>& members, const std::string& path) {
  std::vector<SafetensorsEntry> entries;
  for (const size_t i : members) entries.push_back(all[i].entry);
  EPS_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(path, entries));
  std::vector<float> values(kPiece);
  for (size_t e = 0; e < entries.size(); ++e) {
    const uint64_t elements = entries[e].elements();
    for (uint64_t first = 0; first < elements; first += kPiece) {
      const size_t count = std::min<uint64_t>(kPiece, elements - first);
      const ExportedTensor& from = all[members[e]];
      EPS_RETURN_IF_ERROR(source.Read(from.tensor, from.first + first, count, values.data()));
      const absl::Status wrote = writer->Write(e, first, absl::MakeSpan(values.data(), count));
      if (absl::IsInvalidArgument(wrote)) {
        return absl::InvalidArgumentError(
            absl::StrCat(wrote.message(), "; export with --dtype=bf16 or f32"));
      }
      EPS_RETURN_IF_ERROR(wrote);
    }
  }
  return writer->Finish();
}

// Copies config.json, generation_config.json and the tokenizer: every top-level file without state.
absl::Status CopySmallFiles(const std::string& from, const std::string& to, bool with_model,
                            const Dtype& dtype) {
  EPS_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(from));
  for (const auto& [name, sums] : manifest.files) {
    const bool is_state = std::any_of(std::begin(kNotExported), std::end(kNotExported),
                                      [&, &file = name](const char* n) { return file == n; });
    const bool is_of_model = std::any_of(std::begin(kOfModel), std::end(kOfModel),
                                         [&, &file = name](const char* n) { return file == n; });
    if (is_state || absl::StrContains(name, '/') || (is_of_model && !with_model)) continue;
    EPS_ASSIGN_OR_RETURN(std::string content, ReadTextFile(absl::StrCat(from, "/", name)));
    if (name == "config.json") {
      auto config = nlohmann::ordered_json::parse(content, nullptr, /*allow_exceptions=*/false);
      for (const char* const key : {"torch_dtype", "dtype"}) {
        if (!config.is_object() || !config.contains(key)) continue;
        config[key] = dtype.in_config;
        content = config.dump(2) + "\n";
      }
    }
    EPS_RETURN_IF_ERROR(WriteSynced(absl::StrCat(to, "/", name), content));
  }
  return absl::OkStatus();
}

// Writes adapter_config.json, as peft does. It names the model's folder as the run did.
absl::Status WriteAdapterConfig(const CheckpointReader& checkpoint, const LoraWeights& weights,
                                const std::string& from, const std::string& to) {
  const ModelProgram& program = *checkpoint.spec().model.program;
  Config config;
  const absl::StatusOr<std::string> yaml = ReadTextFile(absl::StrCat(from, "/", kConfigFile));
  if (yaml.ok()) EPS_RETURN_IF_ERROR(config.MergeYaml(*yaml, kConfigFile));
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"base_model_name_or_path", config.model.path},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", weights.in_out()},
                                 {"inference_mode", true},
                                 {"lora_alpha", program.lora.alpha},
                                 {"lora_dropout", program.lora.dropout},
                                 {"r", program.lora.r},
                                 {"target_modules", program.lora.targets},
                                 {"task_type", nullptr}};
  if (program.task == ProgramTask::kCausalLm) json["task_type"] = "CAUSAL_LM";
  return WriteSynced(absl::StrCat(to, "/adapter_config.json"), json.dump(2) + "\n");
}

absl::StatusOr<ExportSummary> WriteWeights(const Source& source, const std::string& folder,
                                           const Dtype& dtype, uint64_t max_shard_bytes) {
  const std::vector<ExportedTensor> entries = TensorsOf(source, dtype);
  ExportSummary summary;
  for (const auto& [entry, tensor, first] : entries) {
    ++summary.tensors;
    summary.elements += entry.elements();
    summary.bytes += entry.elements() * dtype.element_bytes;
  }
  // peft reads one file.
  const std::vector<std::vector<size_t>> shards =
      PlanShards(entries, dtype, source.only_adapters() ? UINT64_MAX : max_shard_bytes);
  summary.shards = shards.size();
  if (shards.size() > kMaxSafetensorsShards) {
    return absl::InvalidArgumentError(absl::StrCat("--max-shard-size: would make ", shards.size(),
                                                   " shards, at most ", kMaxSafetensorsShards,
                                                   " are read"));
  }
  std::map<std::string, std::string> file_by_tensor;
  for (size_t s = 0; s < shards.size(); ++s) {
    std::string name = source.only_adapters() ? kAdapterFile : kSafetensorsFile;
    if (shards.size() > 1) {
      name = absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards.size());
    }
    EPS_RETURN_IF_ERROR(WriteShard(source, entries, shards[s], absl::StrCat(folder, "/", name)));
    for (const size_t i : shards[s]) file_by_tensor[entries[i].entry.name] = name;
  }
  if (shards.size() > 1) {
    EPS_RETURN_IF_ERROR(
        WriteSynced(absl::StrCat(folder, "/", kSafetensorsIndexFile),
                    SafetensorsIndexText(file_by_tensor, summary.bytes, summary.elements)));
  }
  return summary;
}

// Refuses an export that would lose what was trained.
absl::Status CheckMerge(const std::optional<LoraWeights>& lora, const ExportOptions& options) {
  if (!lora.has_value()) {
    if (!options.merge) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("--merge: the model of ", options.checkpoint, " has no LoRA adapters"));
  }
  const std::string other = lora->OtherTrained();
  if (options.merge || other.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      options.checkpoint, ": ", other,
      " was trained beside the adapters, and a folder of adapters would lose it; give --merge"));
}

}  // namespace

absl::StatusOr<ExportSummary> ExportCheckpoint(const ExportOptions& options) {
  const Dtype* const dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                          [&](const Dtype& d) { return options.dtype == d.name; });
  if (dtype == std::end(kDtypes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype: expected f32, bf16 or f16, found \"", options.dtype, "\""));
  }
  if (options.max_shard_bytes == 0) {
    return absl::InvalidArgumentError("--max-shard-size: expected a size above zero");
  }
  std::error_code error;
  const fs::path out = fs::absolute(options.out, error).lexically_normal();
  const fs::path target = out.has_filename() ? out : out.parent_path();
  if (fs::exists(target, error) &&
      !(fs::is_directory(target, error) && fs::is_empty(target, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat("--out: ", target.string(), " is there and not empty; name a new folder"));
  }
  EPS_ASSIGN_OR_RETURN(const auto checkpoint, CheckpointReader::Open(options.checkpoint));
  std::optional<LoraWeights> lora;
  if (HasLora(checkpoint->spec())) {
    EPS_ASSIGN_OR_RETURN(lora, LoraWeights::Open(*checkpoint));
  }
  EPS_RETURN_IF_ERROR(CheckMerge(lora, options));
  const Source source{*checkpoint, lora.has_value() ? &*lora : nullptr, options.merge};
  const fs::path parent = target.parent_path();
  const ScratchFolder hidden = {
      (parent / absl::StrCat(".", target.filename().string(), ".eps-export.tmp")).string()};
  EPS_RETURN_IF_ERROR(hidden.MakeEmpty());
  EPS_ASSIGN_OR_RETURN(const ExportSummary summary,
                       WriteWeights(source, hidden.path, *dtype, options.max_shard_bytes));
  EPS_RETURN_IF_ERROR(
      CopySmallFiles(options.checkpoint, hidden.path, !source.only_adapters(), *dtype));
  if (source.only_adapters()) {
    EPS_RETURN_IF_ERROR(WriteAdapterConfig(*checkpoint, *lora, options.checkpoint, hidden.path));
  }
  EPS_RETURN_IF_ERROR(SyncPath(hidden.path));
  EPS_RETURN_IF_ERROR(RenamePath(hidden.path, target.string()));
  EPS_RETURN_IF_ERROR(SyncPath(parent.string()));
  return summary;
}

}  // namespace eps
