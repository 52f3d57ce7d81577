#ifndef EPS_SERVER_RPC_TESTING_SERVE_PROCESS_H_
#define EPS_SERVER_RPC_TESTING_SERVE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace eps {

// A server in a process of its own, which runs serve_for_test. The destructor kills it. For tests
// only. Thread-compatible.
class ServeProcess {
 public:
  // `arguments` as serve_for_test takes them, without the address to listen on.
  explicit ServeProcess(const std::string& listen, const std::vector<std::string>& arguments = {});
  ~ServeProcess();
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  // Returns the next line of its output; empty at the end of the output or after a timeout.
  std::string Line();
  // Returns the address in the first line, which the server prints once it listens.
  std::string Address();
  void Signal(int signal);
  pid_t pid() const { return pid_; }
  // Returns its exit code, minus the number of the signal that ended it, or -1000 after a timeout.
  int Wait();

  // Returns the resident memory of the process in bytes, as /proc shows it.
  uint64_t ResidentBytes() const { return MemoryOf("VmRSS:"); }
  // Returns the most resident memory since ResetPeak.
  uint64_t PeakBytes() const { return MemoryOf("VmHWM:"); }
  void ResetPeak();

 private:
  uint64_t MemoryOf(const std::string& key) const;

  pid_t pid_ = 0;
  int out_ = -1;
};

}  // namespace eps

#endif  // EPS_SERVER_RPC_TESTING_SERVE_PROCESS_H_
