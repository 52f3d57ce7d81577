#ifndef EPS_WORKER_RELAY_TESTING_FAKE_CLIENT_H_
#define EPS_WORKER_RELAY_TESTING_FAKE_CLIENT_H_

// For tests only: all servers of a job in memory, with a log of their requests.

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/testing/relay_judge.h"

namespace eps {

// Counts how many objects exist, and how many existed at most.
struct Held {
  void Add() { most = std::max(most, ++now); }
  void Remove() { --now; }
  int now = 0;
  int most = 0;
};

// All servers of a job in memory. Fetched weights arrive in Wait; until then the destination holds
// NaN, so that early use shows.
class FakeClient final : public ParameterClient {
 public:
  FakeClient(const JobSpec& spec, int loss_scale_log2)
      : spec_(spec), weights_(InitialWeights(spec)), loss_scale_log2_(loss_scale_log2) {}
  ~FakeClient() override { StopReleasing(); }

  absl::StatusOr<JoinedJob> Join(const JoinOptions&) override {
    return absl::UnimplementedError("not used by a relay");
  }

  absl::StatusOr<StepStart> BeginStep(Step step) override {
    log.push_back(absl::StrCat("begin ", step.value()));
    flushed_ = false;
    if (step.value() > 1 + counted_steps) {
      uint64_t tokens = 0;
      for (const auto& [place, loss] : reported) {
        if (place.first + 1 == step.value()) tokens += loss.second;
      }
      Descend(ReducePlainly(spec_, PartsOf(step.value() - 1)), tokens, loss_scale_log2_, &weights_);
    }
    step_ = step;
    StepStart start;
    start.done = step.value() > spec_.training.steps;
    start.counted = step.value() <= counted_steps;
    start.step = step;
    start.version = Version(step.value() - 1);
    start.loss_scale_log2 = loss_scale_log2_;
    return start;
  }

  absl::Status ReportLosses(absl::Span<const PartLossSum> losses) override {
    std::string parts;
    for (const PartLossSum& loss : losses) {
      absl::StrAppend(&parts, " ", loss.part.value());
      const auto [it, fresh] = reported.emplace(std::make_pair(step_.value(), loss.part.value()),
                                                std::make_pair(loss.loss_sum, loss.tokens));
      EXPECT_TRUE(fresh) << "reported twice";
    }
    log.push_back(absl::StrCat("losses of parts", parts));
    return absl::OkStatus();
  }

  absl::Status ReportEvaluation(absl::Span<const PartLossSum> losses) override {
    log.push_back(absl::StrCat("evaluation ", step_.value() - 1));
    for (const PartLossSum& loss : losses) {
      const auto [it, fresh] =
          evaluated.emplace(std::make_pair(step_.value() - 1, loss.part.value()),
                            std::make_pair(loss.loss_sum, loss.tokens));
      EXPECT_TRUE(fresh);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<PendingFetch> FetchStage(StageId stage, Version version, bool backward,
                                           TensorPointers out) override {
    EXPECT_EQ(version.value(), step_.value() - (flushed_ ? 0 : 1)) << "weights of another step";
    log.push_back(absl::StrCat("fetch ", stage.value(), backward ? "b" : "f"));
    const bool two = backward && spec_.codecs.backward_weights == BackwardWeights::kBothAxes;
    EXPECT_EQ(out.size(), spec_.stages[stage.value()].uses.size() * (two ? 2 : 1));
    return std::make_unique<FakeFetch>(this, stage, std::move(out));
  }

  void PreparePush(StageId stage, Version version) override {
    EXPECT_EQ(version.value(), step_.value() - (flushed_ ? 0 : 1)) << "residuals of another step";
    log.push_back(absl::StrCat("prepare ", stage.value()));
  }

  absl::Status Push(StageId use, PartId part, uint64_t tokens, TensorPointers gradient,
                    std::shared_ptr<void> keep_alive) override {
    log.push_back(absl::StrCat("push ", use.value(), " part ", part.value()));
    Tensors& tensors = pushes[{step_.value(), use.value(), part.value()}];
    EXPECT_TRUE(tensors.empty()) << "pushed twice: " << log.back();
    for (size_t u = 0; u < gradient.size(); ++u) {
      const uint64_t size =
          spec_.tensors[spec_.stages[use.value()].uses[u].tensor.value()].elements();
      tensors.emplace_back(gradient[u], gradient[u] + size);
    }
    push_tokens.insert({{step_.value(), use.value(), part.value()}, tokens});
    if (fail_push_at == log.back()) return absl::UnavailableError("scripted push failure");
    if (releaser_.joinable()) {
      MutexLock lock(&mu_);
      kept_.push_back(std::move(keep_alive));
      most_kept = std::max(most_kept, kept_.size());
      more_.NotifyAll();
    }
    return absl::OkStatus();
  }

  absl::Status Flush() override {
    log.push_back("flush");
    flushed_ = true;
    return absl::OkStatus();
  }
  bool HandOver() override { return false; }
  absl::Status Leave() override { return absl::OkStatus(); }
  ClientStats stats() const override { return {}; }

  // From now on, another thread releases gradients late, one at a time, as soon as it has `full` of
  // them. It waits a little for one more: if a relay holds more than it may, most_kept shows it.
  void ReleaseLate(size_t full) {
    releaser_ = std::thread([this, full] {
      MutexLock lock(&mu_);
      while (!stop_ || !kept_.empty()) {
        const bool releases = kept_.size() >= full || stop_;
        const auto patience = std::chrono::milliseconds(releases ? 5 : 1000);
        const size_t before = kept_.size();
        const auto until = std::chrono::steady_clock::now() + patience;
        while (kept_.size() == before && !stop_ && more_.WaitUntil(&mu_, until)) {
        }
        if (releases) kept_.pop_front();
      }
    });
  }
  void StopReleasing() {
    if (!releaser_.joinable()) return;
    {
      MutexLock lock(&mu_);
      stop_ = true;
      more_.NotifyAll();
    }
    releaser_.join();
  }

  const Tensors& weights() const { return weights_; }

  uint64_t counted_steps = 0;  // the first steps, of which the servers have all contributions
  std::vector<std::string> log;
  Pushes pushes;
  std::map<PushKey, uint64_t> push_tokens;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<double, uint64_t>> reported;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<double, uint64_t>> evaluated;  // as reported
  std::string fail_push_at;
  std::string fail_fetch_at;
  size_t most_kept = 0;
  Held held;  // fetches

 private:
  // A fetch that fills its destination in Wait.
  class FakeFetch final : public PendingFetch {
   public:
    FakeFetch(FakeClient* client, StageId stage, TensorPointers out)
        : client_(client), stage_(stage), out_(std::move(out)), name_(client->log.back()) {
      client_->held.Add();
      for (size_t u = 0; u < out_.size(); ++u) {
        if (out_[u] == nullptr) continue;
        std::fill_n(out_[u], Tensor(client_->weights_, u).size(),
                    std::numeric_limits<float>::quiet_NaN());
      }
    }
    ~FakeFetch() override { client_->held.Remove(); }
    absl::Status Wait() override {
      if (client_->fail_fetch_at == name_) return absl::UnavailableError("scripted fetch failure");
      const Tensors first = Loaded(client_->spec_, client_->weights_);
      const Tensors second = SecondCopies(client_->weights_);
      for (size_t u = 0; u < out_.size(); ++u) {
        const std::vector<float>& from = Tensor(u < uses() ? first : second, u);
        if (out_[u] != nullptr) std::copy(from.begin(), from.end(), out_[u]);
      }
      return absl::OkStatus();
    }

   private:
    size_t uses() const { return client_->spec_.stages[stage_.value()].uses.size(); }
    // The tensor of the use to which a pointer belongs.
    const std::vector<float>& Tensor(const Tensors& weights, size_t pointer) const {
      const JobSpec& spec = client_->spec_;
      return weights[spec.stages[stage_.value()].uses[pointer % uses()].tensor.value()];
    }
    FakeClient* const client_;
    const StageId stage_;
    const TensorPointers out_;
    const std::string name_;
  };

  std::vector<PlainPart> PartsOf(uint64_t step) const {
    std::vector<PlainPart> parts(spec_.training.parts);
    for (uint32_t p = 0; p < parts.size(); ++p) {
      for (uint32_t s = 0; s < spec_.stages.size(); ++s) {
        parts[p].gradients.push_back(pushes.at({step, s, p}));
      }
    }
    return parts;
  }

  const JobSpec& spec_;
  Tensors weights_;
  const int loss_scale_log2_;
  bool flushed_ = false;  // all pushes of step_ have been counted, and the next one has not begun
  Step step_;
  Mutex mu_;
  CondVar more_;
  std::deque<std::shared_ptr<void>> kept_;
  bool stop_ = false;
  std::thread releaser_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_TESTING_FAKE_CLIENT_H_
