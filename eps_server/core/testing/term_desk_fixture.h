#ifndef EPS_SERVER_CORE_TESTING_TERM_DESK_FIXTURE_H_
#define EPS_SERVER_CORE_TESTING_TERM_DESK_FIXTURE_H_

// A TermDesk alone: the fixture plays the other shard, and answers for the backend.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "eps/v1/shard.pb.h"
#include "eps_server/core/cuts/recovery.h"
#include "eps_server/core/cuts/term_desk.h"
#include "eps_server/core/testing/fake_outbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/cuts/cut.h"
#include "storage/state_backend.h"

namespace eps {

inline constexpr uint64_t kProcess = 21;  // of shard 1

// A cut after `step` of term 1, made after training had begun.
inline CutBorder CutAfter(uint64_t step) {
  CutBorder border;
  border.id = CutId{Step(step), Term(1)};
  border.version = Version(step);
  border.opened = true;
  return border;
}

// Matches a message to a shard that contains `text`.
inline testing::Matcher<std::string> Sends(uint32_t to, const std::string& text) {
  return testing::AllOf(testing::StartsWith("ToShard " + std::to_string(to) + " {"),
                        testing::HasSubstr(text));
}

// For one thread. On the lead of a durable job of two shards, unless the test asks for the other
// one.
class TermDeskTest : public testing::Test {
 protected:
  TermDeskTest() { Make(ShardId(0)); }

  // A new process: the desk of a shard that does not know yet what its disk holds.
  void Make(ShardId shard) {
    job_.shard = shard;
    job_.caps.durable = true;
    facts_ = std::make_unique<ShardFacts>(job_.MakeFacts());
    facts_->term = Term(0);
    facts_->incarnation = 11;
    facts_->state = v1::JOB_STATE_RECOVERING;
    facts_->step = 0;
    recovery_ = std::make_unique<Recovery>(facts_->job.servers);
    MakeDesk();
    outbox_.on_to_lead = nullptr;
    if (shard == ShardId(0)) {
      outbox_.on_to_lead = [this](const v1::ShardMessage& m) {
        desk_->OnMessage(event::FromShard{ShardId(0), m});
      };
    }
  }
  void MakeDesk() {
    desk_ = std::make_unique<TermDesk>(facts_.get(),
                                       facts_->job.is_lead() ? recovery_.get() : nullptr, &outbox_);
  }
  // Expects that the desk ended its term since the last call; continues as the router does.
  void NextTerm(uint64_t expected) {
    const auto over = outbox_.TakeRaised<internal_event::TermOver>();
    ASSERT_EQ(over.size(), 1u);
    ASSERT_EQ(over[0].next, Term(expected));
    facts_->term = over[0].next;
    facts_->state = v1::JOB_STATE_RECOVERING;
    const std::unique_ptr<TermDesk> before = std::move(desk_);
    MakeDesk();
    desk_->Continue(*before);
  }

  // ---- answers of the backend, to the newest call
  void Complete(BackendValue value = absl::monostate(), absl::Status status = absl::OkStatus()) {
    BackendDone done;
    done.op = outbox_.last_op;
    done.status = std::move(status);
    done.value = std::move(value);
    EXPECT_TRUE(desk_->On(event::OpDone{done}));
  }
  void Find(uint64_t promised, std::vector<CutBorder> cuts) {
    auto found = std::make_shared<RecoveredState>();
    found->promised = Term(promised);
    found->cuts = std::move(cuts);
    Complete(std::shared_ptr<const RecoveredState>(std::move(found)));
  }
  void Open(uint64_t promised, std::vector<CutBorder> cuts = {}) {
    desk_->On(event::Opened());
    Find(promised, std::move(cuts));
  }
  // Promises the term that began, and finds the cuts once all is quiet.
  void Promise(std::vector<CutBorder> cuts) {
    Complete();
    Complete();
    Find(facts_->term.value(), std::move(cuts));
  }
  void Restore(std::vector<std::string> records = {}) {
    auto content = std::make_shared<CutContent>();
    content->records = std::move(records);
    Complete(std::shared_ptr<const CutContent>(std::move(content)));
  }

  // ---- messages of the other shard, in the facts' term
  v1::ShardMessage Message() const {
    v1::ShardMessage m = facts_->NewMessage();
    m.set_from(1);
    return m;
  }
  void Receive(const v1::ShardMessage& m, uint32_t from = 1) {
    EXPECT_TRUE(desk_->OnMessage(event::FromShard{ShardId(from), m}));
  }
  void Register(uint64_t incarnation, uint64_t promised, uint64_t most_cut_steps = 0) {
    v1::ShardMessage m = Message();
    m.mutable_register_()->set_incarnation(incarnation);
    m.mutable_register_()->set_promised_term(promised);
    m.mutable_register_()->set_most_cut_steps(most_cut_steps);
    Receive(m);
  }
  void OtherPromises(const std::vector<CutBorder>& cuts) {
    v1::ShardMessage m = Message();
    m.mutable_promised()->set_term(facts_->term.value());
    for (const CutBorder& cut : cuts) {
      *m.mutable_promised()->add_cuts() = ToProto(cut.id);
      m.mutable_promised()->set_opened(true);
    }
    Receive(m);
  }
  void AskForTerm(uint64_t term) {
    v1::ShardMessage m;
    m.mutable_new_term()->set_term(term);
    Receive(m, /*from=*/0);
  }
  void AskToRestore(const CutId& cut) {
    v1::ShardMessage m = facts_->NewMessage();
    *m.mutable_restore()->mutable_cut() = ToProto(cut);
    Receive(m, /*from=*/0);
  }
  void AskToRollBack(uint64_t term) {
    v1::ShardMessage m = Message();
    m.set_term(term);
    m.mutable_roll_back();
    Receive(m);
  }

  // ---- positions in a job's life
  // The lead begins term 1: both shards are there, and neither promised anything.
  void BeginTerm1() {
    Open(0);
    Register(kProcess, 0);
    NextTerm(1);
  }
  // The job runs in term 1, from the cut after step 2.
  void Run() {
    BeginTerm1();
    Promise({CutAfter(2)});
    OtherPromises({CutAfter(2)});
    Restore();
    facts_->cuts.base = CutAfter(2).id;
    facts_->state = v1::JOB_STATE_RUNNING;
    facts_->step = 3;
    desk_->On(internal_event::BorderOpened());
    outbox_.Take();
    outbox_.raised.clear();
  }
  // Shard 1 begins `term`: its promise is not durable yet.
  void JoinTerm(uint64_t term) {
    Make(ShardId(1));
    Open(0);
    AskForTerm(term);
    NextTerm(term);
    outbox_.Take();
  }
  size_t TermsOver() { return outbox_.TakeRaised<internal_event::TermOver>().size(); }

  SmallJob job_{2};
  FakeOutbox outbox_;
  std::unique_ptr<ShardFacts> facts_;
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<TermDesk> desk_;
};

}  // namespace eps

#endif  // EPS_SERVER_CORE_TESTING_TERM_DESK_FIXTURE_H_
