#include "worker/client/join_job.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/job/layout/codec_table.h"
#include "base/status_macros.h"
#include "eps/v1/control.grpc.pb.h"
#include "wire/channel.h"
#include "worker/client/unary_call.h"

namespace eps {
namespace {

using std::chrono::steady_clock;

// Returns whether the server answers and its job still waits for its weights.
bool IsImporting(const std::shared_ptr<ClientCore>& core, v1::Control::Stub* stub) {
  v1::StatusRequest request;
  v1::StatusReply reply;
  return CallOnce(core, steady_clock::now() + core->options.rpc_timeout, "Status",
                  [&](grpc::ClientContext* context, const std::string& request_id, auto done) {
                    request.set_request_id(request_id);
                    stub->async()->Status(context, &request, &reply, std::move(done));
                  })
             .ok() &&
         (reply.state() == v1::JOB_STATE_IMPORTING || reply.state() == v1::JOB_STATE_RECOVERING);
}

}  // namespace

absl::StatusOr<v1::JoinReply> JoinWhenReady(const std::shared_ptr<ClientCore>& core,
                                            const std::shared_ptr<grpc::Channel>& channel,
                                            const JoinOptions& options) {
  const std::string& address = core->options.servers[0];
  const auto stub = v1::Control::NewStub(channel);
  v1::JoinRequest request;
  request.set_worker_nonce(core->nonce);
  request.set_worker_rank(options.rank);
  request.set_worker_count(options.count);
  request.set_compute_profile(options.compute_profile);
  request.set_host(options.host);
  for (int attempt = 0;; ++attempt) {
    v1::JoinReply reply;
    const absl::Status status =
        CallWithRetry(core, address, channel.get(), "Join",
                      [&](grpc::ClientContext* context, const std::string& request_id, auto done) {
                        request.set_request_id(request_id);
                        stub->async()->Join(context, &request, &reply, std::move(done));
                      });
    if (!status.ok() && (!absl::IsUnavailable(status) || !IsImporting(core, stub.get()))) {
      return status;
    }
    if (status.ok() && reply.state() == v1::JOB_STATE_FAILED) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Join on ", address, ": the job cannot continue; `eps status` shows the reason"));
    }
    if (status.ok() && reply.state() != v1::JOB_STATE_IMPORTING) return reply;
    ClientLock lock(&core->mu);
    Pause(core.get(), steady_clock::now() + core->BackOff(attempt));
    if (core->Interrupted()) {
      return absl::CancelledError("interrupted before the job had its initial weights");
    }
  }
}

absl::Status TakeJob(const std::string& server, const v1::JoinReply& reply,
                     const std::string& codec_plugin, JobView* job) {
  const std::string context = absl::StrCat("Join on ", server, ": ");
  absl::StatusOr<JobSpec> spec = JobSpec::Parse(reply.spec_text());
  if (!spec.ok()) {
    return absl::Status(spec.status().code(), absl::StrCat(context, spec.status().message()));
  }
  if (reply.servers().empty()) {
    return absl::InternalError(absl::StrCat(context, "the reply names no servers"));
  }
  for (const std::string& address : reply.servers()) {
    EPS_RETURN_IF_ERROR(CheckAddress(address, /*allow_any_port=*/false));
  }
  job->chunks = ChunkMap::Build(*spec);
  job->id = spec->id();
  job->spec = *std::move(spec);
  absl::StatusOr<CodecTable> codecs = CodecTable::Build(job->spec, job->chunks);
  if (!codecs.ok()) {
    return absl::Status(
        codecs.status().code(),
        absl::StrCat(context, "this worker cannot take part: ", codecs.status().message(),
                     "; the codecs of the job are ", absl::StrJoin(CodecNamesOf(job->spec), ", ")));
  }
  EPS_RETURN_IF_ERROR(LoadPluginCodecs(job->spec, codec_plugin));
  job->codecs.emplace(*std::move(codecs));
  job->term = Term(reply.term());
  job->servers.assign(reply.servers().begin(), reply.servers().end());
  job->placement = job->chunks.Place(static_cast<uint32_t>(job->servers.size()));
  return absl::OkStatus();
}

}  // namespace eps
