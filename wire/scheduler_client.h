#ifndef EPS_WIRE_SCHEDULER_CLIENT_H_
#define EPS_WIRE_SCHEDULER_CLIENT_H_

// The client's side of the Scheduler service: the board of jobs at the lead.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "eps/v1/scheduler.grpc.pb.h"

namespace eps {

// Calls the Scheduler service of one server, the lead. Every call has a deadline and fills in the
// request_id; every error names the server. Thread-safe.
class SchedulerClient {
 public:
  // Says Hello to the server and retries until `deadline`. Unavailable if it does not answer.
  static absl::StatusOr<std::unique_ptr<SchedulerClient>> Connect(
      const std::string& lead, std::chrono::steady_clock::time_point deadline);

  const std::string& lead() const { return lead_; }

  absl::StatusOr<v1::Job> Submit(v1::SubmitJobRequest request);
  absl::StatusOr<v1::ListJobsReply> List();
  // NotFound if there is no job of this name.
  absl::StatusOr<v1::Job> Get(const std::string& name);
  // Sets what is wanted of a job; reads it again and repeats when somebody else changed it.
  absl::StatusOr<v1::Job> Update(const std::string& name, v1::Desired desired);
  // As Update, for the number of workers that compute the job.
  absl::StatusOr<v1::Job> Scale(const std::string& name, uint32_t workers);
  absl::Status DrainWorker(const std::string& name, uint64_t worker);
  // Has this server end, which need not be the lead.
  absl::Status DrainServer();
  // Wants a checkpoint; the job says which one (checkpoint_wanted).
  absl::StatusOr<v1::Job> Checkpoint(const std::string& name);
  absl::Status Remove(const std::string& name);
  absl::StatusOr<v1::ClaimJobReply> Claim(v1::ClaimJobRequest request);
  absl::StatusOr<v1::ReportJobReply> Report(v1::ReportJobRequest request);

  // Calls `on_event` for every change after `revision` of `board`, until it returns false (OK) or
  // the server fails. An empty `name`: of all jobs. Blocks. Opens the stream again when only its
  // time is over.
  absl::Status Watch(uint64_t board, uint64_t revision, const std::string& name,
                     const std::function<bool(const v1::JobEvent&)>& on_event);

 private:
  SchedulerClient(std::string lead, std::shared_ptr<v1::Scheduler::Stub> stub)
      : lead_(std::move(lead)), stub_(std::move(stub)) {}
  template <class Request, class Reply>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Scheduler::Stub::*rpc)(grpc::ClientContext*,
                                                                      const Request&, Reply*),
                             absl::string_view name, Request request);
  // Fills in the generation of the job; reads it again and repeats when somebody else changed it.
  absl::StatusOr<v1::Job> Change(v1::UpdateJobRequest request);
  std::shared_ptr<v1::Scheduler::Stub> stub() EPS_EXCLUDES(mu_);
  // Connects again, unless another thread has replaced `failed` already.
  void Replace(const std::shared_ptr<v1::Scheduler::Stub>& failed) EPS_EXCLUDES(mu_);

  const std::string lead_;

  Mutex mu_;
  std::shared_ptr<v1::Scheduler::Stub> stub_ EPS_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_WIRE_SCHEDULER_CLIENT_H_
