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
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/visits.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "worker/client/parameter_client.h"
#include "worker/relay/testing/relay_judge.h"
#include "worker/relay/testing/send_stage.h"

namespace eps {

// Counts how many objects exist, and how many existed at most.
struct Held {
  void Add() { most = std::max(most, ++now); }
  void Remove() { --now; }
  int now = 0;
  int most = 0;
};

// Memory for gradients that a client gives out.
struct Rooms {
  static constexpr uint8_t kUnwritten = 0xa5;
  uint64_t bytes = 0;
  bool is_reached = true;  // by the device; else nobody may write to it
  uint64_t used = 0;
  uint64_t most_used = 0;
};

// All servers of a job in memory. Fetched weights arrive in Wait; until then the destination holds
// NaN, so that early use shows.
class FakeClient final : public ParameterClient {
 public:
  FakeClient(const JobSpec& spec, int loss_scale_log2)
      : spec_(spec),
        chunks_(ChunkMap::Build(spec)),
        weights_(InitialWeights(spec)),
        loss_scale_log2_(loss_scale_log2) {}
  ~FakeClient() override { StopReleasing(); }

  absl::StatusOr<JoinedJob> Join(const JoinOptions&) override {
    return absl::UnimplementedError("not used by a relay");
  }

  absl::StatusOr<StepStart> BeginStep(Step step) override {
    log.push_back(absl::StrCat("begin ", step.value()));
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
                                           std::shared_ptr<StageSink> sink) override {
    EXPECT_TRUE(version.Next().value() == step_.value() || version.value() == step_.value())
        << "weights of another step than the open one and the next";
    log.push_back(absl::StrCat("fetch ", stage.value(), backward ? "b" : "f"));
    return std::make_unique<FakeFetch>(this, Visit{stage, backward}, std::move(sink));
  }

  void PreparePush(StageId stage, Version version) override {
    EXPECT_EQ(version.Next().value(), step_.value()) << "residuals of another step";
    log.push_back(absl::StrCat("prepare ", stage.value()));
  }

  absl::Status Push(StageId use, PartId part, uint64_t tokens,
                    std::shared_ptr<const GradientSource> gradient) override {
    log.push_back(absl::StrCat("push ", use.value(), " part ", part.value()));
    Tensors& tensors = pushes[{step_.value(), use.value(), part.value()}];
    EXPECT_TRUE(tensors.empty()) << "pushed twice: " << log.back();
    tensors = ReceiveGradient(spec_, chunks_, wire, use, *gradient);
    push_tokens.insert({{step_.value(), use.value(), part.value()}, tokens});
    if (fail_at == log.back()) return absl::UnavailableError("scripted push failure");
    if (releaser_.joinable()) {
      MutexLock lock(&mu_);
      kept_.push_back(std::move(gradient));
      most_kept = std::max(most_kept, kept_.size());
      more_.NotifyAll();
    }
    return absl::OkStatus();
  }

  // Overwrites what comes back.
  std::shared_ptr<uint8_t> RoomFor(ChunkId, size_t bytes) override {
    if (rooms.used + bytes > rooms.bytes) return nullptr;
    rooms.used += bytes;
    rooms.most_used = std::max(rooms.most_used, rooms.used);
    auto* const room = new uint8_t[bytes];
    std::fill_n(room, bytes, Rooms::kUnwritten);
    return std::shared_ptr<uint8_t>(room, [this, bytes](uint8_t* begin) {
      const auto unwritten = std::count(begin, begin + bytes, Rooms::kUnwritten);
      EXPECT_TRUE(rooms.is_reached || static_cast<size_t>(unwritten) == bytes)
          << "memory that no device reaches";
      std::fill_n(begin, bytes, 0xff);
      delete[] begin;
      rooms.used -= bytes;
    });
  }

  absl::Status Flush() override {
    log.push_back("flush");
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

  Wire wire = Wire::kFp32;
  bool arrives_at_once = false;  // weights arrive when they are asked for, and not in Wait
  uint64_t counted_steps = 0;    // the first steps, of which the servers have all contributions
  std::vector<std::string> log;
  Pushes pushes;
  std::map<PushKey, uint64_t> push_tokens;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<double, uint64_t>> reported;
  std::map<std::pair<uint64_t, uint32_t>, std::pair<double, uint64_t>> evaluated;  // as reported
  std::string fail_at;  // the entry of the log whose call fails
  size_t most_kept = 0;
  Held held;    // fetches
  Rooms rooms;  // for gradients

 private:
  // A fetch whose weights arrive in Wait.
  class FakeFetch final : public PendingFetch {
   public:
    FakeFetch(FakeClient* client, Visit visit, std::shared_ptr<StageSink> sink)
        : client_(client), visit_(visit), sink_(std::move(sink)), name_(client->log.back()) {
      client_->held.Add();
      if (client_->arrives_at_once) {
        arrived_ = SendWeights();
        return;
      }
      Tensors nothing = client_->weights_;
      for (std::vector<float>& tensor : nothing) {
        std::fill(tensor.begin(), tensor.end(), std::numeric_limits<float>::quiet_NaN());
      }
      const absl::Status status = Send(nothing, nothing);
      EXPECT_TRUE(status.ok()) << status;
    }
    ~FakeFetch() override { client_->held.Remove(); }
    absl::Status Wait() override {
      if (client_->fail_at == name_) return absl::UnavailableError("scripted fetch failure");
      return client_->arrives_at_once ? arrived_ : SendWeights();
    }

   private:
    absl::Status SendWeights() { return Send(client_->weights_, SecondCopies(client_->weights_)); }
    absl::Status Send(const Tensors& first, const Tensors& second) {
      return SendStage(client_->spec_, client_->chunks_, client_->wire, visit_, first, second,
                       sink_.get());
    }

    FakeClient* const client_;
    const Visit visit_;
    const std::shared_ptr<StageSink> sink_;
    const std::string name_;
    absl::Status arrived_;
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
  const ChunkMap chunks_;
  Tensors weights_;
  const int loss_scale_log2_;
  Step step_;
  Mutex mu_;
  CondVar more_;
  std::deque<std::shared_ptr<const GradientSource>> kept_;
  bool stop_ = false;
  std::thread releaser_;
};

}  // namespace eps

#endif  // EPS_WORKER_RELAY_TESTING_FAKE_CLIENT_H_
