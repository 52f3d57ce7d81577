#include "cli/launch/state/state_home.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/optimizers.h"
#include "base/machine/disk_room.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/guard/checkpoint_room.h"
#include "compression/codec_table.h"
#include "storage/cuts/extents/extents.h"
#include "storage/cuts/residual_budget.h"

namespace eps {
namespace {

constexpr uint64_t kSlots = 2;
constexpr uint64_t kCatalogue = uint64_t{16} << 20;  // of one server: jobs, cuts and records
constexpr uint64_t kStagingShare = 8;                // of a memory limit

std::string Show(uint64_t bytes) { return FormatBytes(static_cast<double>(bytes)); }

absl::StatusOr<std::vector<ExtentLayout>> LayoutsOf(const JobSpec& spec, const ChunkMap& chunks,
                                                    uint32_t servers) {
  EPS_RETURN_IF_ERROR(CodecTable::Build(spec, chunks).status());
  const std::vector<ShardId> placement = chunks.Place(servers);
  std::vector<ExtentLayout> layouts;
  for (uint32_t server = 0; server < servers; ++server) {
    std::vector<ChunkId> owned;
    for (const Chunk& chunk : chunks.chunks()) {
      if (placement[chunk.id.value()] == ShardId(server)) owned.push_back(chunk.id);
    }
    if (owned.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("servers.addresses (--servers): ", servers,
                                                     " servers are too many for ",
                                                     chunks.chunks().size(), " chunks"));
    }
    const uint64_t residuals = ResidualBudget(spec, chunks, owned, /*durable=*/true);
    layouts.emplace_back(chunks, owned, 1 + StateFields(spec.optimizer).size(), residuals,
                         spec.training.parts);
  }
  return layouts;
}

uint64_t RoomOf(const std::vector<ExtentLayout>& layouts) {
  uint64_t bytes = 0;
  for (const ExtentLayout& layout : layouts) bytes += kSlots * layout.slot_bytes() + kCatalogue;
  return bytes;
}

bool HasResiduals(const JobSpec& spec, const ChunkMap& chunks) {
  std::vector<ChunkId> all;
  for (const Chunk& chunk : chunks.chunks()) all.push_back(chunk.id);
  return ResidualBudget(spec, chunks, all, /*durable=*/true) > 0;
}

// Sets memory for staging that lets the run start wherever it would start without cuts.
void ChooseStaging(const std::vector<ExtentLayout>& layouts, Config* config) {
  uint64_t largest = 0;
  for (const ExtentLayout& layout : layouts) {
    largest = std::max(largest, layout.largest_area_bytes());
  }
  uint64_t* const staging = &config->storage.staging;
  const uint64_t limit = config->servers.memory_limit;
  if (limit > 0) *staging = std::min(*staging, limit / kStagingShare);
  *staging = std::max(*staging, largest);
}

}  // namespace

absl::StatusOr<uint64_t> StateRoom(const JobSpec& spec, uint32_t servers) {
  EPS_ASSIGN_OR_RETURN(const std::vector<ExtentLayout> layouts,
                       LayoutsOf(spec, ChunkMap::Build(spec), servers));
  return RoomOf(layouts);
}

absl::Status CheckPlace(const StorageConfig& storage) {
  if (storage.dram > 0 && storage.tier() == "dram") {
    return absl::InvalidArgumentError(
        "storage.dram keeps a part of the state in memory, and storage.kind=dram all of it; leave "
        "storage.dram out, or set storage.kind=nvme or csd");
  }
  if (storage.drives.empty() || !storage.path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "storage.drives needs storage.path, a folder for the catalogue of what is on the drives");
}

absl::StatusOr<std::string> ChooseState(const JobSpec& spec, uint32_t servers, Config* config) {
  StorageConfig* const storage = &config->storage;
  EPS_RETURN_IF_ERROR(CheckPlace(*storage));
  if (storage->kind != "auto" || !storage->path.empty()) return std::string();
  storage->kind = "dram";
  const std::string& out = config->checkpoint.dir;
  if (out.empty()) return std::string();
  const ChunkMap chunks = ChunkMap::Build(spec);
  const std::string folder = out + "/state";
  EPS_ASSIGN_OR_RETURN(const std::vector<ExtentLayout> layouts, LayoutsOf(spec, chunks, servers));
  EPS_ASSIGN_OR_RETURN(const uint64_t checkpoint, CheckpointBytes(spec, chunks));
  EPS_ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(folder));
  const uint64_t room = RoomOf(layouts);
  if (spec.codecs.residual_home == ResidualHome::kWorker && HasResiduals(spec, chunks)) {
    return std::string(
        "state: in memory alone, so a killed server ends the run: with "
        "quantization.residual_home=worker, cuts send all residuals in every step (storage.path "
        "asks for them)\n");
  }
  if (free + OccupiedBytes(folder) < room + checkpoint) {
    return absl::StrCat("state: in memory alone, so a killed server ends the run: cuts in ", folder,
                        " take ", Show(room), " beside a checkpoint of ", Show(checkpoint),
                        ", and ", Show(free), " are free (storage.path names another disk)\n");
  }
  storage->path = folder;
  storage->chosen = true;
  ChooseStaging(layouts, config);
  return absl::StrCat("state: cuts in ", folder,
                      " let the run survive killed processes; they take ", Show(room),
                      " of disk until the run ends (--storage.kind=dram turns them off)\n");
}

absl::Status RemoveChosenState(const Config& config) {
  if (!config.storage.chosen) return absl::OkStatus();
  std::error_code error;
  std::filesystem::remove_all(config.storage.path, error);
  if (!error) return absl::OkStatus();
  return IoError(absl::StrCat("cannot remove ", config.storage.path, ": ", error.message()));
}

}  // namespace eps
