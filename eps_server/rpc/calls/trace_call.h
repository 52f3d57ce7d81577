#ifndef EPS_SERVER_RPC_CALLS_TRACE_CALL_H_
#define EPS_SERVER_RPC_CALLS_TRACE_CALL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/mutex.h"
#include "base/trace/trace_log.h"
#include "eps_server/rpc/calls/call_limit.h"
#include "eps_server/rpc/calls/stream_call.h"
#include "eps_server/shell/job_host.h"
#include "eps_server/shell/trace_desk.h"

namespace eps {

// Control.Trace: records the spans of this process while the client reads, and passes on those that
// workers report to the lead. Sends a reply at least every kInterval, so that the client knows up
// to which time it has everything. A trace of N steps ends when the N-th step that began after the
// first answer has ended and, at the lead, the workers of all parts have reported it.
class TraceCall final : public WriteCall, public TraceDesk::Listener {
 public:
  static constexpr uint32_t kMaxSteps = 1000;
  static constexpr std::chrono::milliseconds kInterval{200};
  // How long the lead waits for the last reports.
  static constexpr std::chrono::milliseconds kReportPatience{10'000};
  // While more bytes than this wait for the client, spans are dropped and counted.
  static constexpr size_t kMaxQueuedBytes = size_t{16} << 20;

  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                           JobHost* host, CallLimit* limit,
                                                           const grpc::ByteBuffer& request);

  void OnStepOpened(uint64_t step, bool done) override EPS_EXCLUDES(trace_mu_);
  void OnBegin(const v1::BeginStepRequest& request) override EPS_EXCLUDES(trace_mu_);
  void OnFailed() override { Finish(); }
  bool WantsSpans() override EPS_EXCLUDES(trace_mu_);

 protected:
  void OnEnded() override EPS_EXCLUDES(trace_mu_);
  std::string What() const override { return "Trace"; }

 private:
  TraceCall(JobHost* host, CallLimit::Place place)
      : work_(host->environment().pool->lane(Lane::kClient), Sequence::kLongTasks),
        place_(std::move(place)) {}
  std::shared_ptr<TraceCall> Self() {
    return std::static_pointer_cast<TraceCall>(shared_from_this());
  }
  void Begin(uint32_t steps) EPS_EXCLUDES(trace_mu_);
  // Sends what was recorded, and again after kInterval.
  void SendRegularly();
  void SendSpans() EPS_EXCLUDES(trace_mu_);
  // Returns whether nothing is missing.
  bool IsComplete() const EPS_REQUIRES(trace_mu_);
  // Sends the rest and ends the RPC, once this is complete.
  void Finish();

  Sequence work_;  // makes and writes messages, in the order of the events
  CallLimit::Place place_;
  std::string process_;

  Mutex trace_mu_;
  std::optional<TraceRecording> recording_ EPS_GUARDED_BY(trace_mu_);
  uint64_t steps_ EPS_GUARDED_BY(trace_mu_) = 0;           // of the request
  uint64_t opened_ EPS_GUARDED_BY(trace_mu_) = 0;          // steps since the first answer
  uint64_t end_ EPS_GUARDED_BY(trace_mu_) = 0;             // the step after the last; 0: unknown
  std::vector<uint64_t> begun_ EPS_GUARDED_BY(trace_mu_);  // at the lead, by part: its last step
  uint64_t lost_ EPS_GUARDED_BY(trace_mu_) = 0;            // spans of reports, since the last reply
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_CALLS_TRACE_CALL_H_
