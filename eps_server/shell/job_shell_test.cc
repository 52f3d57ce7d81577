#include "eps_server/shell/job_shell.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/job/layout/chunk_map.h"
#include "base/testing/test_specs.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kTimeout{300};

// Asks a function for the effects of each event, and records all events.
class ScriptedProtocol final : public Protocol {
 public:
  using Script = std::function<void(const Event&, std::vector<Effect>*)>;
  ScriptedProtocol(Script script, std::vector<Event>* events)
      : script_(std::move(script)), events_(events) {}
  void Handle(const Event& event, uint64_t, std::vector<Effect>* out) override {
    events_->push_back(event);
    script_(event, out);
  }
  void FillStatus(uint64_t, v1::StatusReply* status) const override { status->set_step(5); }
  v1::JobState state() const override { return v1::JOB_STATE_RUNNING; }

 private:
  const Script script_;
  std::vector<Event>* const events_;
};

// Records operations and completes them only when the test calls Complete.
class ManualBackend final : public StateBackend {
 public:
  explicit ManualBackend(BackendDoneFn done, std::vector<std::string>* calls)
      : done_(std::move(done)), calls_(calls) {}
  Caps caps() const override { return Caps(); }
  void Submit(OpId op, Request request) override {
    calls_->push_back(VisitRequest(NameOf(), request) + " " + std::to_string(op.value()));
  }
  void Recycle(CutId oldest_kept) override {
    calls_->push_back("recycle step " + std::to_string(oldest_kept.step.value()));
  }
  void Complete(OpId op) { done_(BackendDone{op, absl::OkStatus(), {}}); }

 private:
  struct NameOf {
    std::string operator()(const ReadRequest&) const { return "read"; }
    std::string operator()(const ReadStateRequest&) const { return "read state"; }
    std::string operator()(const WriteStateRequest&) const { return "write state"; }
    std::string operator()(const InitializeRequest&) const { return "initialize"; }
    std::string operator()(const ReduceRequest&) const { return "reduce"; }
    std::string operator()(const MeasureRequest&) const { return "measure"; }
    std::string operator()(const UpdateRequest&) const { return "update"; }
    template <class Other>
    std::string operator()(const Other&) const {
      return "other";
    }
  };
  const BackendDoneFn done_;
  std::vector<std::string>* const calls_;
};

// An RPC that records the effects that it receives.
class RecordingSink final : public StreamSink {
 public:
  void OnClose(const absl::Status& status) override { closed.push_back(status); }
  void OnReply(const effect::ReplyMessage&) override { ++replies; }
  void OnCredit(uint64_t tag) override { credits.push_back(tag); }
  void OnImportTaken() override { ++taken; }
  std::vector<absl::Status> closed;
  std::vector<uint64_t> credits;
  int replies = 0;
  int taken = 0;
};

class JobShellTest : public ::testing::Test {
 protected:
  void SetUp() override { Create({"a:1"}, ShardId(0)); }
  void TearDown() override {
    shell_.reset();
    timers_.Stop();  // a timer that fires posts to the pool
    pool_.reset();
  }

  void Create(std::vector<std::string> servers, ShardId shard) {
    shell_.reset();
    ShellEnvironment environment = ShellEnvironment::Default();
    environment.pool = pool_.get();
    environment.timers = &timers_;
    environment.account = &account_;
    environment.abort = [this](ExitCode code, const std::string& why) {
      aborted_ = std::to_string(static_cast<int>(code)) + " " + why;
    };
    environment.new_protocol = [this](ShardCore::Options) -> std::unique_ptr<Protocol> {
      return std::make_unique<ScriptedProtocol>(
          [this](const Event& event, std::vector<Effect>* out) { script_(event, out); }, &events_);
    };
    environment.new_backend = [this](const JobSpec&, const ChunkMap&, std::vector<ChunkId>,
                                     const ShardPlace&, Executor*, MemoryAccount*,
                                     BackendDoneFn done) {
      auto backend = std::make_unique<ManualBackend>(std::move(done), &calls_);
      backend_ = backend.get();
      return absl::StatusOr<std::unique_ptr<StateBackend>>(std::move(backend));
    };
    auto shell =
        JobShell::Create(TinySyntheticSpec(), std::move(servers), shard, Term(1), environment);
    ASSERT_TRUE(shell.ok()) << shell.status();
    shell_ = *std::move(shell);
  }

  // Waits until everything that was posted before has been handled.
  void Settle() {
    const auto done = std::make_shared<std::promise<void>>();
    shell_->Run([done] { done->set_value(); });
    ASSERT_EQ(done->get_future().wait_for(kTimeout), std::future_status::ready);
  }

  MemoryAccount account_;
  TimerQueue timers_;
  std::unique_ptr<ThreadPool> pool_ = std::make_unique<ThreadPool>(2);
  ScriptedProtocol::Script script_ = [](const Event&, std::vector<Effect>*) {};
  std::vector<Event> events_;       // written on the sequence
  std::vector<std::string> calls_;  // written on the sequence
  std::string aborted_;
  ManualBackend* backend_ = nullptr;
  std::shared_ptr<JobShell> shell_;
};

TEST_F(JobShellTest, HandsEventsToTheCoreInOrder) {
  for (uint64_t i = 0; i < 1000; ++i) shell_->Post(event::Gate{StreamId(1), "driver", i});
  Settle();
  ASSERT_EQ(events_.size(), 1000u);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(std::get<event::Gate>(events_[i]).step, i);
}

TEST_F(JobShellTest, DeliversEffectsToLiveStreamsOnly) {
  auto sink = std::make_shared<RecordingSink>();
  const StreamId here = shell_->AddStream(sink);
  const StreamId gone = shell_->AddStream(std::make_shared<RecordingSink>());
  script_ = [&](const Event& event, std::vector<Effect>* out) {
    if (!std::holds_alternative<event::Gate>(event)) return;
    out->push_back(effect::Credit{gone, 1});
    out->push_back(effect::Credit{StreamId(4711), 2});
    out->push_back(effect::Credit{here, 3});
    out->push_back(effect::Credit{here, 4});
    out->push_back(effect::Close{here, absl::OkStatus()});
  };
  shell_->Post(event::Gate{});
  Settle();
  EXPECT_EQ(sink->credits, (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(sink->closed.size(), 1u);
}

TEST_F(JobShellTest, StartsBackendOperationsAndReportsTheirOutcome) {
  script_ = [&](const Event& event, std::vector<Effect>* out) {
    if (!std::holds_alternative<event::Gate>(event)) return;
    out->push_back(effect::Start{OpId(1), InitializeRequest{ChunkId(0)}});
    out->push_back(effect::Start{
        OpId(2), ReadRequest{ChunkId(0), Version(0), *FindCodec("fp32"), Axis::kRow}});
    out->push_back(effect::Start{OpId(3), ReadStateRequest{ChunkId(0), Version(0)}});
    out->push_back(effect::Start{OpId(4), UpdateRequest{}});
    out->push_back(effect::Start{OpId(5), ReduceRequest{}});
    out->push_back(effect::Recycle{{Step(6), Term(1)}});
  };
  EXPECT_TRUE(shell_->untouched());
  shell_->Post(event::Gate{});
  Settle();
  EXPECT_EQ(calls_, (std::vector<std::string>{"initialize 1", "read 2", "read state 3", "update 4",
                                              "reduce 5", "recycle step 6"}));
  EXPECT_FALSE(shell_->untouched());
  backend_->Complete(OpId(3));
  Settle();
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(std::get<event::OpDone>(events_[1]).done.op, OpId(3));
}

TEST_F(JobShellTest, RoutesMessagesByShard) {
  Create({"a:1", "b:1", "c:1"}, ShardId(1));
  script_ = [&](const Event& event, std::vector<Effect>* out) {
    if (!std::holds_alternative<event::Gate>(event)) return;
    v1::ShardMessage message;
    message.mutable_stats()->set_step(8);
    out->push_back(effect::ToShard{ShardId(1), message});
    message.mutable_stats()->set_step(9);
    out->push_back(effect::ToShard{ShardId(2), message});
  };
  shell_->Post(event::Gate{});
  Settle();
  Settle();
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(std::get<event::FromShard>(events_[1]).from, ShardId(1));
  EXPECT_EQ(std::get<event::FromShard>(events_[1]).message.stats().step(), 8u);
  std::vector<uint64_t> sent;
  shell_->mailbox(ShardId(2)).Open([&](const v1::ShardMessage& m) {
    sent.push_back(m.stats().step());
  });
  EXPECT_EQ(sent, (std::vector<uint64_t>{9}));
}

TEST_F(JobShellTest, FiresTimersThatWereNotCleared) {
  std::promise<void> fired;
  script_ = [&](const Event& event, std::vector<Effect>* out) {
    if (std::holds_alternative<event::Gate>(event)) {
      out->push_back(effect::SetTimer{TimerId(1), 10});
      out->push_back(effect::SetTimer{TimerId(2), 10});
      out->push_back(effect::SetTimer{TimerId(3), 60'000});
      out->push_back(effect::SetTimer{TimerId(3), 30});  // replaces the 60 s timer
      out->push_back(effect::ClearTimer{TimerId(1)});
      out->push_back(effect::ClearTimer{TimerId(99)});
    }
    const auto* timer = std::get_if<event::Timer>(&event);
    if (timer != nullptr && timer->id == TimerId(3)) fired.set_value();
  };
  shell_->Post(event::Gate{});
  ASSERT_EQ(fired.get_future().wait_for(kTimeout), std::future_status::ready);
  Settle();
  ASSERT_EQ(events_.size(), 3u);
  EXPECT_EQ(std::get<event::Timer>(events_[1]).id, TimerId(2));
}

TEST_F(JobShellTest, ReportsImportedChunksWrittenOrRefused) {
  auto sink = std::make_shared<RecordingSink>();
  const StreamId stream = shell_->AddStream(sink);
  script_ = [&](const Event& event, std::vector<Effect>* out) {
    const auto* import = std::get_if<event::ImportChunk>(&event);
    if (import == nullptr || import->chunk == ChunkId(1)) return;
    out->push_back(
        effect::Start{OpId(7), WriteStateRequest{import->chunk, import->version, import->state}});
  };
  shell_->Post(event::ImportChunk{stream, ChunkId(0), Version(0), Bytes()});
  Settle();
  EXPECT_EQ(sink->taken, 0) << "the backend still holds it";
  shell_->Post(event::ImportChunk{stream, ChunkId(1), Version(0), Bytes()});
  Settle();
  EXPECT_EQ(sink->taken, 1) << "the core started no operation for it";
  backend_->Complete(OpId(7));
  Settle();
  EXPECT_EQ(sink->taken, 2);
  backend_->Complete(OpId(8));
  Settle();
  EXPECT_EQ(sink->taken, 2);
}

TEST_F(JobShellTest, AbortsWithTheExitCodeGiven) {
  script_ = [&](const Event&, std::vector<Effect>* out) {
    out->push_back(effect::Abort{ExitCode::kInternal, "impossible"});
  };
  shell_->Post(event::Gate{});
  Settle();
  EXPECT_EQ(aborted_, "70 impossible");
}

TEST_F(JobShellTest, ClosesPresentAndLaterStreams) {
  auto before = std::make_shared<RecordingSink>();
  auto after = std::make_shared<RecordingSink>();
  shell_->AddStream(before);
  shell_->CloseStreams(absl::UnavailableError("the end"));
  shell_->AddStream(after);
  Settle();
  EXPECT_GE(before->closed.size(), 1u);
  ASSERT_GE(after->closed.size(), 1u) << "must be closed; twice is allowed";
  EXPECT_EQ(after->closed[0].message(), "the end");
}

TEST_F(JobShellTest, AddsItsCountersToTheStatus) {
  shell_->counters().payloads_refused = 3;
  const auto reply = std::make_shared<std::promise<v1::StatusReply>>();
  shell_->GetStatus([reply](v1::StatusReply status) { reply->set_value(std::move(status)); });
  auto future = reply->get_future();
  ASSERT_EQ(future.wait_for(kTimeout), std::future_status::ready);
  const v1::StatusReply status = future.get();
  EXPECT_EQ(status.step(), 5u);
  EXPECT_EQ(status.counters().at("payloads_refused"), 3u);
}

TEST(JobShellMemory, ReservesStateAndContributionsTogether) {
  const JobSpec spec = TinySyntheticSpec();
  ThreadPool pool(1);
  TimerQueue timers;
  ShellEnvironment environment = ShellEnvironment::Default();
  environment.pool = &pool;
  environment.timers = &timers;
  MemoryAccount plenty;
  environment.account = &plenty;
  uint64_t needed = 0;
  {
    const auto shell = JobShell::Create(spec, {"a:1"}, ShardId(0), Term(1), environment);
    ASSERT_TRUE(shell.ok()) << shell.status();
    needed = (*shell)->needs().reserved;
    EXPECT_GT(needed, plenty.live_bytes()) << "contributions are not charged yet";
  }
  for (const uint64_t missing : {0, 1}) {
    MemoryAccount account(needed - missing);
    environment.account = &account;
    {
      const auto shell = JobShell::Create(spec, {"a:1"}, ShardId(0), Term(1), environment);
      EXPECT_EQ(shell.ok(), missing == 0) << shell.status();
      if (!shell.ok()) {
        EXPECT_EQ(shell.status().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_NE(shell.status().message().find("servers.memory_limit"), std::string::npos);
      }
    }
    // Shells are destroyed on the timer thread.
    const auto done = std::make_shared<std::promise<void>>();
    timers.Schedule(std::chrono::milliseconds(0), [done] { done->set_value(); });
    ASSERT_EQ(done->get_future().wait_for(kTimeout), std::future_status::ready);
    EXPECT_EQ(account.live_bytes(), 0u);
  }
}

TEST(JobShellMemory, ReservedBytesExcludeOtherJobs) {
  ThreadPool pool(1);
  TimerQueue timers;
  MemoryAccount account;
  ShellEnvironment environment = ShellEnvironment::Default();
  environment.pool = &pool;
  environment.timers = &timers;
  environment.account = &account;
  const JobSpec spec = TinySyntheticSpec();
  const auto alone = JobShell::Create(spec, {"a:1"}, ShardId(0), Term(1), environment);
  ASSERT_TRUE(alone.ok()) << alone.status();
  // The state of another job is freed while this one reserves its own.
  constexpr uint64_t kOther = 4096;
  account.Charge(MemoryKind::kState, kOther);
  environment.new_backend = [real = environment.new_backend, &account](auto&&... arguments) {
    account.Release(MemoryKind::kState, kOther);
    return real(std::forward<decltype(arguments)>(arguments)...);
  };
  const auto beside = JobShell::Create(spec, {"a:1"}, ShardId(0), Term(1), environment);
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ((*beside)->needs().reserved, (*alone)->needs().reserved);
}

TEST(JobShellMemory, StoredGradientsNeedNoMemory) {
  JobSpec spec = TinySyntheticSpec();
  spec.training.mode = Mode::kSealed;
  ThreadPool pool(1);
  TimerQueue timers;
  MemoryAccount account;
  ShellEnvironment environment = ShellEnvironment::Default();
  environment.pool = &pool;
  environment.timers = &timers;
  environment.account = &account;
  uint64_t gradient_bytes = 0;
  for (const Chunk& chunk : ChunkMap::Build(spec).chunks()) gradient_bytes += 4 * chunk.elements;
  std::vector<uint64_t> reserved;
  // All of the state in memory, half of it, and nothing.
  for (const uint64_t bytes : {3 * gradient_bytes, 3 * gradient_bytes / 2, uint64_t{0}}) {
    environment.gradients_in_memory = bytes;
    const auto shell = JobShell::Create(spec, {"a:1"}, ShardId(0), Term(1), environment);
    ASSERT_TRUE(shell.ok()) << shell.status();
    reserved.push_back((*shell)->needs().reserved);
  }
  EXPECT_EQ(reserved[0] - reserved[2], gradient_bytes);
  EXPECT_LT(reserved[1], reserved[0]);
  EXPECT_GT(reserved[1], reserved[2]);
  EXPECT_LE(reserved[1] - reserved[2], gradient_bytes / 2);
}

TEST(JobShellMemory, NeedsCountWeightsOnTheirWay) {
  const JobSpec spec = TinySyntheticSpec();
  ThreadPool pool(1);
  TimerQueue timers;
  MemoryAccount account;
  ShellEnvironment environment = ShellEnvironment::Default();
  environment.pool = &pool;
  environment.timers = &timers;
  environment.account = &account;
  // FP32 weights in whole pages, by stage.
  const ChunkMap chunks = ChunkMap::Build(spec);
  std::vector<uint64_t> stages(spec.stages.size(), 0);
  for (const Chunk& chunk : chunks.chunks()) {
    for (const StageId use : chunk.uses) {
      stages[use.value()] += (4 * chunk.elements + 4095) / 4096 * 4096;
    }
  }
  std::sort(stages.rbegin(), stages.rend());
  for (const uint32_t ahead : {0, 1, 100}) {
    environment.limits.jit_depth = ahead;
    const auto shell = JobShell::Create(spec, {"a:1"}, ShardId(0), Term(1), environment);
    ASSERT_TRUE(shell.ok()) << shell.status();
    const size_t most = std::min<size_t>(stages.size(), ahead + 3);
    uint64_t expected = 0;
    for (size_t i = 0; i < most; ++i) expected += stages[i];
    EXPECT_EQ((*shell)->needs().weights, expected) << ahead;
  }
}

}  // namespace
}  // namespace eps
