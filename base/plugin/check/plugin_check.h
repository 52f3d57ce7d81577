#ifndef EPS_BASE_PLUGIN_CHECK_PLUGIN_CHECK_H_
#define EPS_BASE_PLUGIN_CHECK_PLUGIN_CHECK_H_

// Checks whether a plug-in keeps the contract of its interface. Its code runs in a child process
// only, inside fences (base/process/fence.h). The checks find mistakes. They find no defence
// against an author who means harm: loading an object runs its constructors with all rights of the
// user. The folder has the parts that are the same for every kind of plug-in.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace eps {

// Returns a number of elements whose arrays together are larger than the caches: 16 Mi, or on a
// machine with a larger cache as many as fill half of it, but at most 64 Mi.
uint64_t ElementsBeyondCaches();

// How to check a plug-in.
struct PluginCheckOptions {
  // The program and the first arguments of the child, which must call the function of its kind of
  // plug-in that calls RunCheckChild (check_child.h), with the arguments that follow.
  std::vector<std::string> child;
  // The time for loading, all checks and the measurement; then the child is killed.
  std::chrono::milliseconds deadline{60000};
  // The elements whose processing is timed; 0 disables the measurement.
  uint64_t speed_elements = ElementsBeyondCaches();
};

// The outcome of one check.
struct PluginCheck {
  enum class Outcome { kPassed, kFailed, kNotRun };

  std::string name;
  Outcome outcome = Outcome::kNotRun;
  std::string finding;  // one line; empty unless it failed
};

// Whether each of them passed.
bool AllPassed(const std::vector<PluginCheck>& checks);

// A figure of several rounds.
struct PluginRate {
  double least = 0;
  double median = 0;
  double most = 0;
};

}  // namespace eps

#endif  // EPS_BASE_PLUGIN_CHECK_PLUGIN_CHECK_H_
