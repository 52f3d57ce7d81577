#include "eps_server/rpc/lead_link.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/log.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {

// One Link RPC. The link owns it and outlives the RPC.
class LeadLink::Attempt final : public grpc::ClientBidiReactor<v1::ShardMessage, v1::ShardMessage>,
                                public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(LeadLink* link, std::shared_ptr<JobShell> job) : link_(link), job_(std::move(job)) {}

  void Start() {
    link_->stub_->async()->Link(&context_, this);
    AddHold();  // keeps the RPC alive, because other threads write messages
    StartRead(&incoming_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(&mu_);
      up_ = true;
    }
    job_->Post(event::LinkUp{ShardId(0)});
    // Runs after LinkUp was handled, so the core's Register is in the mailbox and is sent first.
    // The job is alive while it runs this function, even if job_ has been reset.
    job_->Run([self = shared_from_this(), job = job_.get()] {
      self->OpenMailbox(&job->mailbox(ShardId(0)));
    });
  }

  void OpenMailbox(PeerMailbox* mailbox) {
    const uint64_t ticket =
        mailbox->Open([weak = weak_from_this()](const v1::ShardMessage& message) {
          if (auto self = weak.lock()) self->Write(message);
        });
    bool broken = false;
    {
      MutexLock lock(&mu_);
      ticket_ = ticket;
      broken = broken_;
    }
    if (broken) mailbox->Close(ticket);
  }

  void Write(const v1::ShardMessage& message) {
    MutexLock lock(&mu_);
    if (broken_) return;
    queue_.push_back(message);
    WriteNextLocked();
  }

  void WriteNextLocked() EPS_REQUIRES(mu_) {
    if (writing_ || broken_ || queue_.empty()) return;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) WriteNextLocked();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      job_->Post(event::FromShard{ShardId(0), incoming_});
      StartRead(&incoming_);
      return;
    }
    uint64_t ticket = 0;
    {
      MutexLock lock(&mu_);
      broken_ = true;
      queue_.clear();
      ticket = ticket_;
    }
    job_->mailbox(ShardId(0)).Close(ticket);
    RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    bool was_up = false;
    {
      MutexLock lock(&mu_);
      was_up = up_;
    }
    if (was_up) job_->Post(event::LinkDown{ShardId(0)});
    job_.reset();
    link_->OnAttemptDone(was_up, status);  // may destroy this object
  }

  LeadLink* const link_;
  std::shared_ptr<JobShell> job_;  // used by the reactions; OnDone, the last one, resets it
  grpc::ClientContext context_;
  v1::ShardMessage incoming_;  // belongs to the transport while a read is in flight
  v1::ShardMessage outgoing_;  // belongs to the transport while writing_
  Mutex mu_;
  std::deque<v1::ShardMessage> queue_ EPS_GUARDED_BY(mu_);
  bool up_ EPS_GUARDED_BY(mu_) = false;
  bool writing_ EPS_GUARDED_BY(mu_) = false;
  bool broken_ EPS_GUARDED_BY(mu_) = false;
  uint64_t ticket_ EPS_GUARDED_BY(mu_) = 0;
};

LeadLink::LeadLink(std::shared_ptr<JobShell> job, std::function<void()> gone)
    : lead_(job->servers()[0]),
      timers_(job->timers()),
      gone_(std::move(gone)),
      stub_(v1::Shard::NewStub(NewChannel(lead_))),
      job_(std::move(job)) {}

std::shared_ptr<LeadLink> LeadLink::Open(std::shared_ptr<JobShell> job,
                                         std::function<void()> gone) {
  std::shared_ptr<LeadLink> link(new LeadLink(std::move(job), std::move(gone)));
  link->Connect();
  return link;
}

void LeadLink::Connect() {
  std::shared_ptr<Attempt> before;
  MutexLock lock(&mu_);
  if (stopping_) return;
  before = std::move(attempt_);
  attempt_ = std::make_shared<Attempt>(this, job_);
  attempt_in_work_ = true;
  began_ = TimerQueue::Clock::now();
  attempt_->Start();
}

void LeadLink::OnAttemptDone(bool was_up, const grpc::Status& status) {
  std::shared_ptr<JobShell> dropped;
  bool over = false;
  if (was_up) {
    EPS_LOG_INFO("the link to the lead " << lead_
                                         << " has ended: " << FromGrpc(status, "Link").ToString());
  }
  {
    MutexLock lock(&mu_);
    attempt_in_work_ = false;
    over = stopping_;
    if (over) {
      dropped = std::move(job_);
    } else {
      const bool lasted = TimerQueue::Clock::now() - began_ >= kMaxBackoff;
      if (was_up && lasted) backoff_ = kMinBackoff;
      retry_ = timers_->Schedule(backoff_, [weak = weak_from_this()] {
        if (auto link = weak.lock()) link->Connect();
      });
      backoff_ = std::min<std::chrono::milliseconds>(2 * backoff_, kMaxBackoff);
    }
  }
  dropped.reset();
  if (over) gone_();  // may destroy this object
}

void LeadLink::Stop() {
  std::shared_ptr<Attempt> attempt;
  std::shared_ptr<JobShell> dropped;
  TimerQueue::Handle retry = 0;
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    retry = retry_;
    if (attempt_in_work_) {
      attempt = attempt_;
    } else {
      dropped = std::move(job_);
    }
  }
  timers_->Cancel(retry);
  if (attempt != nullptr) return attempt->Cancel();
  dropped.reset();
  gone_();
}

}  // namespace eps
