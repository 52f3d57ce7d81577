#ifndef EPS_STORAGE_TESTING_WATCHDOG_H_
#define EPS_STORAGE_TESTING_WATCHDOG_H_

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

namespace eps {

// For tests that inject many faults in turn: ends the process with `doing` unless this function or
// StopWatching is called within two minutes. Not thread-safe.
inline char watched_for_handler[300];

inline void Watch(const std::string& doing) {
  std::snprintf(watched_for_handler, sizeof(watched_for_handler), "it hangs for two minutes: %s\n",
                doing.c_str());
  std::signal(SIGALRM, [](int) {
    const size_t size = strnlen(watched_for_handler, sizeof(watched_for_handler));
    _exit(write(STDERR_FILENO, watched_for_handler, size) < 0 ? 2 : 1);
  });
  alarm(120);
}

inline void StopWatching() { alarm(0); }

}  // namespace eps

#endif  // EPS_STORAGE_TESTING_WATCHDOG_H_
