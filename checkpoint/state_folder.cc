#include "checkpoint/state_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/files/files.h"
#include "base/job/job_spec.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "storage/cuts/common_cut.h"
#include "storage/cuts/cut_reader.h"
#include "storage/cuts/job_folders.h"
#include "storage/cuts/residual_budget.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kServerPrefix = "server-";

std::string Name(JobId job) { return absl::StrFormat("%016x", job.value()); }

bool IsServerFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path / "catalogue", ignored);
}

// Returns the folders server-K that have a catalogue, by number; or `path` if it is a server's own.
std::map<uint32_t, std::string> ServerFolders(const std::string& path) {
  std::map<uint32_t, std::string> folders;
  if (IsServerFolder(path)) return {{0, path}};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    uint32_t number = 0;
    if (absl::StartsWith(name, kServerPrefix) &&
        absl::SimpleAtoi(name.substr(kServerPrefix.size()), &number) &&
        name == absl::StrCat(kServerPrefix, number) && IsServerFolder(entry.path())) {
      folders[number] = absl::StrCat(path, "/", name);
    }
  }
  return folders;
}

// Returns the bytes of all files below a folder.
uint64_t BytesBelow(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, error)) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
  }
  return bytes;
}

class CutState final : public JobState {
 public:
  explicit CutState(JobStateHead head) : JobState(std::move(head)) {}

  // Opens the next shard's share of the cut.
  absl::Status Add(const DurableStorage& storage, const CatalogueJob& job,
                   const CatalogueCut& cut) {
    const ShardId shard(job.shard);
    std::vector<ChunkId> owned = ChunksOf(shard, job.shards);
    for (const ChunkId chunk : owned) shard_of_[chunk] = readers_.size();
    const uint64_t residual_bytes = ResidualBudget(head().spec, chunks(), owned, /*durable=*/true);
    EPS_ASSIGN_OR_RETURN(auto reader, storage.OpenCut(head().spec, chunks(), std::move(owned),
                                                      residual_bytes, job, cut));
    readers_.push_back(std::move(reader));
    return absl::OkStatus();
  }

  absl::StatusOr<ChunkState> ReadChunk(ChunkId chunk) const override {
    EPS_ASSIGN_OR_RETURN(const Bytes state, readers_[shard_of_.at(chunk)]->ReadChunk(chunk));
    return ChunkState(state.view());
  }

  // Reads the residuals of one shard at a time.
  absl::StatusOr<std::vector<CutResidual>> ReadResiduals(
      const std::vector<ChunkId>& chunks) const override {
    const std::set<ChunkId> wanted(chunks.begin(), chunks.end());
    std::set<size_t> shards;
    for (const ChunkId chunk : wanted) shards.insert(shard_of_.at(chunk));
    std::vector<CutResidual> residuals;
    for (const size_t shard : shards) {
      EPS_ASSIGN_OR_RETURN(std::vector<CutResidual> all, readers_[shard]->ReadResiduals());
      for (CutResidual& residual : all) {
        if (wanted.count(residual.chunk) != 0) residuals.push_back(std::move(residual));
      }
    }
    return residuals;
  }

 private:
  std::vector<std::unique_ptr<CutReader>> readers_;  // by shard
  std::map<ChunkId, size_t> shard_of_;
};

}  // namespace

bool IsStateFolder(const std::string& path) { return !ServerFolders(path).empty(); }

absl::StatusOr<std::unique_ptr<StateFolder>> StateFolder::Open(const std::string& path) {
  std::unique_ptr<StateFolder> state(new StateFolder(path));
  for (const auto& [number, folder] : ServerFolders(path)) {
    EPS_ASSIGN_OR_RETURN(auto storage, DurableStorage::OpenForReading(folder));
    state->servers_.push_back({folder, std::move(storage)});
  }
  if (!state->servers_.empty()) return state;
  const std::string below = absl::StrCat(path, "/state");
  return absl::NotFoundError(absl::StrCat(
      path,
      " holds neither a catalogue nor a folder server-0 with one: not the state of servers "
      "(storage.path)",
      IsStateFolder(below) ? absl::StrCat("; ", below, " is") : ""));
}

absl::StatusOr<std::vector<JobId>> StateFolder::Jobs() const {
  std::set<JobId> ids;
  for (const Server& server : servers_) {
    EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueJob> jobs, server.storage->catalogue().Jobs());
    for (const CatalogueJob& job : jobs) ids.insert(job.id);
  }
  return std::vector<JobId>(ids.begin(), ids.end());
}

absl::StatusOr<JobId> StateFolder::OnlyJob() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<JobId> jobs, Jobs());
  if (jobs.empty()) return absl::NotFoundError(absl::StrCat(path_, " holds no job"));
  if (jobs.size() == 1) return jobs.front();
  const auto name = [](std::string* out, JobId job) { out->append(Name(job)); };
  return absl::InvalidArgumentError(absl::StrCat(path_, " holds ", jobs.size(), " jobs (",
                                                 absl::StrJoin(jobs, ", ", name),
                                                 "): choose one with --job"));
}

absl::StatusOr<std::vector<StateFolder::Part>> StateFolder::PartsOf(JobId job) const {
  std::vector<Part> parts;
  for (const Server& server : servers_) {
    const Catalogue& catalogue = server.storage->catalogue();
    absl::StatusOr<CatalogueJob> found = catalogue.FindJob(job);
    if (absl::IsNotFound(found.status())) continue;
    EPS_RETURN_IF_ERROR(found.status());
    EPS_ASSIGN_OR_RETURN(std::vector<CatalogueCut> cuts, catalogue.Cuts(job));
    parts.push_back({&server, *std::move(found), std::move(cuts)});
  }
  return parts;
}

absl::StatusOr<std::vector<StateFolder::Part>> StateFolder::WholeJob(JobId job) const {
  EPS_ASSIGN_OR_RETURN(std::vector<Part> parts, PartsOf(job));
  if (parts.empty()) {
    return absl::NotFoundError(absl::StrCat(path_, " holds no job ", Name(job)));
  }
  const uint32_t shards = parts.front().job.shards;
  for (const Part& part : parts) {
    if (part.job.shards == shards && part.job.spec_text == parts.front().job.spec_text) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", Name(job), ": ", parts.front().server->folder, " is of ", shards, " servers, and ",
        part.server->folder, " of ", part.job.shards, ": they do not belong together"));
  }
  std::vector<Part> by_shard(shards);
  for (Part& part : parts) {
    Part& place = by_shard[part.job.shard];
    if (place.server != nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", Name(job), ": ", place.server->folder, " and ", part.server->folder,
                       " are both shard ", part.job.shard, " of ", shards));
    }
    place = std::move(part);
  }
  for (uint32_t shard = 0; shard < shards; ++shard) {
    if (by_shard[shard].server != nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": shard ", shard, " of ", shards, " of job ", Name(job),
                     " is not here: bring back the data directory of that server"));
  }
  return by_shard;
}

absl::StatusOr<CutId> StateFolder::CommonCut(const std::vector<Part>& shards) {
  std::vector<HeldCuts> held;  // by shard, as `shards` is
  for (const Part& part : shards) {
    HeldCuts& shard = held.emplace_back();
    shard.holder = absl::StrCat("shard ", part.job.shard, " at ", part.server->folder);
    for (const CatalogueCut& cut : part.cuts) {
      shard.cuts.push_back(cut.border.id);
      shard.opened |= cut.border.opened;
    }
  }
  EPS_ASSIGN_OR_RETURN(const std::optional<CutId> common,
                       HighestCommonCut(held, /*watermark=*/std::nullopt));
  if (common.has_value()) return *common;
  return absl::FailedPreconditionError(
      absl::StrCat("job ", Name(shards.front().job.id), " has no cut yet: it had not begun"));
}

absl::StatusOr<std::unique_ptr<JobState>> StateFolder::OpenCut(std::optional<JobId> job) const {
  if (!job.has_value()) {
    EPS_ASSIGN_OR_RETURN(job, OnlyJob());
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<Part> shards, WholeJob(*job));
  EPS_ASSIGN_OR_RETURN(const CutId common, CommonCut(shards));
  const auto cut_of = [&common](const Part& part) -> const CatalogueCut& {
    return *std::find_if(part.cuts.begin(), part.cuts.end(),
                         [&](const CatalogueCut& cut) { return cut.border.id == common; });
  };
  const Part& lead = shards.front();
  JobStateHead head;
  EPS_ASSIGN_OR_RETURN(head.spec, JobSpec::Parse(lead.job.spec_text));
  head.border = cut_of(lead).border;
  head.servers = lead.job.shards;
  for (const Part& part : shards) head.promised = std::max(head.promised, part.job.promised);
  EPS_ASSIGN_OR_RETURN(head.records, lead.server->storage->catalogue().Records(*job, cut_of(lead)));
  const absl::StatusOr<std::string> config = ReadTextFile(JobConfigFile(path_, *job));
  if (config.ok()) head.config = *config;
  auto state = std::make_unique<CutState>(std::move(head));
  for (const Part& part : shards) {
    const CutBorder& border = cut_of(part).border;
    const CutBorder& expected = state->head().border;
    if (border.version != expected.version || border.update != expected.update) {
      return absl::DataLossError(absl::StrCat(part.server->folder, ": the cut of ", CutName(common),
                                              " is at version ", border.version.value(),
                                              ", that of ", lead.server->folder, " at version ",
                                              expected.version.value()));
    }
    EPS_RETURN_IF_ERROR(state->Add(*part.server->storage, part.job, cut_of(part)));
  }
  return std::unique_ptr<JobState>(std::move(state));
}

absl::StatusOr<std::optional<JobId>> StateFolder::JobToReopen() const {
  std::set<JobId> served;
  bool has_cut = false;
  for (const Server& server : servers_) {
    const Catalogue& catalogue = server.storage->catalogue();
    EPS_ASSIGN_OR_RETURN(const std::optional<ServedJob> job, catalogue.Served());
    if (!job.has_value()) continue;
    served.insert(job->id);
    EPS_ASSIGN_OR_RETURN(const std::vector<CatalogueCut> cuts, catalogue.Cuts(job->id));
    has_cut = has_cut || !cuts.empty();
  }
  if (served.size() != 1 || !has_cut) return std::optional<JobId>();
  return std::optional<JobId>(*served.begin());
}

absl::StatusOr<std::vector<StateFolder::Leftover>> StateFolder::Leftovers(
    const std::vector<JobId>& jobs) const {
  std::vector<Leftover> leftovers;
  for (const Server& server : servers_) {
    EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, server.storage->JobFolders());
    for (const JobFolder& folder : folders) {
      const absl::Status known = server.storage->catalogue().FindJob(folder.job).status();
      if (!absl::IsNotFound(known) && !folder.is_new) continue;
      leftovers.push_back({folder.job, folder.path, folder.bytes});
    }
  }
  std::set<std::string> configs;
  for (const JobId job : jobs) configs.insert(JobConfigFile(path_, job));
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    uint64_t id = 0;
    std::error_code ignored;
    const absl::string_view digits = absl::StripSuffix(absl::StripPrefix(name, "job-"), ".yaml");
    if (!absl::SimpleHexAtoi(digits, &id)) continue;
    const std::string path = JobConfigFile(path_, JobId(id));
    if (path != absl::StrCat(path_, "/", name) || configs.count(path) != 0) continue;
    leftovers.push_back({JobId(id), path, entry.file_size(ignored)});
  }
  return leftovers;
}

std::vector<StateFolder::Lost> StateFolder::AllLost() const {
  std::set<std::string> folders = {path_};  // path_ may be a server's own
  for (const Server& server : servers_) {
    const std::vector<std::string> own = server.storage->Directories();
    folders.insert(own.begin(), own.end());
  }
  std::set<std::string> paths;
  for (const std::string& folder : folders) {
    std::error_code error;  // one of a mounted disk may be unreadable, and then is none of ours
    const fs::path lost = absl::StrCat(folder, "/", kLostAndFound);
    for (const fs::directory_entry& entry : fs::directory_iterator(lost, error)) {
      paths.insert(entry.path().string());
    }
  }
  std::vector<Lost> all;
  for (const std::string& path : paths) all.push_back({path, BytesBelow(path)});
  return all;
}

absl::StatusOr<std::string> StateFolder::ShowPart(const Part& part) {
  EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, part.server->storage->JobFolders());
  EPS_ASSIGN_OR_RETURN(const std::optional<ServedJob> served,
                       part.server->storage->catalogue().Served());
  uint64_t bytes = 0;
  for (const JobFolder& folder : folders) bytes += folder.job == part.job.id ? folder.bytes : 0;
  const auto name = [](std::string* out, const CatalogueCut& cut) {
    out->append(CutName(cut.border.id));
  };
  const uint32_t count = part.job.placement.drives;
  const std::string drives =
      count == 0 ? "" : absl::StrCat(" on ", count, count == 1 ? " drive" : " drives");
  const bool is_served = served.has_value() && served->id == part.job.id;
  return absl::StrCat("  ", part.server->folder, ": shard ", part.job.shard, " of ",
                      part.job.shards, ", term ", part.job.promised.value(),
                      ", cuts: ", part.cuts.empty() ? "none" : absl::StrJoin(part.cuts, ", ", name),
                      ", ", FormatCount(bytes), " bytes", drives, is_served ? ", served" : "",
                      "\n");
}

absl::StatusOr<std::string> StateFolder::ShowJob(JobId job) const {
  EPS_ASSIGN_OR_RETURN(const std::vector<Part> parts, PartsOf(job));
  const CatalogueJob& first = parts.front().job;
  const absl::StatusOr<JobSpec> spec = JobSpec::Parse(first.spec_text);
  const std::string model =
      !spec.ok() ? std::string(spec.status().message())
                 : absl::StrCat(spec->name.empty() ? "" : absl::StrCat(spec->name, ", "),
                                NameOf(spec->model.type), ", ", FormatCount(spec->total_elements()),
                                " parameters");
  const absl::StatusOr<std::vector<Part>> whole = WholeJob(job);
  const absl::StatusOr<CutId> common = whole.ok() ? CommonCut(*whole) : whole.status();
  std::string text =
      absl::StrCat("job ", Name(job), ", ", model, ", ", first.shards,
                   first.shards == 1 ? " server, " : " servers, ",
                   common.ok() ? absl::StrCat("youngest common cut: ", CutName(*common))
                               : std::string(common.status().message()),
                   "\n");
  for (const Part& part : parts) {
    EPS_ASSIGN_OR_RETURN(const std::string line, ShowPart(part));
    text.append(line);
  }
  return text;
}

absl::StatusOr<std::string> StateFolder::Table() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<JobId> jobs, Jobs());
  std::string table = jobs.empty() ? absl::StrCat("no jobs in ", path_, "\n") : "";
  for (const JobId job : jobs) {
    EPS_ASSIGN_OR_RETURN(const std::string text, ShowJob(job));
    table.append(text);
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<Leftover> leftovers, Leftovers(jobs));
  for (const Leftover& leftover : leftovers) {
    absl::StrAppend(&table, "nothing refers to ", leftover.path, ", ", FormatCount(leftover.bytes),
                    " bytes (eps state rm ", path_, " ", Name(leftover.job), ")\n");
  }
  for (const Lost& lost : AllLost()) {
    absl::StrAppend(&table, "set aside: ", lost.path, ", ", FormatCount(lost.bytes),
                    " bytes (eps state rm ", path_, " ", lost.path, ")\n");
  }
  return table;
}

absl::StatusOr<uint64_t> StateFolder::Remove(JobId job, RemoveServed served) {
  std::vector<Server*> servers;  // that have something of it
  uint64_t bytes = 0;
  for (Server& server : servers_) {
    EPS_ASSIGN_OR_RETURN(const std::vector<JobFolder> folders, server.storage->JobFolders());
    // A damaged record is one, too.
    bool found = !absl::IsNotFound(server.storage->catalogue().FindJob(job).status());
    for (const JobFolder& folder : folders) {
      if (folder.job != job) continue;
      bytes += folder.bytes;
      found = true;
    }
    if (found) servers.push_back(&server);
    EPS_ASSIGN_OR_RETURN(const std::optional<ServedJob> opened,
                         server.storage->catalogue().Served());
    if (served == RemoveServed::kRefuse && opened.has_value() && opened->id == job) {
      return absl::FailedPreconditionError(absl::StrCat(
          server.folder, ": job ", Name(job),
          " is the one that the server opens again when it is started here (storage.reopen); "
          "--force removes it all the same"));
    }
  }
  const std::string config = JobConfigFile(path_, job);
  std::error_code error;
  if (servers.empty() && !fs::exists(config, error)) {
    return absl::NotFoundError(absl::StrCat(path_, " holds no job ", Name(job)));
  }
  for (Server* const server : servers) EPS_RETURN_IF_ERROR(server->storage->RemoveJob(job));
  fs::remove(config, error);
  if (error) return absl::InternalError(absl::StrCat(config, ": ", error.message()));
  return bytes;
}

absl::StatusOr<uint64_t> StateFolder::RemoveLost(const std::string& path) {
  for (const Lost& lost : AllLost()) {
    if (fs::path(lost.path).lexically_normal() != fs::path(path).lexically_normal()) continue;
    std::error_code error;
    fs::remove_all(lost.path, error);
    if (!error) return lost.bytes;
    return absl::InternalError(absl::StrCat("cannot remove ", lost.path, ": ", error.message()));
  }
  return absl::NotFoundError(
      absl::StrCat(path, " is not in a lost+found of ", path_, " (eps state ls ", path_, ")"));
}

}  // namespace eps
