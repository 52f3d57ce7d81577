#include "wire/control_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "grpcpp/client_context.h"
#include "wire/client_calls.h"
#include "wire/grpc_status.h"
#include "wire/payload_slices.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCallTimeout{60};
// The holder of the gate of the one program that drives a job: the next one replaces its gate.
constexpr char kDriver[] = "driver";
constexpr size_t kMaxConfigBytes = size_t{256} << 10;  // of CreateJobRequest::config
// A server reserves and touches all of its memory before it answers an import.
constexpr std::chrono::seconds kReserveTimeout{1800};
// The most time for CreateJob; without progress of the servers it ends much earlier.
constexpr std::chrono::hours kCreateTimeout{7 * 24};
constexpr std::chrono::seconds kWatchTimeout{600};
constexpr std::chrono::seconds kLookTimeout{5};  // of a look at a server's progress

void SetBorder(const Border& border, v1::ImportStateRequest* request) {
  request->set_step(border.step);
  request->set_version(border.version);
  request->set_update(border.update);
  request->set_lagged_norm(border.lagged_norm);
  if (border.loss_scale.has_value()) SetMessage(*border.loss_scale, request->mutable_loss_scale());
}

// One ImportState call: Send writes its messages, Finish returns its result.
class ImportStream {
 public:
  ImportStream(v1::Control::Stub* stub, JobId job, const DriverLease& driver, std::string where)
      : job_(job), driver_(driver), where_(std::move(where)) {
    SetCallTimeout(&context_, kReserveTimeout);
    writer_ = stub->ImportState(&context_, &reply_);
  }
  ~ImportStream() {
    if (!ended_) context_.TryCancel();
    if (!ended_) writer_->Finish();
  }

  absl::Status Send(v1::ImportStateRequest* request) {
    if (first_) request->set_request_id(NewRequestId("import"));
    first_ = false;
    request->set_job_id(job_.value());
    if (driver_.exists()) SetMessage(driver_, request->mutable_lease());
    if (writer_->Write(*request)) return absl::OkStatus();
    const absl::Status end = End();  // says why the server accepts nothing more
    return end.ok() ? absl::UnavailableError(where_ + ": the server ended the call early") : end;
  }

  // Sends `data` in slices; `header` says what it is.
  absl::Status SendData(const v1::ImportStateRequest& header, const std::string& data) {
    for (const PayloadSlice& slice : SlicesOf(data.size())) {
      v1::ImportStateRequest request = header;
      request.set_offset(slice.offset);
      request.set_data(data.data() + slice.offset, slice.size);
      if (slice.last) {
        request.set_last(true);
        request.set_crc32c(Crc32c(data));
      }
      EPS_RETURN_IF_ERROR(Send(&request));
    }
    return absl::OkStatus();
  }

  // Ends the import after all chunks were sent: they are the state at `border`.
  absl::Status Finish(const Border& border) {
    v1::ImportStateRequest request;
    SetBorder(border, &request);
    request.set_finish(true);
    EPS_RETURN_IF_ERROR(Send(&request));
    return End();
  }

 private:
  absl::Status End() {
    ended_ = true;
    writer_->WritesDone();
    return FromGrpc(writer_->Finish(), where_);
  }

  const JobId job_;
  const DriverLease driver_;
  const std::string where_;
  grpc::ClientContext context_;
  v1::ImportStateReply reply_;
  std::unique_ptr<grpc::ClientWriter<v1::ImportStateRequest>> writer_;
  bool first_ = true;
  bool ended_ = false;
};

// A CreateJob call in flight. The destructor waits for its end.
class CreateCall {
 public:
  CreateCall(v1::Control::Stub* stub, v1::CreateJobRequest request) : request_(std::move(request)) {
    SetCallTimeout(&context_, kCreateTimeout);
    stub->async()->CreateJob(&context_, &request_, &reply_, [this](grpc::Status status) {
      MutexLock lock(&mu_);
      status_ = std::move(status);
      ended_ = true;
      changed_.NotifyAll();
    });
  }
  ~CreateCall() {
    while (!EndsWithin(kLookTimeout)) {
    }
  }

  // Returns whether the call has ended, after at most `pause`.
  bool EndsWithin(std::chrono::milliseconds pause) EPS_EXCLUDES(mu_) {
    const Clock::time_point deadline = Clock::now() + pause;
    MutexLock lock(&mu_);
    while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
    }
    return ended_;
  }
  void Cancel() { context_.TryCancel(); }

  // REQUIRE that the call has ended.
  grpc::Status status() EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return status_;
  }
  const v1::CreateJobReply& reply() const { return reply_; }

 private:
  grpc::ClientContext context_;
  const v1::CreateJobRequest request_;
  v1::CreateJobReply reply_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ EPS_GUARDED_BY(mu_) = false;
  grpc::Status status_ EPS_GUARDED_BY(mu_);
};

}  // namespace

ControlClient::ControlClient(std::vector<std::string> servers,
                             const std::vector<std::shared_ptr<grpc::Channel>>& channels)
    : servers_(std::move(servers)) {
  for (const auto& channel : channels) stubs_.push_back(v1::Control::NewStub(channel));
}

JobId ControlClient::job() const {
  MutexLock lock(&mu_);
  return job_;
}

void ControlClient::FollowJob(JobId job) {
  MutexLock lock(&mu_);
  job_ = job;
}

DriverLease ControlClient::driver() const {
  MutexLock lock(&mu_);
  return driver_;
}

void ControlClient::SetDriverLease(const DriverLease& lease) {
  MutexLock lock(&mu_);
  driver_ = lease;
}

std::string ControlClient::Where(absl::string_view call, size_t server) const {
  return absl::StrCat(call, " on server ", servers_[server]);
}

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(
    std::vector<std::string> servers, Clock::time_point deadline) {
  std::vector<std::shared_ptr<grpc::Channel>> channels(servers.size());
  for (size_t i = 0; i < servers.size(); ++i) {
    EPS_ASSIGN_OR_RETURN(channels[i], ConnectToServer(servers[i], deadline));
  }
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(servers), channels));
}

uint64_t ControlClient::FilledBytes(uint64_t* wanted_bytes) {
  uint64_t filled = 0;
  *wanted_bytes = 0;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const absl::StatusOr<v1::StatusReply> status = GetStatus(i, kLookTimeout);
    if (!status.ok()) continue;  // no progress; CreateJob itself reports what is wrong
    const auto& counters = status->counters();
    const auto add = [&counters](const char* name, uint64_t* sum) {
      const auto found = counters.find(name);
      if (found != counters.end()) *sum += found->second;
    };
    add("filled_bytes", &filled);
    add("fill_wanted_bytes", wanted_bytes);
  }
  return filled;
}

absl::StatusOr<v1::CreateJobReply> ControlClient::CreateJob(const JobSpec& spec,
                                                            const std::string& config,
                                                            const CreatePatience& patience) {
  v1::CreateJobRequest request;
  {
    MutexLock lock(&mu_);
    job_ = spec.id();
    if (driver_.exists()) SetMessage(driver_, request.mutable_lease());
  }
  request.set_request_id(NewRequestId("create"));
  request.set_spec_text(spec.ToText());
  if (config.size() <= kMaxConfigBytes) request.set_config(config);
  for (const std::string& address : servers_) request.add_servers(address);
  CreateCall call(stubs_[0].get(), request);
  uint64_t filled = 0;
  for (int idle = 0; !call.EndsWithin(patience.pause); ++idle) {
    if (idle >= patience.idle_looks) {
      call.Cancel();
      return absl::DeadlineExceededError(absl::StrCat(
          Where("CreateJob", 0), ": no server has filled any more bytes of its slots for ",
          patience.pause.count() * idle / 1000, " s; look at the servers' logs and disks"));
    }
    uint64_t wanted = 0;
    const uint64_t now = FilledBytes(&wanted);
    if (now == filled) continue;
    filled = now;
    idle = -1;
    EPS_LOG_INFO("the servers fill their slots: " << absl::StrFormat(
                     "%.1f of %.1f GB", static_cast<double>(filled) / 1e9,
                     static_cast<double>(wanted) / 1e9));
  }
  EPS_RETURN_IF_ERROR(FromGrpc(call.status(), Where("CreateJob", 0)));
  MutexLock lock(&mu_);
  gate_number_ = std::max(gate_number_, call.reply().gate_number());
  return call.reply();
}

absl::StatusOr<v1::GetJobReply> ControlClient::FindJob() {
  grpc::ClientContext context;
  SetCallTimeout(&context, kCallTimeout);
  v1::GetJobRequest request;
  request.set_request_id(NewRequestId("job"));
  v1::GetJobReply reply;
  EPS_RETURN_IF_ERROR(FromGrpc(stubs_[0]->GetJob(&context, request, &reply), Where("GetJob", 0)));
  MutexLock lock(&mu_);
  job_ = JobId(reply.job_id());
  return reply;
}

absl::Status ControlClient::Initialize(ShardId shard) {
  const size_t server = shard.value();
  ImportStream stream(stubs_[server].get(), job(), driver(), Where("ImportState", server));
  v1::ImportStateRequest request;
  request.set_initialize(true);
  EPS_RETURN_IF_ERROR(stream.Send(&request));
  return stream.Finish(Border());
}

absl::Status ControlClient::Import(ShardId shard, const ImportSource& source) {
  const size_t server = shard.value();
  ImportStream stream(stubs_[server].get(), job(), driver(), Where("ImportState", server));
  v1::ImportStateRequest header;
  SetBorder(source.border, &header);
  for (const ChunkId id : source.chunks) {
    EPS_ASSIGN_OR_RETURN(const ChunkState state, source.read(id));
    header.set_chunk(id.value());
    EPS_RETURN_IF_ERROR(stream.SendData(header, state));
  }
  for (const ResidualPlace& place : source.residuals) {
    EPS_ASSIGN_OR_RETURN(const std::string residual, source.read_residual(place));
    header.set_chunk(place.chunk.value());
    header.mutable_residual()->set_use_stage(place.use.value());
    header.mutable_residual()->set_part(place.part.value());
    EPS_RETURN_IF_ERROR(stream.SendData(header, residual));
  }
  return stream.Finish(source.border);
}

absl::StatusOr<uint64_t> ControlClient::Gate(std::optional<uint64_t> step, bool outlives_driver) {
  v1::GateRequest request;
  request.set_holder(kDriver);
  request.set_outlives_driver(outlives_driver);
  if (const DriverLease lease = driver(); lease.exists()) {
    SetMessage(lease, request.mutable_lease());
  }
  if (step.has_value()) request.set_step(*step);
  EPS_ASSIGN_OR_RETURN(const v1::GateReply reply, SendGate(std::move(request)));
  return reply.step();
}

absl::StatusOr<v1::GateReply> ControlClient::LapsingGate(const std::string& holder,
                                                         std::optional<uint64_t> step) {
  v1::GateRequest request;
  request.set_holder(holder);
  request.set_lapses(true);
  if (step.has_value()) request.set_step(*step);
  return SendGate(std::move(request));
}

absl::StatusOr<v1::GateReply> ControlClient::SendGate(v1::GateRequest request) {
  grpc::ClientContext context;
  SetCallTimeout(&context, kCallTimeout);
  request.set_request_id(NewRequestId("gate"));
  {
    MutexLock lock(&mu_);
    request.set_job_id(job_.value());
    request.set_number(++gate_number_);
  }
  v1::GateReply reply;
  const absl::Status status =
      FromGrpc(stubs_[0]->Gate(&context, request, &reply), Where("Gate", 0));
  if (absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(
        absl::StrCat(status.message(), "; eps status names the server that does not answer"));
  }
  EPS_RETURN_IF_ERROR(status);
  return reply;
}

absl::Status ControlClient::Export(
    ShardId shard, uint64_t step, std::chrono::seconds timeout,
    const std::function<absl::Status(ChunkId, const Border&, const ChunkState&)>& write,
    const std::function<absl::Status(const ResidualPlace&, const std::string&)>& write_residual) {
  const std::string where = Where("ExportState", shard.value());
  grpc::ClientContext context;
  SetCallTimeout(&context, timeout);
  v1::ExportStateRequest request;
  request.set_request_id(NewRequestId("export"));
  request.set_job_id(job().value());
  request.set_step(step);
  const auto reader = stubs_[shard.value()]->ExportState(&context, request);
  v1::ExportStateReply reply;
  ChunkState state;
  absl::Status failure;
  while (failure.ok() && reader->Read(&reply)) {
    if (reply.offset() != state.size()) {
      failure = absl::DataLossError(absl::StrCat(where, ": chunk ", reply.chunk(), ": byte ",
                                                 reply.offset(), ", expected ", state.size()));
      break;
    }
    state.append(reply.data());
    if (!reply.last()) continue;
    if (Crc32c(state) != reply.crc32c()) {
      failure = absl::DataLossError(
          absl::StrCat(where, ": chunk ", reply.chunk(), ": CRC differs from its bytes"));
      break;
    }
    const ChunkId chunk(reply.chunk());
    if (reply.has_residual()) {
      failure = write_residual(
          {chunk, StageId(reply.residual().use_stage()), PartId(reply.residual().part())}, state);
    } else {
      Border border = {reply.step(), reply.version(), reply.update(), reply.term(),
                       reply.lagged_norm()};
      if (reply.has_loss_scale()) border.loss_scale = ToLossScale(reply.loss_scale());
      failure = write(chunk, border, state);
    }
    state.clear();
  }
  if (!failure.ok()) context.TryCancel();
  const grpc::Status end = reader->Finish();
  if (!failure.ok()) return failure;
  // Nobody here has cancelled the call: gRPC says so of a server that ends.
  if (end.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError(absl::StrCat(where, ": the server ended the call"));
  }
  EPS_RETURN_IF_ERROR(FromGrpc(end, where));
  if (state.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(where, ": chunk ", reply.chunk(), ": the last slices were not received"));
}

absl::Status ControlClient::Watch(uint64_t after_step, uint64_t until_evaluation,
                                  const std::function<void(const v1::StepRecord&)>& on_record) {
  // A run that resumes at a border may still evaluate it.
  uint64_t after_evaluation = after_step > 0 ? after_step - 1 : 0;
  while (true) {
    grpc::ClientContext context;
    {
      MutexLock lock(&mu_);
      if (watch_cancelled_) return absl::CancelledError("watching was cancelled");
      watch_or_null_ = &context;
    }
    SetCallTimeout(&context, kWatchTimeout);
    v1::WatchStepsRequest request;
    request.set_request_id(NewRequestId("watch"));
    request.set_job_id(job().value());
    request.set_after_step(after_step);
    request.set_after_evaluation(after_evaluation);
    request.set_until_evaluation(until_evaluation);
    const auto reader = stubs_[0]->WatchSteps(&context, request);
    v1::StepRecord record;
    bool received = false;
    while (reader->Read(&record)) {
      received = true;
      (record.has_evaluation() ? after_evaluation : after_step) = record.step();
      on_record(record);
    }
    const absl::Status status = FromGrpc(reader->Finish(), Where("WatchSteps", 0));
    MutexLock lock(&mu_);
    watch_or_null_ = nullptr;
    // The server ends a watch that reads too slowly with RESOURCE_EXHAUSTED.
    const bool repeat =
        absl::IsDeadlineExceeded(status) || (absl::IsResourceExhausted(status) && received);
    if (!repeat) return status;
  }
}

void ControlClient::CancelWatch() {
  MutexLock lock(&mu_);
  watch_cancelled_ = true;
  if (watch_or_null_ != nullptr) watch_or_null_->TryCancel();
}

absl::StatusOr<v1::StatusReply> ControlClient::GetStatus(size_t server,
                                                         std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  SetCallTimeout(&context, timeout);
  v1::StatusRequest request;
  request.set_request_id(NewRequestId("status"));
  v1::StatusReply reply;
  EPS_RETURN_IF_ERROR(
      FromGrpc(stubs_[server]->Status(&context, request, &reply), Where("Status", server)));
  return reply;
}

std::optional<ExitCode> FailureCodeOf(const v1::StatusReply& job) {
  constexpr uint32_t kMost = 255;
  if (job.state() != v1::JOB_STATE_FAILED) return std::nullopt;
  if (job.failure_code() == 0 || job.failure_code() > kMost) return std::nullopt;
  return static_cast<ExitCode>(job.failure_code());
}

}  // namespace eps
