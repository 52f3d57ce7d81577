#include "cli/commands/watch/cluster_watch.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "wire/scheduler_client.h"

namespace eps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterval{1000};
constexpr std::chrono::milliseconds kCallTimeout{2000};
constexpr std::chrono::milliseconds kConnectTimeout{3000};
constexpr size_t kMostSteps = 4000;

int64_t WallMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Returns the text of an error. An error may be long, and the page has a line for it.
std::string ShortText(const absl::Status& status) {
  return std::string(status.message().substr(0, 300));
}

// Asks a server for its status. Connects unless `*client` is connected.
absl::StatusOr<v1::StatusReply> Look(const std::string& address,
                                     std::unique_ptr<ControlClient>* client) {
  if (*client == nullptr) {
    EPS_ASSIGN_OR_RETURN(*client,
                         ControlClient::Connect({address}, Clock::now() + kConnectTimeout));
  }
  return (*client)->GetStatus(0, kCallTimeout);
}

// Asks the lead for its board. Connects unless `*client` is connected.
absl::StatusOr<v1::ListJobsReply> LookAtBoardOf(const std::string& lead,
                                                std::unique_ptr<SchedulerClient>* client) {
  if (*client == nullptr) {
    EPS_ASSIGN_OR_RETURN(*client, SchedulerClient::Connect(lead, Clock::now() + kConnectTimeout));
  }
  return (*client)->List();
}

}  // namespace

ClusterWatch::ClusterWatch(std::vector<std::string> servers)
    : addresses_(std::move(servers)), servers_(addresses_.size()), history_(kMostSteps) {
  for (size_t i = 0; i < addresses_.size(); ++i) servers_[i].view.address = addresses_[i];
  for (size_t i = 0; i < addresses_.size(); ++i) {
    threads_.emplace_back([this, i] { LookAtServer(i); });
  }
  threads_.emplace_back([this] { LookAtBoard(); });
  threads_.emplace_back([this] { FollowSteps(); });
}

ClusterWatch::~ClusterWatch() {
  {
    MutexLock lock(&mu_);
    ends_ = true;
    changed_.NotifyAll();
    if (follower_ != nullptr) follower_->CancelWatch();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ClusterWatch::Pause() {
  const auto deadline = Clock::now() + kInterval;
  MutexLock lock(&mu_);
  while (!ends_) {
    if (!changed_.WaitUntil(&mu_, deadline)) break;
  }
  return !ends_;
}

void ClusterWatch::LookAtServer(size_t index) {
  const std::string& address = addresses_[index];
  std::unique_ptr<ControlClient> client;
  do {
    absl::StatusOr<v1::StatusReply> status = Look(address, &client);
    // A server that was away for long is found again by a new connection.
    if (!status.ok()) client.reset();
    MutexLock lock(&mu_);
    Server& server = servers_[index];
    server.asked = true;
    if (status.ok()) {
      events_.OnStatus(WallMs(), address, *status);
      server.view.error.clear();
      server.view.seen = true;
      server.view.status = *std::move(status);
      server.answered = Clock::now();
    } else {
      server.view.error = ShortText(status.status());
      events_.OnAway(WallMs(), address);
    }
    changed_.NotifyAll();
  } while (Pause());
}

void ClusterWatch::LookAtBoard() {
  std::unique_ptr<SchedulerClient> client;
  do {
    absl::StatusOr<v1::ListJobsReply> board = LookAtBoardOf(addresses_[0], &client);
    if (!board.ok()) client.reset();
    MutexLock lock(&mu_);
    board_asked_ = true;
    if (board.ok()) {
      events_.OnBoard(WallMs(), *board);
      board_ = *std::move(board);
    }
    changed_.NotifyAll();
  } while (Pause());
}

void ClusterWatch::FollowSteps() {
  do {
    uint64_t job_id = 0;
    {
      MutexLock lock(&mu_);
      const Server& lead = servers_[0];
      if (lead.view.seen && lead.view.error.empty()) job_id = lead.view.status.job_id();
      if (job_id != 0 && job_id != followed_job_) {
        followed_job_ = job_id;
        history_.Clear();
      }
    }
    if (job_id != 0) FollowJob(job_id);
  } while (Pause());
}

void ClusterWatch::FollowJob(uint64_t job_id) {
  auto connected = ControlClient::Connect({addresses_[0]}, Clock::now() + kConnectTimeout);
  if (!connected.ok()) return;
  std::shared_ptr<ControlClient> client = *std::move(connected);
  client->FollowJob(JobId(job_id));
  uint64_t last = 0;
  {
    MutexLock lock(&mu_);
    if (ends_) return;
    follower_ = client;
    const v1::StepRecord* const step = history_.last_step_or_null();
    if (step != nullptr) last = step->step();
  }
  // Whatever ends the stream, the next look at the lead says what to follow.
  (void)client->Watch(last, /*until_evaluation=*/0, [this](const v1::StepRecord& record) {
    MutexLock lock(&mu_);
    history_.Add(record);
  });
  MutexLock lock(&mu_);
  follower_.reset();
}

ClusterWatch::View ClusterWatch::Now() const {
  const auto now = Clock::now();
  MutexLock lock(&mu_);
  View view;
  for (const Server& server : servers_) {
    view.servers.push_back(server.view);
    if (!server.view.seen) continue;
    view.servers.back().age_seconds = std::chrono::duration<double>(now - server.answered).count();
  }
  view.board = board_;
  view.events = events_.events();
  return view;
}

ClusterWatch::Steps ClusterWatch::StepsAfter(uint64_t job_id, uint64_t serial) const {
  MutexLock lock(&mu_);
  return {followed_job_, history_.After(job_id == followed_job_ ? serial : 0)};
}

void ClusterWatch::WaitForFirstLook(Clock::time_point deadline) {
  MutexLock lock(&mu_);
  const auto asked = [this]() EPS_REQUIRES(mu_) {
    for (const Server& server : servers_) {
      if (!server.asked) return false;
    }
    return board_asked_;
  };
  while (!asked()) {
    if (!changed_.WaitUntil(&mu_, deadline)) return;
  }
}

}  // namespace eps
