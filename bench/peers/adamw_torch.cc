#include "bench/peers/adamw_torch.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/_fused_adamw.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/full.h"
#include "base/numerics/flush_denormals.h"
#include "optimizer/rules/adamw.h"

namespace eps {
namespace {

constexpr double kLr = 1e-3;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr double kDecay = 0.01;
constexpr double kEps = 1e-8;
constexpr int kStep = 5;
// Both sides round every operation of a short formula, torch with fused products and another form
// of the bias corrections: a few units in the last place of the largest term, per update.
constexpr double kRelative = 1e-6;
constexpr double kUpdateRelative = 2e-6;

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

AdamWScalars Scalars() {
  const double correction1 = 1 - std::pow(kBeta1, kStep);
  const double correction2 = 1 - std::pow(kBeta2, kStep);
  AdamWScalars s;
  s.decay = static_cast<float>(1 - kLr * kDecay);
  s.beta1 = static_cast<float>(kBeta1);
  s.one_minus_beta1 = static_cast<float>(1 - kBeta1);
  s.beta2 = static_cast<float>(kBeta2);
  s.one_minus_beta2 = static_cast<float>(1 - kBeta2);
  s.rsqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2));
  s.eps = static_cast<float>(kEps);
  s.step_size = static_cast<float>(kLr / correction1);
  return s;
}

float* Floats(const PageArray& array) { return static_cast<float*>(array.data()); }

}  // namespace

// torch's side; `pages` is empty if torch allocated the memory.
struct AdamWPair::Tensors {
  std::vector<std::unique_ptr<PageArray>> pages;
  std::vector<at::Tensor> arrays;
};

AdamWPair::AdamWPair(size_t n, TorchMemory memory)
    : n_(n),
      ours_{PageArray(n * sizeof(float)), PageArray(n * sizeof(float)),
            PageArray(n * sizeof(float)), PageArray(n * sizeof(float))},
      torchs_(std::make_unique<Tensors>()) {
  for (size_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(i * 2654435761u >> 8 & 0xffff) / 65536.0f;
    Floats(ours_[kWeight])[i] = 0.02f * x - 0.01f;
    Floats(ours_[kFirst])[i] = 1e-4f * (0.5f - x);
    Floats(ours_[kSecond])[i] = 1e-8f * (x + 0.1f);
    Floats(ours_[kGradient])[i] = 1e-3f * (x - 0.5f);
  }
  const std::vector<int64_t> shape{static_cast<int64_t>(n)};
  for (const PageArray& array : ours_) {
    if (memory == TorchMemory::kHugePages) {
      torchs_->pages.push_back(std::make_unique<PageArray>(n * sizeof(float)));
      torchs_->arrays.push_back(at::from_blob(torchs_->pages.back()->data(), shape, at::kFloat));
    } else {
      torchs_->arrays.push_back(at::empty(shape, at::kFloat));
    }
    std::memcpy(torchs_->arrays.back().data_ptr<float>(), array.data(), n * sizeof(float));
  }
}

AdamWPair::~AdamWPair() = default;

double AdamWPair::TimeOurs(int threads) {
  const AdamWScalars scalars = Scalars();
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ScopedFlushDenormals flush;
      const size_t share = n_ / threads / 16 * 16;
      const size_t begin = t * share;
      AdamWTile tile;
      tile.rows = 1;
      tile.cols = (t == threads - 1 ? n_ : begin + share) - begin;
      tile.grad = Floats(ours_[kGradient]) + begin;
      tile.grad_ld = tile.cols;
      tile.weight = Floats(ours_[kWeight]) + begin;
      tile.exp_avg = Floats(ours_[kFirst]) + begin;
      tile.exp_avg_sq = Floats(ours_[kSecond]) + begin;
      tile.ld = tile.cols;
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      AdamW(scalars, tile);
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true);
  for (std::thread& worker : workers) worker.join();
  return Seconds(start);
}

double AdamWPair::TimeTorch(int threads, bool clips) {
  at::set_num_threads(threads);
  const at::Tensor step = at::full({}, static_cast<double>(kStep), at::kFloat);
  const std::vector<at::Tensor>& arrays = torchs_->arrays;
  const at::Tensor one = at::full({}, 1.0, at::kFloat);
  ScopedFlushDenormals flush;
  const auto start = std::chrono::steady_clock::now();
  if (clips) at::Tensor(arrays[kGradient]).mul_(one);
  at::_fused_adamw_({arrays[kWeight]}, {arrays[kGradient]}, {arrays[kFirst]}, {arrays[kSecond]}, {},
                    {step}, kLr, kBeta1, kBeta2, kDecay, kEps, /*amsgrad=*/false,
                    /*maximize=*/false);
  return Seconds(start);
}

std::string AdamWPair::Difference() const {
  const char* const names[] = {"weight", "first moment", "second moment"};
  // The magnitudes of the terms that were added: a weight and its step; a moment and its share of
  // the gradient.
  const double terms[] = {20 * kLr * kUpdateRelative, 1e-4 * kRelative, 1e-9 * kRelative};
  for (const Array a : {kWeight, kFirst, kSecond}) {
    const float* const torchs = torchs_->arrays[a].data_ptr<float>();
    for (size_t i = 0; i < n_; ++i) {
      const double ours = Floats(ours_[a])[i];
      const double other = torchs[i];
      if (std::abs(ours - other) <= kRelative * std::abs(other) + terms[a]) continue;
      char text[160];
      std::snprintf(text, sizeof(text), "%s of parameter %zu: %.9g, torch has %.9g", names[a], i,
                    ours, other);
      return text;
    }
  }
  return "";
}

}  // namespace eps
