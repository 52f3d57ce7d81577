#include "eps_server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/machine/disk_room.h"
#include "base/machine/machine_limits.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "eps_server/jobs/job_desk.h"
#include "eps_server/rpc/control_service.h"
#include "eps_server/rpc/data_service.h"
#include "eps_server/rpc/grpc_peers.h"
#include "eps_server/rpc/http/status_endpoint.h"
#include "eps_server/rpc/process_info.h"
#include "eps_server/rpc/role_guard.h"
#include "eps_server/rpc/scheduler_service.h"
#include "eps_server/rpc/shard_service.h"
#include "eps_server/shell/job_host.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "wire/acceptor.h"
#include "wire/channel.h"
#include "wire/security/identity.h"
#include "wire/shm/shm_server.h"

namespace eps {
namespace {

constexpr char kLive[] = "eps.live";    // the process responds; depends on nothing else
constexpr char kReady[] = "eps.ready";  // the server accepts work
constexpr char kDefault[] = "";         // same as kReady

// The memory of the transports (server.h).
constexpr uint64_t kMinTransportBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxTransportBytes = uint64_t{512} << 20;
constexpr uint64_t kTransportShare = 4;

// Descriptors of the process that are left for files, timers and outgoing connections.
constexpr uint64_t kOtherDescriptors = 256;
constexpr uint64_t kMinConnections = 16;

// Returns how many connections may be open at a time.
size_t ConnectionLimit(size_t wanted) {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return wanted;
  const uint64_t most = std::max<uint64_t>(files.rlim_cur, kMinConnections + kOtherDescriptors);
  return std::min<uint64_t>(wanted, most - kOtherDescriptors);
}

// Returns an account that lives as long as the process: gRPC may hold sent bytes, which are charged
// to it, for a moment after the server has ended.
MemoryAccount* NewAccount(uint64_t limit_bytes) {
  static Mutex* mu = new Mutex();
  static auto* accounts = new std::vector<std::unique_ptr<MemoryAccount>>();
  MutexLock lock(mu);
  accounts->push_back(std::make_unique<MemoryAccount>(limit_bytes));
  return accounts->back().get();
}

uint64_t NewIncarnation() {
  std::random_device random;
  const uint64_t value = uint64_t{random()} << 32 | random();
  return value == 0 ? 1 : value;
}

// Checks that the server may listen on this address.
absl::Status CheckListen(const ServerOptions& options) {
  const absl::Status status = CheckAddress(options.listen, /*allow_any_port=*/true);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("servers.listen: ", std::string(status.message())));
  }
  if (!IsLoopback(options.listen) && !options.insecure && !UsesTls(options.listen)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "servers.listen: ", options.listen,
        " can be reached from other machines, and without TLS anyone who can connect could read "
        "and change the weights; give the server a certificate (security.dir), listen on "
        "127.0.0.1, or pass --insecure if you trust the network"));
  }
  return absl::OkStatus();
}

// Returns the credentials of a server. `guard_or_null` checks the role of each caller; plaintext
// has none.
std::shared_ptr<grpc::ServerCredentials> CredentialsOf(
    const std::shared_ptr<RoleGuard>& guard_or_null) {
  if (guard_or_null == nullptr) return grpc::InsecureServerCredentials();
  const std::shared_ptr<grpc::ServerCredentials> credentials =
      ProcessIdentityOrNull()->ForServers();
  credentials->SetAuthMetadataProcessor(guard_or_null);
  return credentials;
}

// Returns the folders of durable state, each of which may be a disk of its own.
std::vector<std::string> StorageFolders(const ServerOptions& options) {
  if (!options.storage.has_value()) return {};
  std::vector<std::string> folders = options.storage->drives;
  folders.push_back(options.storage->path);
  return folders;
}

// How the process meets others: who may call it, and on which disks it keeps its state. Immutable.
class Exposure {
 public:
  // `guard_or_null` checks the callers; null without TLS.
  Exposure(const ServerOptions& options, std::shared_ptr<RoleGuard> guard_or_null)
      : insecure_(!IsLoopback(options.listen) && !UsesTls(options.listen)),
        folders_(StorageFolders(options)),
        guard_(std::move(guard_or_null)) {}

  const std::shared_ptr<RoleGuard>& guard_or_null() const { return guard_; }
  // Returns all facts but those about the board.
  ProcessFacts Facts() const;

 private:
  const bool insecure_;                     // other machines can connect, and without TLS
  const std::vector<std::string> folders_;  // of durable state
  const std::shared_ptr<RoleGuard> guard_;
};

ProcessFacts Exposure::Facts() const {
  ProcessFacts facts;
  facts.insecure = insecure_;
  if (guard_ != nullptr) {
    facts.denied = guard_->denied();
    facts.certificate_end = ProcessIdentityOrNull()->CertificateEnd();
  }
  for (const std::string& folder : folders_) {
    const absl::StatusOr<uint64_t> free = FreeBytes(folder);
    if (free.ok()) facts.disk_free_bytes[folder] = *free;
  }
  return facts;
}

void AddLinkBytes(const DeviceLinks& links, v1::StatusReply* status) {
  links.bytes.ForEach([&](Link link, Direction direction, Purpose purpose, uint64_t bytes) {
    if (bytes == 0) return;
    v1::LinkBytes* const added = status->add_link_bytes();
    added->set_device(links.device);
    added->set_link(NameOf(link));
    added->set_direction(NameOf(direction));
    added->set_purpose(NameOf(purpose));
    added->set_bytes(bytes);
  });
}

}  // namespace

class Server::Impl {
 public:
  Impl(const ServerOptions& options, MemoryAccount* account,
       std::unique_ptr<DurableStorage> storage_or_null, std::shared_ptr<RoleGuard> guard_or_null)
      : storage_(std::move(storage_or_null)),
        pool_(std::make_unique<ThreadPool>(
            options.threads > 0 ? options.threads : static_cast<int>(UsableProcessors()))),
        exposure_(options, std::move(guard_or_null)),
        peers_(options.peers),
        host_(std::make_unique<JobHost>(Environment(options, account), Records(), &peers_)),
        control_(host_.get(), &process_),
        data_(host_.get(), &process_),
        shard_(host_.get()) {
    process_.account = account;
    process_.incarnation = host_->environment().incarnation;
    if (storage_ == nullptr) return;
    process_.add_storage = [storage = storage_.get()](v1::StatusReply* status) {
      const FillMeter& meter = storage->fill_meter();
      (*status->mutable_counters())["fill_wanted_bytes"] = meter.wanted_bytes();
      (*status->mutable_counters())["filled_bytes"] = meter.filled_bytes();
      for (const DeviceLinks& links : storage->link_bytes()) AddLinkBytes(links, status);
    };
  }
  ~Impl() { Shutdown(std::chrono::milliseconds(0)); }

  // Answers probes and scrapes. Call it first, so that probes see a server that takes long to
  // start.
  absl::Status ServeHttp(const std::string& listen);
  // Opens the board of jobs. Call it before Listen. `end_process` is ServerOptions::end_process.
  absl::Status OpenBoard(std::function<void()> end_process);
  // Reopens the job that the previous process on this storage served, if there was one.
  absl::Status Reopen();
  absl::Status Listen(const ServerOptions& options);
  // Shares memory with the workers of this machine, or says why not. Call it before Listen.
  void ShareMemory(const ServerOptions& options);
  // Refuses new work.
  void Refuse();
  void Drain(std::function<void(const std::string&)> drained);
  bool HasUnfinishedJob() const;
  void LogWaits();
  void Shutdown(std::chrono::milliseconds grace);
  bool WaitForTermination(std::chrono::milliseconds timeout);

  int port() const { return acceptor_ == nullptr ? 0 : acceptor_->port(); }
  const std::string& address() const { return process_.address; }

 private:
  ShellEnvironment Environment(const ServerOptions& options, MemoryAccount* account) {
    ShellEnvironment environment = ShellEnvironment::Default();
    environment.pool = pool_.get();
    environment.timers = &timers_;
    environment.account = account;
    environment.incarnation = NewIncarnation();
    environment.trace = options.trace;
    environment.limits.part_timeout_ms = options.part_timeout_ms;
    environment.limits.push_timeout_ms = options.push_timeout_ms;
    environment.limits.gate_timeout_ms = options.gate_timeout_ms;
    environment.unread_timeout = std::chrono::milliseconds(options.unread_timeout_ms);
    environment.limits.worker_lease_ms = options.worker_lease_ms;
    environment.limits.worker_close_grace_ms =
        options.worker_close_grace_ms.value_or(kAutoCloseGrace);
    environment.limits.worker_stuck_ms = options.worker_stuck_ms;
    environment.limits.jit_depth = options.jit_depth;
    environment.limits.cut_steps = options.cut_steps;
    environment.limits.cut_ms = options.cut_ms;
    environment.limits.scrub_bytes_per_second = options.scrub_bytes_per_second;
    if (storage_ != nullptr) {
      environment.durable = true;
      environment.gradients_in_memory = storage_->gradients_in_memory();
      environment.new_backend = [storage = storage_.get()](
                                    const JobSpec& spec, const ChunkMap& chunks,
                                    std::vector<ChunkId> owned, const ShardPlace& place,
                                    Executor* executor, MemoryAccount* account_of_job,
                                    BackendDoneFn done) {
        return storage->NewBackend(spec, chunks, std::move(owned), place, executor, account_of_job,
                                   std::move(done));
      };
    }
    return environment;
  }

  JobRecords Records() {
    JobRecords records;
    records.left_jobs = [this] { return board_->LeftJobs(); };
    records.board = [this] { return board_->board(); };
    records.find = [this](JobId job, const DriverLease& lease) { return board_->Find(job, lease); };
    if (storage_ != nullptr) {
      records.discard = [storage = storage_.get()](JobId job) { return storage->Discard(job); };
      records.remember = [storage = storage_.get()](const ServedJob& job) {
        return storage->Remember(job);
      };
    }
    return records;
  }

  const std::unique_ptr<DurableStorage> storage_;  // null if state is kept in memory only
  ProcessInfo process_;
  std::unique_ptr<ShmServer> shm_;  // null if memory is not shared
  TimerQueue timers_;
  std::unique_ptr<ThreadPool> pool_;
  const Exposure exposure_;
  GrpcPeers peers_;
  std::unique_ptr<JobHost> host_;
  // Its writes block. Ends before the board, which is opened by OpenBoard.
  std::unique_ptr<ThreadPool> board_thread_;
  std::unique_ptr<JobDesk> board_;
  std::unique_ptr<SchedulerService> scheduler_;
  ControlService control_;
  DataService data_;
  ShardService shard_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;    // null until the server listens
  std::unique_ptr<StatusEndpoint> http_;  // null if disabled or shut down

  Mutex mu_;
  CondVar ended_changed_;
  bool shutting_down_ EPS_GUARDED_BY(mu_) = false;
  bool ended_ EPS_GUARDED_BY(mu_) = false;
};

absl::Status Server::Impl::OpenBoard(std::function<void()> end_process) {
  board_thread_ = std::make_unique<ThreadPool>(1);
  JobDesk::Environment environment = JobDesk::Environment::Default();
  environment.executor = board_thread_.get();
  environment.timers_or_null = &timers_;
  environment.changed = [this] { host_->OnBoardChanged(); };
  EPS_ASSIGN_OR_RETURN(board_, JobDesk::Open(std::move(environment),
                                             storage_ == nullptr ? nullptr : storage_->records()));
  scheduler_ =
      std::make_unique<SchedulerService>(host_.get(), board_.get(), std::move(end_process));
  return absl::OkStatus();
}

absl::Status Server::Impl::Reopen() {
  EPS_ASSIGN_OR_RETURN(std::optional<ServedSpec> served, storage_->Served());
  if (!served.has_value()) return absl::OkStatus();
  return host_->Reopen(*std::move(served));
}

void Server::Impl::ShareMemory(const ServerOptions& options) {
  if (options.shm_weights_bytes == 0 || options.shm_gradients_bytes == 0) return;
  ShmOptions shm;
  shm.folder = options.shm_folder;
  shm.weights_bytes = options.shm_weights_bytes;
  shm.gradients_bytes = options.shm_gradients_bytes;
  shm.incarnation = process_.incarnation;
  shm.account = host_->environment().account;
  shm.needs = [this] {
    const std::shared_ptr<JobShell> job = host_->job();
    if (job == nullptr) return ShmNeeds();
    const JobShell::Needs& needs = job->needs();
    return ShmNeeds{needs.reserved, needs.weights, needs.gradients};
  };
  absl::StatusOr<std::unique_ptr<ShmServer>> started = ShmServer::Start(std::move(shm));
  if (!started.ok()) {
    EPS_LOG_WARN("workers of this machine get no shared memory: " << started.status().message()
                                                                  << " (servers.shm_folder)");
    return;
  }
  shm_ = *std::move(started);
  process_.shm_or_null = shm_.get();
}

absl::Status Server::Impl::Listen(const ServerOptions& options) {
  KeepGrpcInitialised();
  auto acceptor = Acceptor::Listen(options.listen, ConnectionLimit(options.max_connections),
                                   UsesTls(options.listen));
  if (!acceptor.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.listen,
                     ": the port is taken (is another server running?) or the host is not an "
                     "address of this machine (",
                     std::string(acceptor.status().message()), "); change servers.listen"));
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetServerOptions(&builder);
  if (exposure_.guard_or_null() != nullptr) SetConnectionAge(options.connection_age_ms, &builder);
  grpc::ResourceQuota transports("server");
  transports.Resize(std::clamp(process_.account->limit_bytes() / kTransportShare,
                               kMinTransportBytes, kMaxTransportBytes));
  builder.SetResourceQuota(transports);
  auto connections = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      CredentialsOf(exposure_.guard_or_null()));
  builder.RegisterService(&control_);
  builder.RegisterService(&data_);
  builder.RegisterService(&shard_);
  builder.RegisterService(scheduler_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC could not start the server");
  acceptor_ = *std::move(acceptor);
  process_.address = absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port());
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  for (const char* service : {kLive, kReady, kDefault}) health->SetServingStatus(service, true);
  acceptor_->Start(std::move(connections));
  if (http_ != nullptr) http_->SetPhase(StatusEndpoint::Phase::kReady);
  return absl::OkStatus();
}

absl::Status Server::Impl::ServeHttp(const std::string& listen) {
  EPS_ASSIGN_OR_RETURN(http_, StatusEndpoint::Start(
                                  listen,
                                  [this](std::function<void(v1::StatusReply)> done) {
                                    control_.GetStatus(std::move(done));
                                  },
                                  [this] {
                                    ProcessFacts facts = exposure_.Facts();
                                    facts.board = board_->Counts();
                                    return facts;
                                  }));
  EPS_LOG_INFO("probes and metrics: http://" << http_->address());
  return absl::OkStatus();
}

void Server::Impl::Refuse() {
  host_->Drain();
  if (http_ != nullptr) http_->SetPhase(StatusEndpoint::Phase::kStopping);
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  for (const char* service : {kReady, kDefault}) health->SetServingStatus(service, false);
}

void Server::Impl::Drain(std::function<void(const std::string&)> drained) {
  Refuse();
  if (const std::shared_ptr<JobShell> job = host_->job()) return job->Drain(std::move(drained));
  drained("there is no job");
}

bool Server::Impl::HasUnfinishedJob() const {
  const std::shared_ptr<JobShell> job = host_->job();
  return job != nullptr && job->state() != v1::JOB_STATE_DONE;
}

void Server::Impl::LogWaits() {
  control_.GetStatus([](const v1::StatusReply& status) {
    for (const v1::Wait& wait : status.waits()) {
      EPS_LOG_INFO(wait.what() << " waits for " << wait.waits_for());
    }
  });
}

void Server::Impl::Shutdown(std::chrono::milliseconds grace) {
  {
    MutexLock lock(&mu_);
    if (shutting_down_) return;
    shutting_down_ = true;
  }
  http_.reset();
  if (acceptor_ != nullptr) acceptor_->Stop();
  if (server_ != nullptr) {
    Refuse();
    peers_.Stop();
    board_->Stop(absl::UnavailableError("this server is shutting down"));
    if (const std::shared_ptr<JobShell> job = host_->job()) {
      // This drops the open step, which is safe: no part of it is durable yet.
      job->CloseStreams(absl::UnavailableError("this server is shutting down"));
    }
    server_->Shutdown(std::chrono::system_clock::now() + grace);
  } else {
    peers_.Stop();
  }
  if (shm_ != nullptr) shm_->Stop();
  // No call is left. Once the job and the timers end, nothing posts to the pool or to the board.
  host_->Close();
  timers_.Stop();
  board_thread_.reset();
  pool_.reset();
  MutexLock lock(&mu_);
  ended_ = true;
  ended_changed_.NotifyAll();
}

bool Server::Impl::WaitForTermination(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(&mu_);
  while (!ended_) {
    if (!ended_changed_.WaitUntil(&mu_, deadline)) return ended_;
  }
  return true;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  EPS_RETURN_IF_ERROR(CheckListen(options));
  if (!options.http.empty()) {
    const absl::Status valid = CheckAddress(options.http, /*allow_any_port=*/true);
    if (!valid.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers.http: ", std::string(valid.message())));
    }
  }
  for (const std::string& peer : options.peers) {
    const absl::Status valid = CheckAddress(peer, /*allow_any_port=*/true);
    if (!valid.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers.peers: ", std::string(valid.message())));
    }
  }
  uint64_t limit = options.memory_limit_bytes;
  if (limit == 0) {
    EPS_ASSIGN_OR_RETURN(limit, AvailableMemory());
  }
  std::shared_ptr<RoleGuard> guard;
  if (UsesTls(options.listen)) {
    EPS_ASSIGN_OR_RETURN(
        guard, RoleGuard::Create(ProcessIdentityOrNull()->trust_domain(), options.tokens));
  }
  std::unique_ptr<DurableStorage> storage;
  if (options.storage.has_value()) {
    EPS_ASSIGN_OR_RETURN(storage, DurableStorage::Open(*options.storage));
  }
  auto impl =
      std::make_unique<Impl>(options, NewAccount(limit), std::move(storage), std::move(guard));
  if (!options.http.empty()) EPS_RETURN_IF_ERROR(impl->ServeHttp(options.http));
  EPS_RETURN_IF_ERROR(impl->OpenBoard(options.end_process));
  if (options.storage.has_value() && options.storage->reopen) EPS_RETURN_IF_ERROR(impl->Reopen());
  impl->ShareMemory(options);
  EPS_RETURN_IF_ERROR(impl->Listen(options));
  EPS_LOG_INFO("listening on " << impl->address() << ", memory limit " << limit << " bytes");
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

int Server::port() const { return impl_->port(); }
const std::string& Server::address() const { return impl_->address(); }
void Server::Drain(std::function<void(const std::string& why)> drained) {
  impl_->Drain(std::move(drained));
}
bool Server::HasUnfinishedJob() const { return impl_->HasUnfinishedJob(); }
void Server::LogWaits() { impl_->LogWaits(); }
void Server::Shutdown(std::chrono::milliseconds grace) { impl_->Shutdown(grace); }
bool Server::WaitForTermination(std::chrono::milliseconds timeout) {
  return impl_->WaitForTermination(timeout);
}

}  // namespace eps
