#ifndef EPS_WORKER_EXEC_CUDA_TESTING_THREADED_GRID_H_
#define EPS_WORKER_EXEC_CUDA_TESTING_THREADED_GRID_H_

// Runs the bodies of grid.h with a CPU thread for each thread of a block, two blocks at a time, and
// barriers between phases. A race that a thread sanitizer finds is also a race on a device. Slow.

#include <pthread.h>

#include <memory>
#include <thread>
#include <vector>

#include "worker/exec/cuda/grid.h"

namespace eps::grid {

// A launcher. Thread-compatible.
class ThreadedGrid {
 public:
  template <class Body>
  int Run(uint32_t blocks, const typename Body::Args& args) {
    constexpr uint32_t kBlocksAtOnce = 2;
    std::vector<std::unique_ptr<Group<Body>>> groups;
    std::vector<std::thread> threads;
    for (uint32_t first = 0; first < kBlocksAtOnce && first < blocks; ++first) {
      groups.push_back(std::make_unique<Group<Body>>());
      Group<Body>* const group = groups.back().get();
      for (uint32_t thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([group, first, blocks, thread, &args] {
          for (uint32_t block = first; block < blocks; block += kBlocksAtOnce) {
            for (int phase = 0; phase < Body::kPhases; ++phase) {
              Body::Run(phase, args, &group->shared, block, thread);
              pthread_barrier_wait(&group->barrier);
            }
          }
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    return 0;
  }

 private:
  // The shared memory and the barrier of the threads of one block.
  template <class Body>
  struct Group {
    Group() { pthread_barrier_init(&barrier, nullptr, kThreads); }
    ~Group() { pthread_barrier_destroy(&barrier); }
    pthread_barrier_t barrier;
    typename Body::Shared shared;
  };
};

}  // namespace eps::grid

#endif  // EPS_WORKER_EXEC_CUDA_TESTING_THREADED_GRID_H_
