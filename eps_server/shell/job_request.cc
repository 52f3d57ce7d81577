#include "eps_server/shell/job_request.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eps {

absl::StatusOr<JobSpec> ParseSpec(const std::string& text) {
  if (text.size() > kMaxSpecTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job spec of ", text.size(), " bytes; at most ", kMaxSpecTextBytes, " are allowed"));
  }
  return JobSpec::Parse(text);
}

absl::StatusOr<std::vector<std::string>> CheckServers(
    const google::protobuf::RepeatedPtrField<std::string>& servers) {
  constexpr int kMaxServers = 4096;
  if (servers.empty()) return absl::InvalidArgumentError("the list of servers is empty");
  if (servers.size() > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat(servers.size(), " servers; at most ", kMaxServers, " are allowed"));
  }
  std::set<std::string> seen;
  for (const std::string& server : servers) {
    if (!seen.insert(server).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("server \"", server, "\" is listed twice; see servers.addresses"));
    }
  }
  return std::vector<std::string>(servers.begin(), servers.end());
}

absl::Status OtherJob(const JobShell& job, const JobSpec& wanted,
                      const std::vector<std::string>& servers, uint32_t shard, bool durable) {
  std::string text =
      absl::StrCat("this server is shard ", job.shard().value(), " of job \"", job.spec().name,
                   "\" (", absl::Hex(job.id().value()), ") on ", absl::StrJoin(job.servers(), ","));
  if (job.id() != wanted.id()) {
    absl::StrAppend(&text, "; the spec of job \"", wanted.name,
                    "\" differs: ", FirstDifference(wanted.ToText(), job.spec_text()),
                    ". Start another server for it");
  } else if (job.servers() != servers) {
    absl::StrAppend(&text, "; the same job was asked for on ", absl::StrJoin(servers, ","));
  } else {
    absl::StrAppend(&text, "; it was asked for as shard ", shard, " (the lead is ", servers[0],
                    ")");
  }
  if (durable) {
    absl::StrAppend(&text,
                    ". A server reopens the job that it served before, unless it is "
                    "started with --storage.reopen=false");
  }
  return absl::AlreadyExistsError(text);
}

bool Matches(const JobShell& job, const JobSpec& spec, const std::vector<std::string>& servers,
             uint32_t shard) {
  return job.id() == spec.id() && job.servers() == servers && job.shard() == ShardId(shard);
}

}  // namespace eps
