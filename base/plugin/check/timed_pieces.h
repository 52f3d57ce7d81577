#ifndef EPS_BASE_PLUGIN_CHECK_TIMED_PIECES_H_
#define EPS_BASE_PLUGIN_CHECK_TIMED_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace eps {

// The rounds of a measurement.
inline constexpr uint64_t kTimedRounds = 5;

// Memory for a measurement. Create it before the process is fenced; it stays mapped until the
// process ends. Returns null if there is none.
void* MapTimedMemory(size_t bytes);

// Calls `each` with the beginning and the size of each piece of n elements, and returns the seconds
// of all.
double TimePieces(size_t n, size_t piece, const std::function<void(size_t at, size_t n)>& each);

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_TIMED_PIECES_H_
