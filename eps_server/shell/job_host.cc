#include "eps_server/shell/job_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "eps_server/shell/job_request.h"

namespace eps {
namespace {

// The part of the caller's deadline that the lead reserves for its own reply.
constexpr std::chrono::milliseconds kReplyMargin{500};
// The memory of a retired job is usually free after some milliseconds.
constexpr std::chrono::milliseconds kRetiredPoll{5};
constexpr int kRetiredPolls = 2000;
constexpr size_t kMaxConfigBytes = size_t{256} << 10;

bool Has(const std::vector<v1::LeftJob>& left, JobId job) {
  return std::any_of(left.begin(), left.end(),
                     [&](const v1::LeftJob& one) { return JobId(one.job_id()) == job; });
}

}  // namespace

struct JobHost::Creation {
  std::shared_ptr<JobShell> job;
  DriverLease driver;
  std::vector<Created> waiters;
  std::vector<std::function<void()>> later;  // CreateJobs of later drivers, from the beginning
  std::vector<absl::Status> results;         // by shard
  uint32_t missing = 0;
};

JobHost::JobHost(ShellEnvironment environment, JobRecords records, PeerCaller* peers)
    : environment_(std::move(environment)),
      records_(std::move(records)),
      peers_(peers),
      admission_(environment_.pool->lane(Lane::kClient), Sequence::kLongTasks) {}

JobHost::~JobHost() = default;

std::shared_ptr<JobShell> JobHost::job() const {
  MutexLock lock(&mu_);
  return job_;
}

std::string JobHost::config() const {
  MutexLock lock(&mu_);
  return config_;
}

JobScope JobHost::scope() const {
  MutexLock lock(&mu_);
  return scope_;
}

absl::StatusOr<std::shared_ptr<JobShell>> JobHost::Find(uint64_t job_id,
                                                        const CallerScope& caller) const {
  std::shared_ptr<JobShell> job;
  JobScope scope;
  {
    MutexLock lock(&mu_);
    job = job_;
    scope = scope_;
  }
  if (job == nullptr) {
    return absl::NotFoundError(
        "this server runs no job; CreateJob makes one (a server that was "
        "restarted has lost its job: start the job again with --resume=latest)");
  }
  EPS_RETURN_IF_ERROR(caller.Check(scope));
  if (job_id != 0 && JobId(job_id) != job->id()) {
    return absl::NotFoundError(absl::StrCat("job ", absl::Hex(job_id),
                                            " is not here; this server "
                                            "runs job \"",
                                            job->spec().name, "\" (", absl::Hex(job->id().value()),
                                            ")"));
  }
  if (!ready_.load(std::memory_order_acquire)) {
    return absl::UnavailableError(absl::StrCat(
        "job \"", job->spec().name, "\" is being prepared on ", job->servers().size(), " servers"));
  }
  if (job->full()) {
    return absl::UnavailableError(absl::StrCat("job \"", job->spec().name, "\" has ",
                                               JobShell::kMaxStreams,
                                               " open calls on this server, the most that it may "
                                               "have; end some, or try again later"));
  }
  return job;
}

absl::Status JobHost::CheckNotDraining() const {
  if (!draining_.load(std::memory_order_acquire)) return absl::OkStatus();
  return absl::UnavailableError("this server is shutting down and accepts no new jobs and workers");
}

void JobHost::Install(std::shared_ptr<JobShell> job, const JobScope& scope) {
  EPS_LOG_INFO("job \"" << job->spec().name << "\" (" << absl::StrCat(absl::Hex(job->id().value()))
                        << "): shard " << job->shard() << " of " << job->servers().size() << ", "
                        << job->needs().reserved << " bytes reserved");
  MutexLock lock(&mu_);
  job_ = std::move(job);
  scope_ = scope;
  config_.clear();
}

absl::Status JobHost::CheckPeers(const std::vector<std::string>& servers, uint32_t shard) const {
  const bool is_lead = shard == 0;
  const size_t end = is_lead ? servers.size() : 1;
  for (size_t other = is_lead ? 1 : 0; other < end; ++other) {
    const absl::Status allowed = peers_->CheckPeer(servers[other]);
    if (allowed.ok()) continue;
    return absl::Status(allowed.code(), absl::StrCat("shard ", shard, " cannot connect to shard ",
                                                     other, ": ", std::string(allowed.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<JobShell>> JobHost::Make(JobSpec spec,
                                                        std::vector<std::string> servers,
                                                        ShardId shard, Term term,
                                                        const Holder& holder) {
  ShellEnvironment environment = environment_;
  environment.lifetime = std::make_shared<int>(0);
  retired_ = environment.lifetime;
  EPS_ASSIGN_OR_RETURN(
      std::shared_ptr<JobShell> job,
      JobShell::Create(std::move(spec), std::move(servers), shard, term, environment));
  if (records_.remember) {
    EPS_RETURN_IF_ERROR(
        records_.remember({job->id(), job->servers(), holder.driver, holder.scope}));
  }
  retired_.reset();
  Install(job, holder.scope);
  driver_ = holder.driver;
  driver_everywhere_ = !driver_.exists();
  if (driver_.exists()) job->Post(event::NewDriver{driver_});
  TellStanding();
  return job;
}

absl::Status JobHost::Reopen(ServedSpec served) {
  if (served.shard != ShardId(0)) {
    EPS_RETURN_IF_ERROR(CheckPeers(served.servers, served.shard.value()));
  }
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<JobShell> job,
                       Make(std::move(served.spec), std::move(served.servers), served.shard,
                            Term(1), {served.driver, served.scope}));
  ready_.store(true, std::memory_order_release);
  if (!job->is_lead()) peers_->OpenLink(job);
  return absl::OkStatus();
}

void JobHost::Retire(const absl::Status& why) {
  const std::shared_ptr<JobShell> job = Drop();
  ready_.store(false, std::memory_order_release);
  driver_ = DriverLease();
  if (job == nullptr) return;
  EPS_LOG_INFO("job \"" << job->spec().name << "\" is discarded: " << why.ToString());
  peers_->CloseLink();
  job->CloseStreams(why);
  retired_ = job->lifetime();
}

std::vector<v1::LeftJob> JobHost::LeftJobs() const {
  return records_.left_jobs ? records_.left_jobs() : std::vector<v1::LeftJob>();
}

absl::Status JobHost::CheckDriver(const JobSpec& spec, const DriverLease& lease) const {
  const std::string& name = spec.name;
  if (!lease.exists()) {
    if (!driver_.exists() || Has(LeftJobs(), spec.id())) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("job \"", name,
                     "\" is driven through the board of jobs (eps job ls); cancel "
                     "it there before you train it without the board"));
  }
  if (!records_.board || lease.board != records_.board()) {
    return absl::AbortedError(absl::StrCat(
        "job \"", name, "\": the driver's lease is not of this server's board of jobs"));
  }
  if (!lease.IsBefore(driver_)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("job \"", name, "\": this driver's lease (generation ",
                                         lease.generation, ") is over; the driver with generation ",
                                         driver_.generation, " has the job"));
}

JobHost::Holder JobHost::HolderOf(const JobSpec& spec, const DriverLease& lease) const {
  Holder holder = {lease, {spec.name, 0}};
  if (!lease.exists() || !records_.find) return holder;
  const BoardJob found = records_.find(spec.id(), lease);
  if (!found.scope.name.empty()) holder.scope = found.scope;
  return holder;
}

absl::Status JobHost::TakeHolder(const Holder& holder) {
  if (holder.driver == driver_ && holder.scope == scope()) return absl::OkStatus();
  const std::shared_ptr<JobShell> job = this->job();
  if (records_.remember) {
    EPS_RETURN_IF_ERROR(
        records_.remember({job->id(), job->servers(), holder.driver, holder.scope}));
  }
  {
    MutexLock lock(&mu_);
    scope_ = holder.scope;
  }
  if (holder.driver == driver_) return absl::OkStatus();
  driver_ = holder.driver;
  driver_everywhere_ = false;
  job->Post(event::NewDriver{driver_});
  TellStanding();
  return absl::OkStatus();
}

void JobHost::OnBoardChanged() {
  admission_.Post([this] { TellStanding(); });
}

void JobHost::TellStanding() {
  const std::shared_ptr<JobShell> job = this->job();
  if (job == nullptr || !job->is_lead() || !records_.find) return;
  event::Standing standing;
  if (driver_.exists()) {
    const BoardJob found = records_.find(job->id(), driver_);
    standing.standing = found.standing;
    standing.workers = found.workers;
  }
  job->Post(standing);
}

void JobHost::Discard(const std::vector<v1::LeftJob>& left, JobId but) const {
  if (!records_.discard) return;
  for (const v1::LeftJob& one : left) {
    if (one.keep_state() || JobId(one.job_id()) == but) continue;
    const absl::Status discarded = records_.discard(JobId(one.job_id()));
    if (!discarded.ok()) EPS_LOG_WARN("the state of a job that has ended stays: " << discarded);
  }
}

void JobHost::WhenRetiredIsGone(std::function<void()> then, int attempts) {
  if (retired_.expired() || attempts == kRetiredPolls) return then();
  environment_.timers->Schedule(kRetiredPoll, [this, then = std::move(then), attempts] {
    admission_.Post([this, then, attempts] { WhenRetiredIsGone(then, attempts + 1); });
  });
}

void JobHost::Close() {
  MutexLock lock(&mu_);
  admission_.Post([this] {
    if (const std::shared_ptr<JobShell> last = Drop()) retired_ = last->lifetime();
    WhenRetiredIsGone([this] {
      MutexLock closing(&mu_);
      closed_ = true;
      closed_changed_.NotifyAll();
    });
  });
  while (!closed_) closed_changed_.WaitFor(&mu_, std::chrono::seconds(10));
}

std::shared_ptr<JobShell> JobHost::Drop() {
  MutexLock lock(&mu_);
  return std::exchange(job_, nullptr);
}

void JobHost::CreateJob(v1::CreateJobRequest request, CallerScope caller,
                        Clock::time_point deadline, Created done) {
  admission_.Post([this, request = std::move(request), caller = std::move(caller), deadline,
                   done = std::move(done)] {
    WhenRetiredIsGone(
        [this, request, caller, deadline, done] { DoCreate(request, caller, deadline, done); });
  });
}

void JobHost::PrepareJob(v1::PrepareJobRequest request, Prepared done) {
  admission_.Post([this, request = std::move(request), done = std::move(done)] {
    WhenRetiredIsGone([this, request, done] { DoPrepare(request, done); });
  });
}

void JobHost::DoCreate(const v1::CreateJobRequest& request, const CallerScope& caller,
                       Clock::time_point deadline, Created done) {
  absl::Status status = CheckNotDraining();
  if (!status.ok()) return done(status);
  auto spec = ParseSpec(request.spec_text());
  if (!spec.ok()) return done(spec.status());
  auto servers = CheckServers(request.servers());
  if (!servers.ok()) return done(servers.status());
  status = CheckPeers(*servers, 0);
  if (!status.ok()) return done(status);
  if (request.config().size() > kMaxConfigBytes) {
    return done(absl::InvalidArgumentError(absl::StrCat("CreateJob: a configuration of ",
                                                        request.config().size(), " bytes; at most ",
                                                        kMaxConfigBytes, " are allowed")));
  }

  const Holder holder = HolderOf(*spec, ToDriverLease(request.lease()));
  const DriverLease& driver = holder.driver;
  status = caller.Check(holder.scope);
  if (!status.ok()) return done(status);
  std::shared_ptr<JobShell> existing = job();
  if (existing != nullptr && !Matches(*existing, *spec, *servers, 0)) {
    if (!Has(LeftJobs(), existing->id())) {
      status = caller.Check(scope());
      if (!status.ok()) {
        return done(absl::AlreadyExistsError("this server has a job that the caller may not see"));
      }
      return done(OtherJob(*existing, *spec, *servers, 0, environment_.durable));
    }
    existing.reset();
    Retire(absl::AbortedError("it has ended, and another job takes its place"));
    return WhenRetiredIsGone(
        [this, request, caller, deadline, done] { DoCreate(request, caller, deadline, done); });
  }
  status = CheckDriver(*spec, driver);
  if (!status.ok()) return done(status);
  if (existing == nullptr) {
    Discard(LeftJobs(), spec->id());
    auto created = Make(*std::move(spec), *std::move(servers), ShardId(0), Term(1), holder);
    if (!created.ok()) return done(created.status());
    existing = *std::move(created);
  }
  status = TakeHolder(holder);
  if (!status.ok()) return done(status);
  if (!request.config().empty()) {
    MutexLock lock(&mu_);
    config_ = request.config();
  }
  // While the job recovers, a shard with a new data directory may not know it yet.
  const bool asks_nobody = existing->state() != v1::JOB_STATE_RECOVERING && driver_everywhere_;
  if (ready_.load(std::memory_order_acquire) && asks_nobody) {
    if (driver.exists()) existing->Post(event::RestartImport{});
    return Reply(existing, std::move(done));
  }
  if (creation_ != nullptr) {
    if (creation_->driver == driver) {
      creation_->waiters.push_back(std::move(done));
    } else {
      creation_->later.push_back([this, request, caller, deadline, done = std::move(done)] {
        DoCreate(request, caller, deadline, done);
      });
    }
    return;
  }
  creation_ = std::make_shared<Creation>();
  creation_->job = existing;
  creation_->driver = driver;
  creation_->waiters.push_back(std::move(done));
  PrepareShards(deadline);
}

void JobHost::PrepareShards(Clock::time_point deadline) {
  const std::shared_ptr<Creation> creation = creation_;
  const std::shared_ptr<JobShell> job = creation->job;
  creation->results.resize(job->servers().size());
  // Counts the lead as well, so that a job with one shard takes the same path.
  creation->missing = static_cast<uint32_t>(job->servers().size());
  for (uint32_t shard = 1; shard < job->servers().size(); ++shard) {
    v1::PrepareJobRequest request;
    request.set_request_id(absl::StrCat("prepare-", absl::Hex(job->id().value()), "-", shard));
    request.set_spec_text(job->spec_text());
    for (const std::string& server : job->servers()) request.add_servers(server);
    request.set_shard(shard);
    request.set_term(1);
    if (creation->driver.exists()) SetMessage(creation->driver, request.mutable_lease());
    SetMessage(scope(), request.mutable_scope());
    for (const v1::LeftJob& one : LeftJobs()) *request.add_left_jobs() = one;
    peers_->Prepare(job->servers()[shard], std::move(request), deadline - kReplyMargin,
                    [this, creation, shard](absl::StatusOr<v1::PrepareJobReply> reply) {
                      admission_.Post([this, creation, shard, status = reply.status()] {
                        OnPrepared(creation, shard, status);
                      });
                    });
  }
  OnPrepared(creation, 0, absl::OkStatus());
}

void JobHost::OnPrepared(const std::shared_ptr<Creation>& creation, uint32_t shard,
                         absl::Status status) {
  creation->results[shard] = std::move(status);
  if (--creation->missing > 0) return;
  creation_.reset();
  absl::Status first;
  for (uint32_t s = 0; s < creation->results.size() && first.ok(); ++s) {
    const absl::Status& result = creation->results[s];
    if (result.ok()) continue;
    first =
        absl::Status(result.code(), absl::StrCat("shard ", s, " at ", creation->job->servers()[s],
                                                 ": ", std::string(result.message())));
  }
  const bool was_ready = ready_.load(std::memory_order_acquire);
  ready_.store(was_ready || first.ok(), std::memory_order_release);
  if (first.ok()) {
    driver_everywhere_ = creation->driver == driver_;
    // Nobody has imported anything into a job that has just been made.
    if (was_ready && creation->driver.exists()) creation->job->Post(event::RestartImport{});
    for (Created& waiter : creation->waiters) Reply(creation->job, std::move(waiter));
  } else {
    if (!was_ready && creation->job->untouched() && job() == creation->job) Retire(first);
    for (Created& waiter : creation->waiters) waiter(first);
  }
  for (const std::function<void()>& create : creation->later) admission_.Post(create);
}

void JobHost::Reply(std::shared_ptr<JobShell> job, Created done) {
  JobShell* shell = job.get();
  shell->GetStatus([done = std::move(done), id = shell->id()](const v1::StatusReply& status) {
    v1::CreateJobReply reply;
    reply.set_job_id(id.value());
    reply.set_term(status.term());
    reply.set_step(std::max<uint64_t>(status.step(), 1));
    reply.set_state(status.state());
    done(reply);
  });
}

void JobHost::DoPrepare(const v1::PrepareJobRequest& request, Prepared done) {
  absl::Status status = CheckNotDraining();
  if (!status.ok()) return done(status);
  auto spec = ParseSpec(request.spec_text());
  if (!spec.ok()) return done(spec.status());
  auto servers = CheckServers(request.servers());
  if (!servers.ok()) return done(servers.status());
  const uint32_t shard = request.shard();
  if (shard == 0 || shard >= servers->size()) {
    return done(absl::InvalidArgumentError(absl::StrCat(
        "PrepareJob: shard ", shard, " of ", servers->size(), "; 1 to ", servers->size() - 1,
        " are prepared by the lead, shard 0 is the lead itself")));
  }
  status = CheckPeers(*servers, shard);
  if (!status.ok()) return done(status);
  const std::vector<v1::LeftJob> left(request.left_jobs().begin(), request.left_jobs().end());
  std::shared_ptr<JobShell> existing = job();
  if (existing != nullptr && !Matches(*existing, *spec, *servers, shard)) {
    // A lead holds one job at a time, so it has discarded the job that it prepared here before.
    const bool gives_way = !existing->is_lead() && existing->servers()[0] == servers->front() &&
                           (existing->untouched() || Has(left, existing->id()));
    if (!gives_way) return done(OtherJob(*existing, *spec, *servers, shard, environment_.durable));
    existing.reset();
    Retire(absl::AbortedError("the lead prepares another job"));
    return WhenRetiredIsGone([this, request, done] { DoPrepare(request, done); });
  }
  const DriverLease driver = ToDriverLease(request.lease());
  const Holder holder = {driver, ToJobScope(request.scope())};
  if (existing == nullptr) {
    Discard(left, spec->id());
    const Term term(std::max<uint64_t>(request.term(), 1));
    auto created = Make(*std::move(spec), *std::move(servers), ShardId(shard), term, holder);
    if (!created.ok()) return done(created.status());
    existing = *std::move(created);
    ready_.store(true, std::memory_order_release);
    peers_->OpenLink(existing);
  }
  if (driver.exists()) {
    if (driver.IsBefore(driver_)) {
      return done(absl::AbortedError(
          absl::StrCat("PrepareJob: a driver with a later lease (generation ", driver_.generation,
                       ", not ", driver.generation, ") has created the job")));
    }
    status = TakeHolder(holder);
    if (!status.ok()) return done(status);
  }
  v1::PrepareJobReply reply;
  reply.set_job_id(existing->id().value());
  reply.set_incarnation(environment_.incarnation);
  reply.set_reserved_bytes(existing->needs().reserved);
  // After the job has taken the driver, and what earlier ones had sent before.
  existing->Run([done = std::move(done), reply] { done(reply); });
}

}  // namespace eps
