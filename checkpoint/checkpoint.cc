#include "checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/files/safetensors_folder.h"
#include "base/folder.h"
#include "base/job/models/model_family.h"
#include "base/job/optimizers.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/guard/checkpoint_place.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// Returns, in UTF-8, the character for a byte in byte-level vocabularies: printable Latin-1
// characters stand for themselves, the others are numbered from U+0100 on.
std::string ByteCharacter(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

std::string ByteLevelTokenizer() {
  ordered_json vocabulary = ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[ByteCharacter(byte)] = byte;
  const ordered_json byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", false}};
  ordered_json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"vocab", std::move(vocabulary)},
                        {"merges", ordered_json::array()}};
  const ordered_json tokenizer = {
      {"version", "1.0"},          {"truncation", nullptr},
      {"padding", nullptr},        {"added_tokens", ordered_json::array()},
      {"normalizer", nullptr},     {"pre_tokenizer", byte_level},
      {"post_processor", nullptr}, {"decoder", byte_level},
      {"model", std::move(model)}};
  return tokenizer.dump(2) + "\n";
}

// Adds the key that names the folder to an error.
absl::Status OfCheckpointDir(const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status named(status.code(), absl::StrCat(status.message(), " (checkpoint.dir)"));
  return WithExitCode(std::move(named), ExitCodeOf(status));
}

// Refuses a file that the manifest does not list, because nothing has checked it.
absl::Status CheckListed(const std::string& folder, const CheckpointManifest& manifest,
                         const std::string& name) {
  if (manifest.files.count(name) != 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(folder, ": the manifest does not list ", name));
}

}  // namespace

namespace {

// The files that the spec alone determines.
SmallFiles FilesOfSpec(const JobSpec& spec) {
  SmallFiles files;
  const ModelFamily& family = FamilyOf(spec.model.type);
  files[family.file()] = ModelToJson(spec.model);
  files[kSpecFile] = spec.ToText();
  if (family.vocabulary(spec.model) == 0) return files;
  files["generation_config.json"] =
      "{\n  \"_from_model_config\": true,\n  \"do_sample\": true\n}\n";
  if (family.vocabulary(spec.model) != kByteVocabulary) return files;
  files["tokenizer.json"] = ByteLevelTokenizer();
  const ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                               {"model_max_length", family.max_seq_len(spec.model)},
                               {"clean_up_tokenization_spaces", false}};
  files["tokenizer_config.json"] = config.dump(2) + "\n";
  return files;
}

}  // namespace

SmallFiles FilesOfJob(const JobSpec& spec, const SmallFiles& of_model) {
  SmallFiles files = FilesOfSpec(spec);
  for (const auto& [name, content] : of_model) {
    if (name != FamilyOf(spec.model.type).file()) files[name] = content;
  }
  return files;
}

std::vector<std::string> StateFiles(const JobSpec& spec) {
  std::vector<std::string> files = {kSafetensorsFile};
  for (const std::string& field : StateFields(spec.optimizer)) {
    files.push_back(absl::StrCat("eps/", field, ".safetensors"));
  }
  return files;
}

std::vector<SafetensorsEntry> EntriesOf(const JobSpec& spec) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorSpec& tensor : spec.tensors) {
    if (spec.groups[tensor.group.value()].frozen) continue;
    SafetensorsEntry entry;
    entry.name = tensor.name;
    if (tensor.rank == 2) entry.shape.push_back(tensor.rows);
    entry.shape.push_back(tensor.cols);
    entries.push_back(std::move(entry));
  }
  return entries;
}

CheckpointWriter::CheckpointWriter(std::string root, uint64_t step, const JobSpec& spec,
                                   const ChunkMap& chunks)
    : root_(std::move(root)),
      name_(absl::StrCat("checkpoint-", step)),
      folder_(absl::StrCat(root_, "/", name_)),
      hidden_(TemporaryName(root_, name_)),
      spec_(spec),
      chunks_(chunks),
      weights_(spec) {
  size_t entries = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    field_entry_.push_back(entries);
    if (!spec.groups[tensor.group.value()].frozen) ++entries;
  }
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(const std::string& root,
                                                                           uint64_t step,
                                                                           const JobSpec& spec,
                                                                           const ChunkMap& chunks) {
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(root, step, spec, chunks));
  EPS_RETURN_IF_ERROR(OfCheckpointDir(CreateFolder(root)));
  EPS_RETURN_IF_ERROR(OfCheckpointDir(CleanCheckpoints(root)));
  EPS_RETURN_IF_ERROR(CreateFolder(writer->hidden_ + "/eps"));
  for (const std::string& file : StateFiles(spec)) {
    EPS_ASSIGN_OR_RETURN(
        auto states, SafetensorsWriter::Create(
                         absl::StrCat(writer->hidden_, "/", file),
                         writer->states_.empty() ? writer->weights_.entries() : EntriesOf(spec)));
    writer->states_.push_back(std::move(states));
    writer->files_.push_back(file);
  }
  EPS_ASSIGN_OR_RETURN(writer->residuals_,
                       ResidualFilesWriter::Create(writer->hidden_, spec, chunks));
  for (const std::string& file : writer->residuals_->files()) writer->files_.push_back(file);
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(hidden_, ignored);
}

absl::Status CheckpointWriter::WriteChunk(ChunkId id, const ChunkState& state) {
  if (id.value() >= chunks_.chunks().size()) {
    return absl::DataLossError(
        absl::StrCat("export: chunk ", id.value(), " of ", chunks_.chunks().size()));
  }
  const Chunk& chunk = chunks_.chunk(id);
  const uint64_t expected = StateBytes(spec_, chunk);
  if (state.size() != expected) {
    return absl::DataLossError(absl::StrCat("export: chunk ", id.value(), " has ", state.size(),
                                            " bytes of state, expected ", expected));
  }
  std::vector<float> values;
  for (size_t field = 0; field < StateArrays(spec_, chunk); ++field) {
    for (const Segment& segment : chunk.segments) {
      const uint64_t first = field * chunk.elements + segment.offset;
      values.resize(segment.elements());
      std::memcpy(values.data(), state.data() + first * sizeof(float),
                  values.size() * sizeof(float));
      EPS_RETURN_IF_ERROR(WriteField(field, segment.tensor, segment.tensor_offset, values));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::WriteField(size_t field, TensorId tensor, uint64_t first,
                                          absl::Span<const float> values) {
  if (field > 0) return states_[field]->Write(field_entry_[tensor.value()], first, values);
  return weights_.ForEachPiece(
      tensor, first, values.size(), [&](size_t entry, uint64_t from, size_t offset, size_t count) {
        return states_[0]->Write(entry, from, values.subspan(offset, count));
      });
}

absl::Status CheckpointWriter::WriteResidual(const ResidualPlace& place,
                                             const std::string& encoded) {
  return residuals_->Write(place, encoded);
}

uint64_t CheckpointWriter::bytes() const {
  uint64_t bytes = residuals_->bytes();
  for (const auto& states : states_) bytes += states->file_bytes();
  return bytes;
}

absl::StatusOr<CheckpointManifest> CheckpointWriter::WriteManifest(const Border& border,
                                                                   const CheckpointOrigin& origin) {
  CheckpointManifest manifest;
  manifest.servers = origin.servers;
  manifest.driver = origin.driver;
  manifest.step = border.step;
  manifest.version = border.version;
  manifest.update = border.update;
  manifest.term = border.term;
  manifest.lagged_norm = border.lagged_norm;
  manifest.loss_scale = border.loss_scale;
  manifest.spec_digest = ToHex(spec_.Digest());
  manifest.numerics_version = spec_.numerics_version;
  manifest.optimizer = NameOf(spec_.optimizer.name);
  for (const std::string& name : files_) {
    EPS_ASSIGN_OR_RETURN(manifest.files[name], SumFile(absl::StrCat(hidden_, "/", name)));
  }
  EPS_RETURN_IF_ERROR(
      WriteSynced(absl::StrCat(hidden_, "/", kManifestFile), ManifestText(manifest)));
  return manifest;
}

absl::Status CheckpointWriter::Commit(const Border& border, const SmallFiles& files,
                                      const CheckpointOrigin& origin) {
  return OfCheckpointDir(WriteAll(border, files, origin));
}

absl::Status CheckpointWriter::WriteAll(const Border& border, const SmallFiles& files,
                                        const CheckpointOrigin& origin) {
  for (const auto& states : states_) EPS_RETURN_IF_ERROR(states->Finish());
  EPS_RETURN_IF_ERROR(residuals_->Finish());
  for (const auto& [name, content] : files) {
    EPS_RETURN_IF_ERROR(WriteSynced(absl::StrCat(hidden_, "/", name), content));
    files_.push_back(name);
  }
  EPS_ASSIGN_OR_RETURN(const CheckpointManifest manifest, WriteManifest(border, origin));
  EPS_RETURN_IF_ERROR(SyncPath(hidden_ + "/eps"));
  EPS_RETURN_IF_ERROR(SyncPath(hidden_));
  if (origin.confirm) EPS_RETURN_IF_ERROR(origin.confirm());
  committed_ = true;  // from now on, the temporary name may hold the older checkpoint
  EPS_RETURN_IF_ERROR(PlaceCheckpoint(root_, name_));
  return PointLatest(root_, name_, manifest);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& folder,
                                                                         bool check_sums) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader());
  reader->folder_ = folder;
  EPS_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(folder));
  EPS_RETURN_IF_ERROR(CheckFiles(folder, manifest, check_sums));
  reader->border_ = {manifest.step, manifest.version,     manifest.update,
                     manifest.term, manifest.lagged_norm, manifest.loss_scale};
  EPS_RETURN_IF_ERROR(CheckListed(folder, manifest, kSpecFile));
  const std::string spec_path = absl::StrCat(folder, "/", kSpecFile);
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(spec_path));
  absl::StatusOr<JobSpec> spec = JobSpec::Parse(text);
  if (!spec.ok()) {
    return absl::DataLossError(absl::StrCat(spec_path, ": ", spec.status().message()));
  }
  reader->spec_ = *std::move(spec);
  if (ToHex(reader->spec_.Digest()) != manifest.spec_digest) {
    return absl::DataLossError(absl::StrCat(spec_path, ": digest ", ToHex(reader->spec_.Digest()),
                                            ", the manifest has ", manifest.spec_digest));
  }
  reader->weights_ = std::make_unique<WeightLayout>(reader->spec_);
  for (const std::string& file : StateFiles(reader->spec_)) {
    EPS_RETURN_IF_ERROR(CheckListed(folder, manifest, file));
    const std::string path = absl::StrCat(folder, "/", file);
    EPS_ASSIGN_OR_RETURN(auto states, SafetensorsReader::Open(path));
    for (const SafetensorsEntry& expected :
         reader->states_.empty() ? reader->weights_->entries() : EntriesOf(reader->spec_)) {
      EPS_ASSIGN_OR_RETURN(const SafetensorsEntry* found, states->Find(expected.name));
      if (found->shape != expected.shape || found->dtype != "F32") {
        return absl::DataLossError(absl::StrCat(path, ": tensor ", expected.name,
                                                " has not the type and shape of ", spec_path));
      }
    }
    reader->states_.push_back(std::move(states));
  }
  EPS_ASSIGN_OR_RETURN(reader->residuals_, ResidualFiles::Open(folder, manifest, reader->spec_));
  return reader;
}

absl::Status CheckpointReader::CheckFits(const JobSpec& spec) const {
  if (spec.optimizer.name != spec_.optimizer.name) {
    const char* const name = NameOf(spec.optimizer.name);
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint.resume: ", folder_, " holds the state of optimizer ",
        NameOf(spec_.optimizer.name), ", and the job has ", name, "; eps checkpoint convert ",
        folder_, " --optimizer=", name, " --out=DIR converts it"));
  }
  if (spec.optimizer.plugin.name != spec_.optimizer.plugin.name) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint.resume: ", folder_, " holds the state of the plug-in updater ",
        spec_.optimizer.plugin.name, ", and the job has ", spec.optimizer.plugin.name));
  }
  bool same = spec.tensors.size() == spec_.tensors.size() && StateFiles(spec) == StateFiles(spec_);
  for (size_t i = 0; same && i < spec.tensors.size(); ++i) {
    same = spec.tensors[i].name == spec_.tensors[i].name &&
           spec.tensors[i].rank == spec_.tensors[i].rank &&
           spec.tensors[i].rows == spec_.tensors[i].rows &&
           spec.tensors[i].cols == spec_.tensors[i].cols &&
           spec.IsFrozen(TensorId(static_cast<uint32_t>(i))) ==
               spec_.IsFrozen(TensorId(static_cast<uint32_t>(i)));
  }
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.resume: ", folder_,
      " holds another model or optimizer: ", FirstDifference(spec_.ToText(), spec.ToText())));
}

absl::Status CheckpointReader::Read(size_t field, TensorId tensor, uint64_t first, size_t count,
                                    float* out) const {
  EPS_CHECK(field < states_.size() && tensor.value() < spec_.tensors.size());
  if (field > 0) {
    EPS_ASSIGN_OR_RETURN(const SafetensorsEntry* entry,
                         states_[field]->Find(spec_.tensors[tensor.value()].name));
    return states_[field]->Read(*entry, first, count, out);
  }
  return weights_->ForEachPiece(
      tensor, first, count,
      [&](size_t i, uint64_t from, size_t offset, size_t piece) -> absl::Status {
        EPS_ASSIGN_OR_RETURN(const SafetensorsEntry* entry,
                             states_[0]->Find(weights_->entries()[i].name));
        return states_[0]->Read(*entry, from, piece, out + offset);
      });
}

absl::StatusOr<ChunkState> CheckpointReader::ReadChunk(const JobSpec& spec,
                                                       const Chunk& chunk) const {
  ChunkState state(StateBytes(spec, chunk), '\0');
  std::vector<float> values;
  for (size_t field = 0; field < StateArrays(spec, chunk); ++field) {
    for (const Segment& segment : chunk.segments) {
      values.resize(segment.elements());
      EPS_RETURN_IF_ERROR(
          Read(field, segment.tensor, segment.tensor_offset, values.size(), values.data()));
      const uint64_t first = field * chunk.elements + segment.offset;
      std::memcpy(&state[first * sizeof(float)], values.data(), values.size() * sizeof(float));
    }
  }
  return state;
}

}  // namespace eps
