#include "cli/driver/save/running_save.h"

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/job/job_spec.h"
#include "base/job/layout/chunk_map.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/guard/checkpoint_room.h"
#include "checkpoint/job_state.h"
#include "cli/driver/progress.h"
#include "cli/driver/save/border_export.h"
#include "cli/driver/save/lapsing_gate.h"
#include "cli/driver/step_watch.h"
#include "eps/v1/control.pb.h"
#include "wire/control_client.h"
#include "wire/job_state_names.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::seconds kConnectTimeout{30};
constexpr std::chrono::seconds kStatusTimeout{10};
constexpr std::chrono::seconds kSilence{30};         // between two lines about the wait
constexpr std::chrono::seconds kRecordsTimeout{60};  // for the next record

// A job that runs, and the connection to its servers.
struct RunningJob {
  std::unique_ptr<ControlClient> client;
  JobStateHead head;
};

absl::StatusOr<RunningJob> Find(const RunningSave& save) {
  RunningJob job;
  const auto deadline = Clock::now() + kConnectTimeout;
  EPS_ASSIGN_OR_RETURN(job.client, ControlClient::Connect({save.server}, deadline));
  EPS_ASSIGN_OR_RETURN(v1::GetJobReply found, job.client->FindJob());
  const std::vector<std::string> servers(found.servers().begin(), found.servers().end());
  // Only the lead knows the configuration.
  EPS_ASSIGN_OR_RETURN(job.client, ControlClient::Connect(servers, deadline));
  EPS_ASSIGN_OR_RETURN(found, job.client->FindJob());
  if (save.job.has_value() && JobId(found.job_id()) != *save.job) {
    return absl::NotFoundError(absl::StrFormat("%s runs job %016x, not %016x (--job)", save.server,
                                               found.job_id(), save.job->value()));
  }
  EPS_ASSIGN_OR_RETURN(job.head.spec, JobSpec::Parse(found.spec_text()));
  job.head.servers = static_cast<uint32_t>(servers.size());
  job.head.config = found.config();
  return job;
}

// Returns the holder of this process's gate.
std::string NewHolder() {
  std::random_device random;
  return absl::StrFormat("%s%08x%08x", kSaveHolder, random(), random());
}

absl::Status CheckInterrupted(const RunningSave& save) {
  if (save.is_interrupted == nullptr || !save.is_interrupted()) return absl::OkStatus();
  return absl::CancelledError("interrupted; no checkpoint was written");
}

// Returns the open step; the one after the last if the job is done. Returns an error if the job
// has no state to save.
absl::StatusOr<uint64_t> OpenStep(ControlClient* client) {
  EPS_ASSIGN_OR_RETURN(const v1::StatusReply status, client->GetStatus(0, kStatusTimeout));
  switch (status.state()) {
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_DONE:
      return status.step();
    case v1::JOB_STATE_FAILED:
      return absl::FailedPreconditionError(absl::StrCat("the job failed: ", status.failure()));
    default:
      return absl::UnavailableError(absl::StrCat("the job is ", JobStateName(status.state()),
                                                 " and has no state to save yet; try again later"));
  }
}

// Waits until the servers stand at the border of `step`.
absl::Status AwaitBorder(const RunningSave& save, uint64_t step, ControlClient* client) {
  const auto deadline = Clock::now() + save.patience;
  auto say = Clock::now() + kSilence;
  while (true) {
    EPS_ASSIGN_OR_RETURN(const uint64_t open, OpenStep(client));
    if (open > step) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(CheckInterrupted(save));
    if (Clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "step %d did not end within %d s (--patience); eps status --servers=%s says what it "
          "waits for",
          step, save.patience.count(), save.server));
    }
    if (Clock::now() > say) {
      Print(absl::StrCat("waiting: step ", open, " is open, the checkpoint is that after step ",
                         step, "\n"));
      say = Clock::now() + kSilence;
    }
    std::this_thread::sleep_for(kTick);
  }
}

// Returns the lead's records of the steps up to `step`, serialized.
absl::StatusOr<std::vector<std::string>> ReadRecords(const RunningSave& save, uint64_t step,
                                                     ControlClient* client) {
  std::vector<std::string> records;
  StepWatch watch(client, /*after_step=*/0, /*until_evaluation=*/0);
  auto deadline = Clock::now() + kRecordsTimeout;
  while (true) {
    const std::optional<v1::StepRecord> record = watch.Next(kTick);
    if (record.has_value()) {
      records.push_back(record->SerializeAsString());
      if (!record->has_evaluation() && record->step() >= step) return records;
      deadline = Clock::now() + kRecordsTimeout;
      continue;
    }
    if (const std::optional<absl::Status> end = watch.end(); end.has_value()) {
      if (!end->ok()) return *end;
      return records;
    }
    EPS_RETURN_IF_ERROR(CheckInterrupted(save));
    if (Clock::now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("the lead at ", client->servers()[0], " sends no record of step ", step));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> SaveRunningJob(const RunningSave& save) {
  EPS_ASSIGN_OR_RETURN(RunningJob job, Find(save));
  ControlClient* const client = job.client.get();
  JobStateHead& head = job.head;
  const ChunkMap chunks = ChunkMap::Build(head.spec);
  EPS_RETURN_IF_ERROR(CheckRoom(save.root, head.spec, chunks));
  if (head.config.empty()) {
    Print(
        "note: the servers do not know the run's configuration: a resume needs --config or "
        "--model\n");
  }
  const uint64_t last = head.spec.training.steps;
  EPS_ASSIGN_OR_RETURN(const uint64_t open, OpenStep(client));
  LapsingGate gate(client, NewHolder());
  EPS_ASSIGN_OR_RETURN(const uint64_t gated, gate.SetFrom(std::max<uint64_t>(open, 1), last));
  const uint64_t step = std::min(gated, last);
  Print(absl::StrCat("holding the job after step ", step, "\n"));
  EPS_RETURN_IF_ERROR(AwaitBorder(save, step, client));
  EPS_ASSIGN_OR_RETURN(head.records, ReadRecords(save, step, client));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer,
                       CheckpointWriter::Create(save.root, step, head.spec, chunks));
  EPS_ASSIGN_OR_RETURN(const Border border, ExportBorder(step, client, writer.get()));
  EPS_RETURN_IF_ERROR(gate.Lift());
  head.border.id = {Step(border.step), Term(border.term)};
  EPS_ASSIGN_OR_RETURN(const SmallFiles files, FilesOf(head));
  EPS_RETURN_IF_ERROR(writer->Commit(border, files, {head.servers}));
  return writer->folder();
}

}  // namespace eps
