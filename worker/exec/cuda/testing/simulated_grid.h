#ifndef EPS_WORKER_EXEC_CUDA_TESTING_SIMULATED_GRID_H_
#define EPS_WORKER_EXEC_CUDA_TESTING_SIMULATED_GRID_H_

// Runs the bodies of grid.h on a CPU: one block after the other, and within a block all threads of
// a phase before any of the next, both in random order. Shared memory begins with garbage. A body
// whose threads access the same memory in one phase returns different or wrong results for some
// seeds.

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "worker/exec/cuda/grid.h"

namespace eps::grid {

// A launcher. Thread-compatible.
class SimulatedGrid {
 public:
  explicit SimulatedGrid(uint32_t seed) : random_(seed) {}

  template <class Body>
  int Run(uint32_t blocks, const typename Body::Args& args) {
    static_assert(sizeof(args) <= 4096, "a kernel's arguments");
    ++launches_;
    using Shared = typename Body::Shared;
    static_assert(sizeof(Shared) <= 48 * 1024, "a block's shared memory");
    const auto shared = std::make_unique<Shared>();
    for (const uint32_t block : Shuffled(blocks)) {
      std::memset(static_cast<void*>(shared.get()), static_cast<int>(random_() % 256),
                  sizeof(Shared));
      for (int phase = 0; phase < Body::kPhases; ++phase) {
        // An odd factor visits each thread once.
        const uint32_t factor = static_cast<uint32_t>(random_()) | 1u;
        const uint32_t first = static_cast<uint32_t>(random_());
        for (uint32_t i = 0; i < kThreads; ++i) {
          Body::Run(phase, args, shared.get(), block, (i * factor + first) % kThreads);
        }
      }
    }
    return 0;
  }

  int launches() const { return launches_; }

 private:
  std::vector<uint32_t> Shuffled(uint32_t n) {
    std::vector<uint32_t> order(n);
    for (uint32_t i = 0; i < n; ++i) order[i] = i;
    for (uint32_t i = n; i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
    return order;
  }

  std::minstd_rand random_;
  int launches_ = 0;
};

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_TESTING_SIMULATED_GRID_H_
