// A shard with one thread: the updates that a sealed decision starts hold back neither its core nor
// the first fetches of the next step. Everything is counted in tasks.

#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/testing/test_specs.h"
#include "compression/codec.h"
#include "eps_server/shell/job_shell.h"
#include "gtest/gtest.h"
#include "storage/backends/dram_backend.h"

namespace eps {
namespace {

constexpr std::chrono::seconds kTimeout{300};
constexpr uint64_t kTokens = 100;

// All counts belong to the pool's only thread.
struct Counts {
  int updated = 0;      // chunks that the backend has updated
  int heard = 0;        // of them, those of which the core has heard
  int most_behind = 0;  // the most that the core had not heard of when it handled an event
  std::map<uint32_t, int> updated_when_sent;  // by stage: `updated` when its fetch was answered
};

// The real core.
class CountingProtocol final : public Protocol {
 public:
  CountingProtocol(ShardCore::Options options, Counts* counts)
      : core_(std::move(options)), counts_(counts) {}
  void Handle(const Event& event, uint64_t now_ms, std::vector<Effect>* out) override {
    counts_->most_behind = std::max(counts_->most_behind, counts_->updated - counts_->heard);
    const auto* done = std::get_if<event::OpDone>(&event);
    if (done != nullptr && updates_.erase(done->done.op) > 0) ++counts_->heard;
    core_.Handle(event, now_ms, out);
    for (const Effect& effect : *out) {
      const auto* start = std::get_if<effect::Start>(&effect);
      if (start != nullptr && RequestAs<UpdateRequest>(start->request) != nullptr) {
        updates_.insert(start->op);
      }
    }
  }
  void FillStatus(uint64_t now_ms, v1::StatusReply* status) const override {
    core_.FillStatus(now_ms, status);
  }
  v1::JobState state() const override { return core_.state(); }

 private:
  ShardCore core_;
  Counts* const counts_;
  std::set<OpId> updates_;
};

class ReplySink final : public StreamSink {
 public:
  void OnClose(const absl::Status& status) override { ADD_FAILURE() << status; }
  void OnReply(const effect::ReplyMessage&) override { replied.set_value(); }
  std::promise<void> replied;
};

JobSpec Spec() {
  JobSpec spec = TinySyntheticSpec();
  spec.chunk_elements = 2048;
  spec.training.parts = 1;
  spec.training.mode = Mode::kSealed;
  spec.training.clip = Clip::kExact;
  EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  return spec;
}

class ShardLanesTest : public ::testing::Test {
 protected:
  ShardLanesTest() {
    ShellEnvironment environment = ShellEnvironment::Default();
    environment.pool = pool_.get();
    environment.timers = &timers_;
    environment.account = &account_;
    environment.new_protocol = [this](ShardCore::Options options) -> std::unique_ptr<Protocol> {
      return std::make_unique<CountingProtocol>(std::move(options), &counts_);
    };
    environment.new_backend =
        [this](const JobSpec& spec, const ChunkMap& chunks, std::vector<ChunkId> owned,
               const ShardPlace&, Executor* executor, MemoryAccount* account, BackendDoneFn done) {
          const auto count = [this, done = std::move(done)](BackendDone outcome) {
            const auto* result = std::get_if<UpdateResult>(&outcome.value);
            if (result != nullptr && result->reduced == nullptr) ++counts_.updated;
            done(std::move(outcome));
          };
          return NewDramBackend(spec, chunks, std::move(owned), executor, account, count);
        };
    auto shell = JobShell::Create(Spec(), {"a:1"}, ShardId(0), Term(1), environment);
    EXPECT_TRUE(shell.ok()) << shell.status();
    shell_ = *std::move(shell);
  }
  ~ShardLanesTest() override {
    shell_.reset();
    timers_.Stop();  // a timer that fires posts to the pool
    pool_.reset();
  }

  size_t ChunksUpToStage(uint32_t stage) const {
    size_t chunks = 0;
    for (const Chunk& chunk : shell_->chunks().chunks()) {
      chunks += chunk.uses.front() <= StageId(stage) ? 1 : 0;
    }
    return chunks;
  }
  uint32_t stages() const { return static_cast<uint32_t>(shell_->spec().stages.size()); }

  MemoryAccount account_;
  TimerQueue timers_;
  std::unique_ptr<ThreadPool> pool_ = std::make_unique<ThreadPool>(1);
  Counts counts_;
  std::shared_ptr<JobShell> shell_;
};

// Sends a gradient as soon as it has credit.
class PushSink final : public StreamSink {
 public:
  explicit PushSink(JobShell* shell) : shell_(shell) {}
  void OnClose(const absl::Status& status) override { ADD_FAILURE() << status; }
  void OnCredit(uint64_t tag) override {
    const auto& [chunk, bytes] = payloads.at(tag);
    const Codec& codec = shell_->codecs().gradient(chunk, Step(1));
    const auto opened =
        codec.Open(shell_->chunks().chunk(chunk), Axis::kRow, bytes, Content::kGradient);
    ASSERT_TRUE(opened.ok()) << opened.status();
    shell_->Post(event::PushReceived{id, tag, *opened, Bytes()});
  }
  void OnAck(uint64_t, const v1::Ack& ack) override {
    EXPECT_EQ(ack.outcome(), v1::Ack::ACCEPTED) << ack.message();
  }

  StreamId id;
  std::map<uint64_t, std::pair<ChunkId, Bytes>> payloads;  // by tag; filled before the first push

 private:
  JobShell* const shell_;
};

// Fetches the stages of version 1 one after the other.
class FetchSink final : public StreamSink {
 public:
  FetchSink(JobShell* shell, Counts* counts) : shell_(shell), counts_(counts) {}
  void OnClose(const absl::Status& status) override { ADD_FAILURE() << status; }
  void OnFailFetch(const effect::FailFetch& e) override { ADD_FAILURE() << e.status; }
  void OnSendChunk(const effect::SendChunk& e) override {
    if (!e.completes_fetch) return;
    counts_->updated_when_sent[stage_] = counts_->updated;
    if (++stage_ == shell_->spec().stages.size()) return all_sent.set_value();
    Fetch();
  }
  void Fetch() {
    v1::FetchRequest request;
    request.set_tag(stage_ + 1);
    request.set_job_id(shell_->id().value());
    request.set_term(1);
    request.set_stage(stage_);
    request.set_version(1);
    request.set_pass(v1::PASS_FORWARD);
    shell_->Post(event::Fetch{id, std::move(request)});
  }

  StreamId id;
  std::promise<void> all_sent;

 private:
  JobShell* const shell_;
  Counts* const counts_;
  uint32_t stage_ = 0;
};

TEST_F(ShardLanesTest, UpdatesHoldBackNoEventOrFetch) {
  const auto import = std::make_shared<ReplySink>();
  const StreamId import_stream = shell_->AddStream(import);
  shell_->Post(event::ImportInitialize{import_stream});
  shell_->Post(event::ImportFinish{import_stream, Step(0), Version(0), 0, 0});
  ASSERT_EQ(import->replied.get_future().wait_for(kTimeout), std::future_status::ready);

  const auto fetch = std::make_shared<FetchSink>(shell_.get(), &counts_);
  fetch->id = shell_->AddStream(fetch);
  fetch->Fetch();  // waits for the update of its chunks

  const auto push = std::make_shared<PushSink>(shell_.get());
  push->id = shell_->AddStream(push);
  std::vector<v1::PushHeader> headers;
  for (const Chunk& chunk : shell_->chunks().chunks()) {
    const Codec& codec = shell_->codecs().gradient(chunk.id, Step(1));
    const std::vector<float> gradient(chunk.elements, 0.25f);
    for (const StageId use : chunk.uses) {
      const Bytes bytes = EncodeChunk(codec, chunk, EncodeOptions(), gradient.data());
      v1::PushHeader header;
      header.set_tag(headers.size() + 1);
      header.set_codec(static_cast<uint32_t>(codec.traits().id));
      header.set_bytes(bytes.size());
      header.set_tokens(kTokens);
      header.set_worker_nonce(7);
      v1::ContributionKey* key = header.mutable_key();
      key->set_job_id(shell_->id().value());
      key->set_term(1);
      key->set_step(1);
      key->set_use_stage(use.value());
      key->set_part_count(1);
      key->set_chunk(chunk.id.value());
      push->payloads.emplace(header.tag(), std::make_pair(chunk.id, bytes));
      headers.push_back(std::move(header));
    }
  }
  for (const v1::PushHeader& header : headers) shell_->Post(event::PushOffered{push->id, header});
  // The lead decides once it knows the loss of every part.
  const auto report = std::make_shared<ReplySink>();
  v1::BeginStepRequest losses;
  losses.set_job_id(shell_->id().value());
  losses.set_term(1);
  losses.set_step(2);
  losses.set_worker_nonce(7);
  losses.add_parts(0);
  v1::PartLoss* loss = losses.add_losses();
  loss->set_step(1);
  loss->set_loss_sum(50);
  loss->set_tokens(kTokens);
  shell_->Post(event::BeginStep{shell_->AddStream(report), losses});
  ASSERT_EQ(fetch->all_sent.get_future().wait_for(kTimeout), std::future_status::ready);
  ASSERT_EQ(report->replied.get_future().wait_for(kTimeout), std::future_status::ready);

  const auto chunks = static_cast<int>(shell_->chunks().chunks().size());
  ASSERT_GE(chunks, 10);
  EXPECT_EQ(counts_.heard, chunks);
  EXPECT_EQ(counts_.most_behind, 1) << "the core waits for one running update, not for all";
  for (uint32_t stage = 0; stage < stages(); ++stage) {
    EXPECT_EQ(counts_.updated_when_sent[stage], static_cast<int>(ChunksUpToStage(stage)))
        << "stage " << stage << " of " << stages() << ", " << chunks << " chunks";
  }
}

}  // namespace
}  // namespace eps
