// `eps job`: shows and changes the jobs on the board.

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/config/app_arguments.h"
#include "base/status_macros.h"
#include "cli/commands/jobs/board.h"
#include "wire/client_calls.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

constexpr std::chrono::milliseconds kReconnectPause{500};

struct JobArguments {
  BoardOptions board;
  std::string name;
  bool json = false;
  bool wait = false;
  uint64_t timeout = 0;  // seconds
  uint32_t workers = 0;
  std::string worker;
};

void PrintLine(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

absl::Status ListJobs(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_ASSIGN_OR_RETURN(const v1::ListJobsReply reply, board->List());
  if (!given.json) {
    std::fputs(BoardJobTable(reply).c_str(), stdout);
    return absl::OkStatus();
  }
  nlohmann::ordered_json json;
  json["revision"] = reply.revision();
  json["jobs"] = nlohmann::ordered_json::array();
  for (const v1::Job& job : reply.jobs()) json["jobs"].push_back(BoardJobJson(job));
  PrintLine(json.dump());
  return absl::OkStatus();
}

void ShowJob(const v1::Job& job, bool json) {
  if (json) return PrintLine(BoardJobJson(job).dump());
  std::fputs(BoardJobText(job).c_str(), stdout);
}

absl::Status ShowNamed(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_ASSIGN_OR_RETURN(const v1::Job job, FindOnBoard(board.get(), given.name));
  ShowJob(job, given.json);
  return absl::OkStatus();
}

// Follows all jobs, or one until it ends.
class BoardWatch {
 public:
  BoardWatch(SchedulerClient* board, const JobArguments& given) : board_(board), given_(given) {}

  absl::Status Run() {
    if (!given_.name.empty()) {
      EPS_RETURN_IF_ERROR(FindOnBoard(board_, given_.name).status());
    }
    for (;;) {
      const absl::Status status = FollowOnce();
      if (ended_) return EndOfBoardJob(last_);
      if (absl::IsOutOfRange(status)) continue;  // the board is another one, or too far ahead
      if (!IsAway(status)) return status;
      if (!away_) std::fprintf(stderr, "waiting: %s\n", std::string(status.message()).c_str());
      away_ = true;
      std::this_thread::sleep_for(kReconnectPause);
    }
  }

 private:
  // Shows all jobs as they are and then each change.
  absl::Status FollowOnce() {
    EPS_ASSIGN_OR_RETURN(const v1::ListJobsReply all, board_->List());
    away_ = false;
    bool found = false;
    for (const v1::Job& job : all.jobs()) {
      if (!given_.name.empty() && job.name() != given_.name) continue;
      found = true;
      v1::JobEvent event;
      event.set_kind(v1::JobEvent::KIND_PUT);
      event.set_revision(job.revision());
      *event.mutable_job() = job;
      if (seen_[job.name()] < job.revision() && !Show(event)) return absl::OkStatus();
    }
    if (!given_.name.empty() && !found) {
      return absl::NotFoundError(absl::StrCat("job ", given_.name, " was removed"));
    }
    return board_->Watch(all.board(), all.revision(), given_.name,
                         [this](const v1::JobEvent& event) { return Show(event); });
  }

  // Returns whether the watch goes on.
  bool Show(const v1::JobEvent& event) {
    if (event.kind() == v1::JobEvent::KIND_BOOKMARK) return true;
    const bool removed = event.kind() == v1::JobEvent::KIND_REMOVED;
    if (event.kind() == v1::JobEvent::KIND_PUT) seen_[event.job().name()] = event.revision();
    if (given_.json) {
      nlohmann::ordered_json json;
      json["event"] = v1::JobEvent::Kind_Name(event.kind()).substr(5);
      json["revision"] = event.revision();
      json["job"] = BoardJobJson(event.job());
      PrintLine(json.dump());
    } else {
      PrintLine(removed ? absl::StrCat(event.job().name(), " was removed")
                        : BoardJobLine(event.job()));
    }
    if (given_.name.empty()) return true;
    last_ = event.job();
    ended_ = removed || HasEnded(last_.phase());
    return !ended_;
  }

  SchedulerClient* const board_;
  const JobArguments& given_;
  std::map<std::string, uint64_t> seen_;  // the revision at which a job was shown
  v1::Job last_;
  bool ended_ = false;
  bool away_ = false;
};

absl::Status WatchJobs(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  return BoardWatch(board.get(), given).Run();
}

// Sets what is wanted of a job; with --wait, returns once it is so.
absl::Status SetDesired(const JobArguments& given, v1::Desired desired, v1::JobPhase phase) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_RETURN_IF_ERROR(FindOnBoard(board.get(), given.name).status());
  EPS_ASSIGN_OR_RETURN(v1::Job job, board->Update(given.name, desired));
  if (given.wait) {
    EPS_ASSIGN_OR_RETURN(
        job, AwaitBoardJob(board.get(), job, given.timeout, [phase](const v1::Job& now) {
          return now.phase() == phase || HasEnded(now.phase());
        }));
  }
  if (given.json) {
    ShowJob(job, /*json=*/true);
  } else {
    PrintLine(BoardJobLine(job));
  }
  if (!given.wait || job.phase() == phase) return absl::OkStatus();
  if (phase == v1::JOB_PHASE_RUNNING) return EndOfBoardJob(job);
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.name(), " has ended meanwhile: ", PhaseName(job.phase())));
}

// Wants a checkpoint; with --wait, returns once it is written.
absl::Status SaveNamed(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_RETURN_IF_ERROR(FindOnBoard(board.get(), given.name).status());
  EPS_ASSIGN_OR_RETURN(v1::Job job, board->Checkpoint(given.name));
  const uint64_t wanted = job.checkpoint_wanted();
  const auto saved = [wanted](const v1::Job& now) {
    return now.progress().checkpoint_step() >= wanted;
  };
  if (given.wait) {
    EPS_ASSIGN_OR_RETURN(job, AwaitBoardJob(board.get(), job, given.timeout, [&](const auto& now) {
                           return saved(now) || HasEnded(now.phase());
                         }));
  }
  if (given.json) {
    ShowJob(job, /*json=*/true);
  } else if (saved(job)) {
    PrintLine(job.progress().checkpoint());
  } else {
    PrintLine(BoardJobLine(job));
  }
  return given.wait && !saved(job) ? EndOfBoardJob(job) : absl::OkStatus();
}

absl::Status ScaleNamed(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_RETURN_IF_ERROR(FindOnBoard(board.get(), given.name).status());
  EPS_ASSIGN_OR_RETURN(const v1::Job job, board->Scale(given.name, given.workers));
  if (given.json) {
    ShowJob(job, /*json=*/true);
  } else {
    PrintLine(BoardJobLine(job));
  }
  return absl::OkStatus();
}

absl::Status DrainNamed(const JobArguments& given) {
  uint64_t worker = 0;
  if (!absl::SimpleHexAtoi(given.worker, &worker) || worker == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--worker: expected the name of a worker, as eps status shows it, found ", given.worker));
  }
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_RETURN_IF_ERROR(FindOnBoard(board.get(), given.name).status());
  EPS_RETURN_IF_ERROR(board->DrainWorker(given.name, worker));
  PrintLine(absl::StrCat("worker ", given.worker, " ends after its step"));
  return absl::OkStatus();
}

absl::Status DrainServer(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto server, ConnectToBoard(given.board));
  EPS_RETURN_IF_ERROR(server->DrainServer());
  PrintLine(absl::StrCat("server ", server->lead(), " drains and ends"));
  return absl::OkStatus();
}

absl::Status RemoveNamed(const JobArguments& given) {
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_ASSIGN_OR_RETURN(const v1::Job job, FindOnBoard(board.get(), given.name));
  EPS_RETURN_IF_ERROR(board->Remove(given.name));
  if (given.json) {
    ShowJob(job, /*json=*/true);
  } else {
    PrintLine(absl::StrCat("removed: job ", given.name, "; its output folder stays"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunJob(const std::vector<std::string>& arguments) {
  CLI::App app{"Shows and changes the jobs on the board of the servers' lead.", "eps job"};
  app.require_subcommand(1);
  JobArguments given;
  CLI::App* const ls = app.add_subcommand("ls", "list all jobs");
  CLI::App* const show = app.add_subcommand("show", "show one job");
  CLI::App* const watch = app.add_subcommand(
      "watch", "print changes as they come; of one job until it ends, with its exit code");
  CLI::App* const pause =
      app.add_subcommand("pause", "stop a job after its next step, with a checkpoint");
  CLI::App* const resume = app.add_subcommand("resume", "let a paused job go on");
  CLI::App* const cancel = app.add_subcommand("cancel", "end a job for ever");
  CLI::App* const checkpoint =
      app.add_subcommand("checkpoint", "have a running job write a checkpoint after its next step");
  CLI::App* const scale =
      app.add_subcommand("scale", "deal the parts of a job to another number of workers");
  CLI::App* const drain =
      app.add_subcommand("drain", "have a worker finish its step, give back its parts and end");
  CLI::App* const drain_server = app.add_subcommand(
      "drain-server",
      "have the first of --servers end as SIGTERM would, with a cut if it is durable");
  CLI::App* const rm = app.add_subcommand("rm", "take a job that has ended off the board");
  for (CLI::App* const command :
       {ls, show, watch, pause, resume, cancel, checkpoint, scale, drain, drain_server, rm}) {
    AddBoardOptions(command, &given.board);
    command->add_flag("--json", given.json, "print JSON");
  }
  for (CLI::App* const command : {show, pause, resume, cancel, checkpoint, scale, drain, rm}) {
    command->add_option("NAME", given.name, "the job")->required();
  }
  watch->add_option("NAME", given.name, "the job (default: all)");
  for (CLI::App* const command : {pause, resume, cancel, checkpoint}) {
    command->add_flag("--wait", given.wait, "return once it is so");
    command->add_option("--timeout", given.timeout, "seconds to wait (default: no limit)");
  }
  scale
      ->add_option(
          "--workers", given.workers,
          "how many workers compute the job; the others wait; 0: all as they ask for parts")
      ->required();
  drain->add_option("--worker", given.worker, "the worker, as eps status names it")->required();
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  if (ls->parsed()) return ListJobs(given);
  if (show->parsed()) return ShowNamed(given);
  if (watch->parsed()) return WatchJobs(given);
  if (pause->parsed()) return SetDesired(given, v1::DESIRED_PAUSE, v1::JOB_PHASE_PAUSED);
  if (checkpoint->parsed()) return SaveNamed(given);
  if (resume->parsed()) return SetDesired(given, v1::DESIRED_RUN, v1::JOB_PHASE_RUNNING);
  if (cancel->parsed()) return SetDesired(given, v1::DESIRED_CANCEL, v1::JOB_PHASE_CANCELLED);
  if (scale->parsed()) return ScaleNamed(given);
  if (drain->parsed()) return DrainNamed(given);
  if (drain_server->parsed()) return DrainServer(given);
  return RemoveNamed(given);
}

}  // namespace eps
