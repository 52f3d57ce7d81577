#include "base/job/data_position.h"

namespace eps {
namespace {

constexpr int kRounds = 6;

// A bijection of 64-bit words whose every output bit depends on every input bit (splitmix64's).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Half of the smallest even number of bits, at least 2, that can write n - 1.
int HalfBits(uint64_t n) {
  int bits = 1;
  while (bits < 64 && (n - 1) >> bits != 0) ++bits;
  return (bits + 1) / 2;
}

}  // namespace

FeistelPermutation::FeistelPermutation(uint64_t n, uint64_t key)
    : n_(n), half_bits_(HalfBits(n)), key_(key) {}

uint64_t FeistelPermutation::Encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_;
  uint64_t right = x & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t round_key = Mix(key_ + static_cast<uint64_t>(round));
    const uint64_t next = left ^ (Mix(right ^ round_key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t FeistelPermutation::operator()(uint64_t i) const {
  // The domain is at most four times n (but for n = 1), so a walk is short on average; it ends
  // because its cycle comes back to i, which is below n.
  uint64_t x = Encrypt(i);
  while (x >= n_) x = Encrypt(x);
  return x;
}

uint64_t WholeSamples(const JobSpec& spec) {
  if (spec.data.samples > 0) return spec.data.samples;
  return (spec.data.tokens - 1) / spec.training.seq_len;
}

uint64_t SampleIndex(const JobSpec& spec, Step step, uint32_t micro_batch, uint32_t slot) {
  const uint64_t whole = WholeSamples(spec);
  const uint64_t running = (step.value() - 1) * spec.samples_per_step() +
                           uint64_t{micro_batch} * spec.training.micro_batch_size + slot;
  if (spec.data.order == DataOrder::kSequential) return running % whole;
  const uint64_t epoch = running / whole;
  return FeistelPermutation(whole, Mix(Mix(spec.training.seed) ^ epoch))(running % whole);
}

}  // namespace eps
