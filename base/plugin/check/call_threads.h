#ifndef EPS_BASE_PLUGIN_CHECK_CALL_THREADS_H_
#define EPS_BASE_PLUGIN_CHECK_CALL_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace eps {

// Threads that call a plug-in at once. Create them before the process is fenced. Thread-compatible.
class CallThreads {
 public:
  explicit CallThreads(size_t count);
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // Calls `work` with 0, 1 and so on, each on a thread of its own, and waits until all are done.
  void Run(const std::function<void(size_t)>& work);

 private:
  void Serve(size_t index);

  Mutex mu_;
  CondVar changed_;
  const std::function<void(size_t)>* work_ EPS_GUARDED_BY(mu_) = nullptr;
  uint64_t round_ EPS_GUARDED_BY(mu_) = 0;
  size_t at_work_ EPS_GUARDED_BY(mu_) = 0;
  bool stopped_ EPS_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_CALL_THREADS_H_
