// Implements StateFolder::Verify.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/state_folder.h"
#include "storage/cuts/common_cut.h"
#include "storage/cuts/cut_reader.h"
#include "storage/cuts/residual_budget.h"

namespace eps {
namespace {

// Reads one shard's share of a cut, and adds a line for it and for each damaged place.
class CutCheck {
 public:
  explicit CutCheck(std::string* report) : report_(*report) {}

  int damaged() const { return damaged_; }

  void Damaged(const absl::Status& status) {
    absl::StrAppend(&report_, "damaged: ", status.message(), "\n");
    ++damaged_;
  }

  // Every chunk is read even if an earlier one is damaged.
  void Read(const std::string& name, const std::vector<ChunkId>& owned, CutReader* reader) {
    const int before = damaged_;
    uint64_t bytes = 0;
    for (const ChunkId chunk : owned) {
      const absl::StatusOr<Bytes> state = reader->ReadChunk(chunk);
      if (!state.ok()) {
        Damaged(state.status());
        continue;
      }
      bytes += state->size();
    }
    const auto residuals = reader->ReadResiduals();
    if (!residuals.ok()) Damaged(residuals.status());
    if (damaged_ > before) return;
    for (const CutResidual& residual : *residuals) bytes += residual.bytes.size();
    absl::StrAppend(&report_, "ok: ", name, ", ", owned.size(), " chunks, ",
                    FormatBytes(static_cast<double>(bytes)), "\n");
  }

 private:
  std::string& report_;
  int damaged_ = 0;
};

}  // namespace

absl::Status StateFolder::Verify(std::string* report) const {
  CutCheck check(report);
  EPS_ASSIGN_OR_RETURN(const std::vector<JobId> jobs, Jobs());
  for (const JobId job : jobs) {
    EPS_ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(job));
    for (const Part& part : parts) {
      const absl::StatusOr<JobSpec> spec = JobSpec::Parse(part.job.spec_text);
      if (!spec.ok()) {
        check.Damaged(absl::DataLossError(
            absl::StrCat(part.server->folder, "/catalogue: ", spec.status().message())));
        continue;
      }
      const ChunkMap chunks = ChunkMap::Build(*spec);
      const std::vector<ShardId> placement = chunks.Place(part.job.shards);
      std::vector<ChunkId> owned;
      for (const Chunk& chunk : chunks.chunks()) {
        if (placement[chunk.id.value()] == ShardId(part.job.shard)) owned.push_back(chunk.id);
      }
      const uint64_t residuals = ResidualBudget(*spec, chunks, owned, /*durable=*/true);
      for (const CatalogueCut& cut : part.cuts) {
        const std::string name = absl::StrFormat("%s: job %016x, cut of %s", part.server->folder,
                                                 job.value(), CutName(cut.border.id));
        const auto reader =
            part.server->storage->OpenCut(*spec, chunks, owned, residuals, part.job, cut);
        if (reader.ok()) {
          check.Read(name, owned, reader->get());
        } else {
          check.Damaged(absl::DataLossError(absl::StrCat(name, ": ", reader.status().message())));
        }
      }
    }
  }
  if (check.damaged() == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path_, ": ", check.damaged(), check.damaged() == 1 ? " damaged place" : " damaged places"));
}

}  // namespace eps
