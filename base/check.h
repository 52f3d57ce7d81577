#ifndef EPS_BASE_CHECK_H_
#define EPS_BASE_CHECK_H_

// Assertions that stay on in release builds: a broken invariant aborts the process (exit code 70)
// and prints its place and values. Do not use them for errors of peers, disks and the network,
// which are absl::Status.

#include <sstream>

namespace eps::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const std::string& detail);
}  // namespace eps::internal

#define EPS_CHECK(condition)                                                       \
  do {                                                                             \
    if (__builtin_expect(!(condition), 0))                                         \
      ::eps::internal::CheckFailed(__FILE__, __LINE__, #condition, std::string()); \
  } while (0)

// As EPS_CHECK, with a streamable explanation: EPS_CHECK_MSG(a < b, "a=" << a << " b=" << b).
#define EPS_CHECK_MSG(condition, message)                                                   \
  do {                                                                                      \
    if (__builtin_expect(!(condition), 0)) {                                                \
      std::ostringstream eps_check_stream;                                                  \
      eps_check_stream << message;                                                          \
      ::eps::internal::CheckFailed(__FILE__, __LINE__, #condition, eps_check_stream.str()); \
    }                                                                                       \
  } while (0)

#ifdef NDEBUG
#define EPS_DCHECK(condition) \
  do {                        \
  } while (false && (condition))
#else
#define EPS_DCHECK(condition) EPS_CHECK(condition)
#endif

#endif  // EPS_BASE_CHECK_H_
