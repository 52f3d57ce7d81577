#include "checkpoint/job_state.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/config/config.h"
#include "base/config/model_folder.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/checkpoint_residuals.h"
#include "checkpoint/trainer_state.h"
#include "eps/v1/types.pb.h"

namespace eps {
namespace {

class CheckpointState final : public JobState {
 public:
  CheckpointState(JobStateHead head, std::unique_ptr<CheckpointReader> reader)
      : JobState(std::move(head)), reader_(std::move(reader)) {}

  absl::Status OpenResiduals() {
    EPS_ASSIGN_OR_RETURN(residuals_,
                         ResidualImport::Create(reader_->residuals_or_null(), reader_->spec(),
                                                head().spec, chunks()));
    return absl::OkStatus();
  }

  absl::StatusOr<ChunkState> ReadChunk(ChunkId chunk) const override {
    return reader_->ReadChunk(head().spec, chunks().chunk(chunk));
  }
  absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>& chunks) const override {
    std::vector<CutResidual> residuals;
    for (const ChunkId chunk : chunks) {
      for (const ResidualPlace& place : residuals_->PlacesOf(chunk)) {
        EPS_ASSIGN_OR_RETURN(const std::string encoded, residuals_->Read(place));
        residuals.push_back({place.chunk, place.use, place.part, Bytes::CopyOf(encoded)});
      }
    }
    return residuals;
  }
  std::string note() const override { return residuals_->note(); }

 private:
  const std::unique_ptr<CheckpointReader> reader_;
  std::unique_ptr<ResidualImport> residuals_;
};

// Returns a small file of a checkpoint; empty if the manifest does not list it.
absl::StatusOr<std::string> SmallFile(const std::string& folder, const CheckpointManifest& manifest,
                                      const char* name) {
  if (manifest.files.count(name) == 0) return std::string();
  return ReadTextFile(absl::StrCat(folder, "/", name));
}

// The files of the folder of the job's model, as far as it still exists.
absl::StatusOr<SmallFiles> FilesOfItsModel(const JobStateHead& head) {
  Config config;
  if (!head.config.empty()) EPS_RETURN_IF_ERROR(config.MergeYaml(head.config, "the job's config"));
  const std::string& path = config.model.path;
  return path.empty() ? SmallFiles() : FilesOfModel(FolderOfModel(path));
}

// trainer_state.json as the run would have written it, from the records of its steps.
absl::StatusOr<std::string> TrainerStateOf(const JobStateHead& head) {
  TrainerHistory history;
  for (const std::string& text : head.records) {
    v1::StepRecord record;
    if (!record.ParseFromString(text)) {
      return absl::DataLossError("the record of a step is damaged");
    }
    history.Add(record);
  }
  Config config;
  if (!head.config.empty()) EPS_RETURN_IF_ERROR(config.MergeYaml(head.config, "the job's config"));
  return history.Text(head.spec, head.border.id.step.value(), config.training.eval_steps);
}

}  // namespace

std::vector<ChunkId> JobState::ChunksOf(ShardId shard, uint32_t servers) const {
  const std::vector<ShardId> placement = chunks_.Place(servers);
  std::vector<ChunkId> owned;
  for (const Chunk& chunk : chunks_.chunks()) {
    if (placement[chunk.id.value()] == shard) owned.push_back(chunk.id);
  }
  return owned;
}

std::string JobConfigFile(const std::string& state_folder, JobId job) {
  return absl::StrFormat("%s/job-%016x.yaml", state_folder, job.value());
}

std::string JoinRecords(const std::vector<std::string>& records) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "lengths are written as they lie");
  std::string text;
  for (const std::string& record : records) {
    const auto size = static_cast<uint32_t>(record.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text.append(record);
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> SplitRecords(absl::string_view text) {
  std::vector<std::string> records;
  for (size_t at = 0; at < text.size();) {
    uint32_t size = 0;
    const size_t left = text.size() - at;
    if (left >= sizeof(size)) std::memcpy(&size, text.data() + at, sizeof(size));
    v1::StepRecord record;
    if (left < sizeof(size) || left - sizeof(size) < size ||
        !record.ParseFromArray(text.data() + at + sizeof(size), static_cast<int>(size))) {
      return absl::DataLossError(absl::StrCat("no record of a step at offset ", at));
    }
    records.emplace_back(text.substr(at + sizeof(size), size));
    at += sizeof(size) + size;
  }
  return records;
}

absl::StatusOr<std::unique_ptr<JobState>> OpenCheckpointState(const std::string& folder) {
  EPS_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(folder));
  EPS_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(folder));
  JobStateHead head;
  head.spec = reader->spec();
  const Border& border = reader->border();
  head.border.id = {Step(border.step), Term(border.term)};
  head.border.version = Version(border.version);
  head.border.update = border.update;
  head.border.lagged_norm = border.lagged_norm;
  head.border.loss_scale = border.loss_scale;
  head.promised = Term(border.term);
  head.servers = manifest.servers;
  EPS_ASSIGN_OR_RETURN(head.config, SmallFile(folder, manifest, kConfigFile));
  EPS_ASSIGN_OR_RETURN(const std::string records, SmallFile(folder, manifest, kRecordsFile));
  absl::StatusOr<std::vector<std::string>> split = SplitRecords(records);
  if (!split.ok()) {
    return absl::DataLossError(
        absl::StrCat(folder, "/", kRecordsFile, ": ", split.status().message()));
  }
  head.records = *std::move(split);
  auto state = std::make_unique<CheckpointState>(std::move(head), std::move(reader));
  EPS_RETURN_IF_ERROR(state->OpenResiduals());
  return std::unique_ptr<JobState>(std::move(state));
}

absl::StatusOr<SmallFiles> FilesOf(const JobStateHead& head) {
  EPS_ASSIGN_OR_RETURN(const SmallFiles of_model, FilesOfItsModel(head));
  SmallFiles files = FilesOfJob(head.spec, of_model);
  EPS_ASSIGN_OR_RETURN(files["trainer_state.json"], TrainerStateOf(head));
  files[kRecordsFile] = JoinRecords(head.records);
  if (!head.config.empty()) files[kConfigFile] = head.config;
  return files;
}

absl::StatusOr<std::string> SaveCheckpoint(const JobState& state, const std::string& root) {
  const JobStateHead& head = state.head();
  const uint64_t step = head.border.id.step.value();
  EPS_ASSIGN_OR_RETURN(const auto writer,
                       CheckpointWriter::Create(root, step, head.spec, state.chunks()));
  const uint32_t servers = std::max<uint32_t>(head.servers, 1);
  for (uint32_t server = 0; server < servers; ++server) {
    const std::vector<ChunkId> owned = state.ChunksOf(ShardId(server), servers);
    for (const ChunkId chunk : owned) {
      EPS_ASSIGN_OR_RETURN(const ChunkState content, state.ReadChunk(chunk));
      EPS_RETURN_IF_ERROR(writer->WriteChunk(chunk, content));
    }
    EPS_ASSIGN_OR_RETURN(const std::vector<CutResidual> residuals, state.ReadResiduals(owned));
    for (const CutResidual& residual : residuals) {
      EPS_RETURN_IF_ERROR(writer->WriteResidual({residual.chunk, residual.use, residual.part},
                                                std::string(residual.bytes.view())));
    }
  }
  EPS_ASSIGN_OR_RETURN(const SmallFiles files, FilesOf(head));
  const Border border = {step,
                         head.border.version.value(),
                         head.border.update,
                         head.border.id.term.value(),
                         head.border.lagged_norm,
                         head.border.loss_scale};
  EPS_RETURN_IF_ERROR(writer->Commit(border, files, {head.servers}));
  return writer->folder();
}

}  // namespace eps
