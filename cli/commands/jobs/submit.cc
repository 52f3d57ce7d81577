// `eps submit`: puts a job on the board.

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/config/app_arguments.h"
#include "base/files/files.h"
#include "base/status_macros.h"
#include "cli/commands/jobs/board.h"
#include "cli/launch/service/submitted_config.h"
#include "wire/job_terms.h"

namespace eps {
namespace {

struct SubmitArguments {
  std::string file;
  BoardOptions board;
  std::string name;
  std::vector<std::string> labels;
  bool paused = false;
  bool json = false;
  bool wait = false;
  uint64_t timeout = 0;  // seconds
};

absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  if (path != "-") return ReadTextFile(path);
  return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
}

absl::StatusOr<std::string> NameOfJob(const SubmitArguments& given) {
  const bool chosen = !given.name.empty();
  const std::string name = chosen ? given.name : std::filesystem::path(given.file).stem().string();
  if (IsJobName(name)) return name;
  return absl::InvalidArgumentError(absl::StrCat(
      chosen ? "--name: " : "the name of the file is no name of a job; add --name: ", "expected ",
      kJobNameRule, ", found \"", name, "\""));
}

absl::StatusOr<v1::SubmitJobRequest> RequestOf(const SubmitArguments& given) {
  v1::SubmitJobRequest request;
  EPS_ASSIGN_OR_RETURN(const std::string name, NameOfJob(given));
  request.set_name(name);
  request.set_owner(kServiceOwner);
  EPS_ASSIGN_OR_RETURN(const std::string config, ReadJobFile(given.file));
  const std::string origin = given.file == "-" ? "stdin" : given.file;
  EPS_RETURN_IF_ERROR(ReadSubmittedConfig(config, origin).status());
  request.set_config(config);
  for (const std::string& label : given.labels) {
    const size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--label: expected KEY=VALUE, found \"", label, "\""));
    }
    (*request.mutable_labels())[label.substr(0, equals)] = label.substr(equals + 1);
  }
  request.set_desired(given.paused ? v1::DESIRED_PAUSE : v1::DESIRED_RUN);
  return request;
}

void PrintSubmitted(const v1::Job& job, const std::string& servers, bool json) {
  if (!json) {
    std::printf("job %s: %s (uid %016llx, revision %llu)\nnext:\n  eps job watch %s --servers=%s\n",
                job.name().c_str(), PhaseName(job.phase()).c_str(),
                static_cast<unsigned long long>(job.uid()),
                static_cast<unsigned long long>(job.revision()), job.name().c_str(),
                servers.c_str());
    std::fflush(stdout);
    return;
  }
  nlohmann::ordered_json object;
  object["name"] = job.name();
  object["uid"] = absl::StrFormat("%016x", job.uid());
  object["revision"] = job.revision();
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

absl::Status RunSubmit(const std::vector<std::string>& arguments) {
  CLI::App app{"Puts a job on the board of the servers' lead; a driver (eps driver) runs it.",
               "eps submit"};
  SubmitArguments given;
  app.add_option("-f,--file", given.file, "YAML file of the job, or - for stdin")->required();
  AddBoardOptions(&app, &given.board);
  app.add_option("--name", given.name, "name of the job (default: that of the file)");
  app.add_option("--label", given.labels, "KEY=VALUE (repeatable)");
  app.add_flag("--paused", given.paused, "do not start it before eps job resume");
  app.add_flag("--json", given.json, "print JSON");
  app.add_flag("--wait", given.wait, "return once the job has ended, with its exit code");
  app.add_option("--timeout", given.timeout, "seconds to wait (default: no limit)");
  EPS_ASSIGN_OR_RETURN(const std::string help, ParseAppArguments(&app, arguments));
  if (!help.empty()) {
    std::fputs(help.c_str(), stdout);
    return absl::OkStatus();
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> servers, ServersOfBoard(given.board.servers));
  EPS_ASSIGN_OR_RETURN(v1::SubmitJobRequest request, RequestOf(given));
  EPS_ASSIGN_OR_RETURN(const auto board, ConnectToBoard(given.board));
  EPS_ASSIGN_OR_RETURN(const v1::Job job, board->Submit(std::move(request)));
  PrintSubmitted(job, absl::StrJoin(servers, ","), given.json);
  if (!given.wait) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const v1::Job ended,
                       AwaitBoardJob(board.get(), job, given.timeout,
                                     [](const v1::Job& now) { return HasEnded(now.phase()); }));
  return EndOfBoardJob(ended);
}

}  // namespace eps
